// What a generated kernel is: tables that describe the loop of one segment in one direction, and one function for each
// group of elementwise equations. The driver (sequence.h) reads the tables; it is compiled once for all cells.
#pragma once

#include "../core/tables.h"
#include "vec.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// What a function sees of a step: where each slot's rows begin, and how far apart they are.
template <class T>
struct Frame {
  T** p;
  int64_t* row;
  const T* constants;
  const int64_t* dims;
  // A function of a matrix's elements runs these rows of each head's block. It puts its vectors of columns to `parts`,
  // if that is given, and not to their slots; there the distance of two batch entries is part_row, that of two vectors
  // part_size.
  int64_t first_row = 0, end_row = 0;
  T* parts = nullptr;
  int64_t part_row = 0, part_size = 0;
  int64_t turn = 0;  // which of two places they go to next, where threads divide a head's rows (matrix_elements.h)

  // Where a slot's row of batch entry b starts.
  inline __attribute__((always_inline)) T* at(int slot, int64_t b) const { return p[slot] + b * row[slot]; }

  // Where vector `number` of columns goes, which is that of a slot.
  inline __attribute__((always_inline)) T* columns_at(int slot, int64_t b, int64_t number) const {
    return parts ? parts + number * part_size + b * part_row : at(slot, b);
  }
};

// Computes batch entries [b0, b1) and units [u0, u1), which all belong to `head`. A function of a matrix's elements takes
// heads [u0, u1) in place of units, and all heads' number in place of the head; of their rows it takes the frame's.
template <class T>
using Function = void (*)(const Frame<T>&, int64_t b0, int64_t b1, int64_t u0, int64_t u1, int64_t head);

// The same for several stages. `slots`: the numbers of those that the stage at hand reads and writes.
template <class T>
using SharedFunction = void (*)(const Frame<T>&, int64_t b0, int64_t b1, int64_t u0, int64_t u1, int64_t head,
                                const int16_t* slots);

// The function of one of these stages.
template <class T, SharedFunction<T> FUNCTION, int16_t... SLOTS>
static void with_slots(const Frame<T>& frame, int64_t b0, int64_t b1, int64_t u0, int64_t u1, int64_t head) {
  static constexpr int16_t slots[] = {SLOTS...};
  FUNCTION(frame, b0, b1, u0, u1, head, slots);
}

template <class T>
struct Program : Tables {
  const Function<T>* functions;
};

enum Status : int32_t { DONE = 0, OUT_OF_MEMORY = 1, WRONG_DTYPE = 2, NO_THREADS = 3 };

// Runs the program and returns a Status. sequence.h defines it; it is compiled once per instruction set.
template <class T>
int32_t run(const Program<T>& program, const Call& call);

// Whether a vector of units is whole, as a type.
template <bool VALUE>
struct Whole {
  static constexpr bool value = VALUE;
};

// Reads units [u, u + n) of p: a whole vector, or fewer than its lanes.
template <bool WHOLE, class T>
RNNCC_INLINE Vec<T> take(const T* p, int64_t u, int64_t n) {
  if constexpr (WHOLE) {
    return load(p + u);
  } else {
    return load_partial(p + u, n);
  }
}

template <bool WHOLE, class T>
RNNCC_INLINE void put(T* p, int64_t u, Vec<T> v, int64_t n) {
  if constexpr (WHOLE) {
    store(p + u, v);
  } else {
    store_partial(p + u, v, n);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
