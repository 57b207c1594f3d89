// Which products of a call are taken from lists (lists.h), and which from dense panels: the rule and its costs.
#pragma once

#include "layout.h"
#include "lists.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A product that may be taken from lists. While lists are made, lists.begin[u + 2] counts the elements of unit u, and
// then lists.begin[u + 1] is where its next one goes.
template <class T>
struct ListedProduct {
  bool listed;       // whether this call takes it from lists
  Lists<T> lists;    // of the units of all its matrices, one matrix behind the other
  int64_t units;     // of one matrix
  int64_t elements;  // how many are not zero
  int64_t all;       // how many there are with the zeros
  int64_t rows;      // of the operand
  int64_t spread;    // where a thread has the operand as [rows, entries]: elements from the beginning of its room
};

// The costs below are times, where a vector times a vector takes 1. They were fitted to products and calls of float on
// an AMD EPYC 9004 with AVX-512, where that is 0.14 ns.

// Multiplying an element of a list by so many entries of an operand of so many rows. An operand that is larger than
// the first-level cache takes longer.
template <class T>
RNNCC_INLINE double list_cost(int64_t entries, int64_t rows) {
  double cost = 0;
  for (; entries > 0; entries -= list_entries<T>) {
    const int64_t width = list_width<T>(entries < list_entries<T> ? entries : list_entries<T>);
    const double near = 1.1 + 1.3 * double(width) / double(lanes<T>);
    cost += rows * width * int64_t(sizeof(T)) > (1 << 16) ? 1.5 * near : near;
  }
  return cost;
}

// Multiplying an element of a dense matrix, which may be zero, by so many entries. With few entries the time is that of
// reading the matrix: from a cache, or from memory where all matrices of a step (`step_elements`) are large.
template <class T>
RNNCC_INLINE double dense_cost(int64_t entries, int64_t step_elements) {
  const double least = step_elements * int64_t(sizeof(T)) > (24 << 20) ? 0.6 : 0.16;
  const double cost = double(entries) / double(lanes<T>);
  return cost < least ? least : cost;
}

// Putting an element in a list, and in a panel. Panels have the order of a matrix that the product takes transposed, so
// these are packed faster.
constexpr double listing_cost = 70, packing_cost = 13, packing_cost_transposed = 3;

// What the rule asks of a call: its steps, the entries at a step, and the elements of all matrices of a step.
struct CallSizes {
  int64_t steps, entries, step_elements;
};

// The rule: whether lists take less time than panels, with the making of either, where so many elements of a product's
// matrices are not zero. So the product stays dense where a mask is dense or a call short, and for one entry where the
// matrix lies in a cache. On the machine above, a matrix of 512 x 512 in 128 steps becomes lists up to 15 % of its
// elements at one entry, 26 % at 8, and 49 % at 32; transposed, up to 11, 23 and 48 %.
template <class T>
RNNCC_INLINE bool lists_are_faster(const ListedProduct<T>& product, int64_t nonzero, bool transposed,
                                   const CallSizes& call) {
  const double packing = transposed ? packing_cost_transposed : packing_cost, steps = double(call.steps);
  return double(nonzero) * (listing_cost + steps * list_cost<T>(call.entries, product.rows)) <
         double(product.all) * (packing + steps * dense_cost<T>(call.entries, call.step_elements));
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
