// Operators across the units of one row, which are rnncc/ir/cell.py's RowOperator.
#pragma once

#include "program.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A row is laid out as [parts, heads, depth]: unit (p, n, d) lies at (p * heads + n) * depth + d. A head has units in
// all parts, which count part by part: unit j of head n is (j / depth, n, j % depth).
struct RowLayout {
  int64_t parts, heads, depth;

  // Units per head.
  int64_t head_width() const { return parts * depth; }
  int64_t at(int64_t head, int64_t j) const { return heads == 1 ? j : (j / depth * heads + head) * depth + j % depth; }
};

// A value of one unit has one head.
RNNCC_INLINE RowLayout row_layout(int64_t width, int64_t parts, int64_t heads) {
  if (width == 1) return {1, 1, 1};
  return {parts, heads, width / (parts * heads)};
}

// The operand of per_head, whose groups of units heads share: one group lies behind the other.
RNNCC_INLINE RowLayout group_layout(int64_t width, const RowLayout& to) {
  return {1, width / to.head_width(), to.head_width()};
}

template <class T>
RNNCC_INLINE T sum_of(const T* p, int64_t n) {
  Vec<T> total = {};
  for (int64_t i = 0; i < n; i += lanes<T>) total += load_upto(p + i, n - i);
  return horizontal_sum(total);
}

template <class T>
RNNCC_INLINE T largest_of(const T* p, int64_t n, T largest) {
  for (int64_t i = 0; i < n; ++i) largest = (largest > p[i] || largest != largest) ? largest : p[i];
  return largest;
}

template <class T>
RNNCC_INLINE T squares_of(const T* p, int64_t n, T mean) {
  Vec<T> total = {};
  int64_t i = 0;
  for (; i + lanes<T> <= n; i += lanes<T>) {
    const Vec<T> deviation = load(p + i) - mean;
    total += deviation * deviation;
  }
  T rest = T(0);
  for (; i < n; ++i) rest += (p[i] - mean) * (p[i] - mean);
  return horizontal_sum(total) + rest;
}

// `means`: of squares of deviations, the mean of each head.
template <class T>
static void reduce_row(RowOperator op, T* out, const RowLayout& to, const T* in, const RowLayout& from,
                       const T* means) {
  // A sum to one value runs over all heads.
  const bool whole = to.heads == 1;
  const int64_t count = whole ? from.heads * from.depth : from.depth;
  for (int64_t n = 0; n < to.heads; ++n) {
    T total = op == RowOperator::max ? -T(__builtin_inf()) : T(0);
    for (int64_t p = 0; p < from.parts; ++p) {
      const T* row = in + (p * from.heads + n) * from.depth;
      if (op == RowOperator::max) {
        total = largest_of(row, count, total);
      } else {
        total += means ? squares_of(row, count, means[n]) : sum_of(row, count);
      }
    }
    out[n] = op == RowOperator::mean || op == RowOperator::variance ? total / T(from.parts * count) : total;
  }
}

// Copies units [begin, begin + n) of each head of `from` to units [start, start + n) of that head of `to`.
template <class T>
static void copy_units(T* out, const RowLayout& to, int64_t start, const T* in, const RowLayout& from, int64_t begin,
                       int64_t n) {
  // The units of one head lie in one piece, and so do whole parts of the same depth.
  if (to.heads == 1) {
    __builtin_memcpy(out + start, in + begin, size_t(n) * sizeof(T));
    return;
  }
  if (to.depth == from.depth && start % to.depth == 0 && begin % to.depth == 0 && n % to.depth == 0) {
    __builtin_memcpy(out + start * to.heads, in + begin * to.heads, size_t(n * to.heads) * sizeof(T));
    return;
  }
  for (int64_t h = 0; h < to.heads; ++h) {
    for (int64_t j = 0; j < n; ++j) out[to.at(h, start + j)] = in[from.at(h, begin + j)];
  }
}

// Computes one operand's share of the target. `offset` counts units within a head: a slice begins there in `in`, and a
// pad or a concatenation puts the operand there in `out`. For a concatenation it is called once per operand. `means`:
// the second operand of squares.
template <class T>
static void row_operation(RowOperator op, T* out, const RowLayout& to, const T* in, const RowLayout& from,
                          const T* means, int64_t offset, int64_t times) {
  switch (op) {
    case RowOperator::squares:
    case RowOperator::variance: reduce_row(op, out, to, in, from, means); return;
    case RowOperator::sum:
    case RowOperator::mean:
    case RowOperator::max: reduce_row(op, out, to, in, from, static_cast<const T*>(nullptr)); return;
    case RowOperator::spread:
      for (int64_t block = 0; block < to.parts * to.heads; ++block) {
        const Vec<T> value = broadcast(in[from.heads == 1 ? 0 : block % to.heads] / T(to.head_width()));
        for (int64_t d = 0; d < to.depth; d += lanes<T>) store_upto(out + block * to.depth + d, value, to.depth - d);
      }
      return;
    case RowOperator::cumsum:
    case RowOperator::cumsum_reversed:
      for (int64_t h = 0; h < to.heads; ++h) {
        T total = T(0);
        for (int64_t i = 0; i < to.head_width(); ++i) {
          const int64_t at = to.at(h, op == RowOperator::cumsum ? i : to.head_width() - 1 - i);
          total += in[at];
          out[at] = total;
        }
      }
      return;
    case RowOperator::slice: copy_units(out, to, int64_t(0), in, from, offset, to.head_width()); return;
    case RowOperator::concat: copy_units(out, to, offset, in, from, int64_t(0), from.head_width()); return;
    case RowOperator::pad:
      __builtin_memset(out, 0, size_t(to.head_width() * to.heads) * sizeof(T));
      copy_units(out, to, offset, in, from, int64_t(0), from.head_width());
      return;
    case RowOperator::roll: {
      const int64_t units = to.head_width(), moved = (times % units + units) % units;
      copy_units(out, to, moved, in, from, int64_t(0), units - moved);
      copy_units(out, to, int64_t(0), in, from, units - moved, moved);
      return;
    }
    case RowOperator::shift: {
      const int64_t units = to.head_width(), distance = times < 0 ? -times : times;
      __builtin_memset(out, 0, size_t(units * to.heads) * sizeof(T));
      if (distance < units) {
        const int64_t start = times < 0 ? 0 : distance;
        copy_units(out, to, start, in, from, distance - start, units - distance);
      }
      return;
    }
    case RowOperator::repeat:
      for (int64_t h = 0; h < to.heads; ++h) {
        for (int64_t i = 0; i < to.head_width(); ++i) out[to.at(h, i)] = in[from.at(h, i / times)];
      }
      return;
    case RowOperator::per_head:
      for (int64_t h = 0; h < to.heads; ++h) {
        const T* group = in + h * from.heads / to.heads * from.depth;
        for (int64_t i = 0; i < from.depth; ++i) out[to.at(h, i)] = group[i];
      }
      return;
    case RowOperator::segment_sum:
      for (int64_t h = 0; h < to.heads; ++h) {
        for (int64_t i = 0; i < to.head_width(); ++i) {
          T total = T(0);
          for (int64_t j = 0; j < times; ++j) total += in[from.at(h, i * times + j)];
          out[to.at(h, i)] = total;
        }
      }
      return;
    default: return;
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
