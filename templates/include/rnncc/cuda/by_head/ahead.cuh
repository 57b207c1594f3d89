// What a step of a head takes from memory and from the step before.
#pragma once

#include "memory.cuh"

namespace rnncc {

template <int slot>
struct SlotNumber {
  static constexpr int value = slot;
};

// Calls work(slot) for each slot.
template <int slot, class P, class F>
RNNCC_DEVICE void each_slot(const F& work) {
  if constexpr (slot < P::tables.slot_count) {
    work(SlotNumber<slot>{});
    each_slot<slot + 1, P>(work);
  }
}

// Calls work(element, row, column) for each element that a thread has of a matrix.
template <class Shape, class F>
RNNCC_DEVICE void each_of_matrix(float (&matrix)[Shape::ROWS][Shape::COLUMNS], int rows, int columns, const F& work) {
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int c = 0; c < Shape::COLUMNS; ++c)
      if (Shape::row(r) < rows && Shape::column(c) < columns) work(matrix[r][c], Shape::row(r), Shape::column(c));
}

// Calls work(unit, k) for the units of a vector that a thread fetches. The vectors begin at different warps.
template <int slot, class F>
RNNCC_DEVICE void each_fetched(int width, const F& work) {
#pragma unroll
  for (int k = 0; k < MOST_FETCHED; ++k) {
    const int unit = (threadIdx.x + 64 * slot) % THREADS + k * THREADS;
    if (unit < width) work(unit, k);
  }
}

// The bits of a value, and the value again. To convert a number of 16 bits that is still on its way would be to wait.
RNNCC_DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
template <class T>
RNNCC_DEVICE uint32_t bits_of(T value) {
  return value.bits;
}
template <class T>
RNNCC_DEVICE float from_bits(uint32_t bits) {
  if constexpr (sizeof(T) == sizeof(float))
    return __uint_as_float(bits);
  else
    return to_float(T{uint16_t(bits)});
}

// What a thread reads ahead from memory: vectors that go to shared memory, and edges of matrices that are read.
template <class R>
struct Ahead {
  using P = typename R::Program;
  using Shape = typename R::Shape;
  using Memory = Run<P, typename R::Scalar, HeadCall<P>>;
  static constexpr int SLOTS = P::tables.slot_count;
  static constexpr bool is_matrix(int slot) {
    return is_edge(P::tables.slots[slot]) && P::matrices[slot] && Shape::FETCHES;
  }
  static constexpr int before(int slot, bool matrices) {
    int count = 0;
    for (int s = 0; s < slot; ++s) count += is_fetched(P::tables, s) && (matrices ? is_matrix(s) : !P::matrices[s]);
    return count;
  }
  uint32_t vectors[at_least_one(before(SLOTS, false))][MOST_FETCHED];
  float matrices[at_least_one(before(SLOTS, true))][Shape::ROWS][Shape::COLUMNS];

  // Reads what step n needs.
  RNNCC_DEVICE void fetch(const R& run, int64_t n, int entry, int rows, int columns) {
    auto memory = run.memory;
    memory.n = n;
    memory.t = memory.time(n);
    each_slot<0, P>([&](auto number) {
      constexpr int slot = decltype(number)::value;
      if constexpr (!is_fetched(P::tables, slot)) {
      } else if constexpr (is_matrix(slot)) {
        each_of_matrix<Shape>(matrices[before(slot, true)], rows, columns, [&](float& element, int i, int j) {
          element = load<slot>(memory, entry, run.template in_tensor<slot>(i * columns + j));
        });
      } else if constexpr (!P::matrices[slot]) {
        each_fetched<slot>(run.plan.dims[P::tables.slots[slot].width], [&](int unit, int k) {
          uint32_t& bits = vectors[before(slot, false)][k];
          if constexpr (P::tables.slots[slot].kind == Kind::read)
            bits = bits_of(*address<slot>(memory, n, entry, run.template in_tensor<slot>(unit)));
          else
            bits = bits_of(load<slot>(memory, entry, run.template in_tensor<slot>(unit)));
        });
      }
    });
  }
  // Puts it where step n reads it. What the edge of a matrix was at the step before, its slot is now.
  RNNCC_DEVICE void put(const R& run, int64_t n, HeldMatrices<P, Shape>& held, bool is_first = false) const {
    each_slot<0, P>([&](auto number) {
      constexpr int slot = decltype(number)::value;
      if constexpr (!is_fetched(P::tables, slot)) {
      } else if constexpr (is_matrix(slot)) {
        constexpr int to = held_before<P, typename R::Shape>(slot),
                      link = held_before<P, typename R::Shape>(P::tables.slots[slot].link);
#pragma unroll
        for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
          for (int c = 0; c < Shape::COLUMNS; ++c) {
            if (!is_first) held.of[link][r][c] = held.of[to][r][c];
            held.of[to][r][c] = matrices[before(slot, true)][r][c];
          }
      } else if constexpr (!P::matrices[slot]) {
        constexpr bool is_raw = P::tables.slots[slot].kind == Kind::read;
        using Fetched = typename TypeOf<is_raw, decltype(element_type<slot, Memory>())>::type;
        each_fetched<slot>(run.plan.dims[P::tables.slots[slot].width], [&](int unit, int k) {
          run.template on_chip<slot>(n, unit) = from_bits<Fetched>(vectors[before(slot, false)][k]);
        });
      }
    });
  }
};

// Reads what is the same at all steps, and the values that edges have before the first one.
template <class R>
RNNCC_DEVICE void begin(const R& run, HeldMatrices<typename R::Program, typename R::Shape>& held, int entry, int rows,
                        int columns) {
  using P = typename R::Program;
  each_slot<0, P>([&](auto number) {
    constexpr int slot = decltype(number)::value;
    constexpr SlotInfo info = P::tables.slots[slot];
    constexpr bool of_made = is_edge(info) && is_made(P::tables.slots[info.link]);
    const auto in_tensor = [&](int unit) { return run.template in_tensor<slot>(unit); };
    if constexpr (P::matrices[slot]) {
      if constexpr (of_made) {
        const SlotPlace& place = place_of<slot>(run.memory);
        const float* const from = global<const float>(place.base) + entry * place.row;
        each_of_matrix<typename R::Shape>(
            held.of[held_before<P, typename R::Shape>(slot)], rows, columns,
            [&](float& element, int i, int j) { element = from[in_tensor(i * columns + j)]; });
      } else if constexpr (is_held<P, typename R::Shape>(slot) && info.kind == Kind::read) {
        each_of_matrix<typename R::Shape>(
            held.of[held_before<P, typename R::Shape>(slot)], rows, columns,
            [&](float& element, int i, int j) { element = load<slot>(run.memory, entry, in_tensor(i * columns + j)); });
      }
    } else if constexpr (of_made) {
      const SlotPlace& place = place_of<slot>(run.memory);
      const float* const from = global<const float>(place.base) + entry * place.row;
      for (int unit = threadIdx.x; unit < run.plan.dims[info.width]; unit += THREADS)
        run.template on_chip<info.link>(-1, unit) = from[in_tensor(unit)];
    } else if constexpr (info.kind == Kind::vector) {
      for (int unit = threadIdx.x; unit < run.plan.dims[info.width]; unit += THREADS)
        run.template on_chip<slot>(0, unit) = load<slot>(run.memory, entry, in_tensor(unit));
    }
  });
}

// After a step, edges of matrices have what their slots hold. Those of vectors look at the other one of two places.
template <class R>
RNNCC_DEVICE void turn(HeldMatrices<typename R::Program, typename R::Shape>& held) {
  using P = typename R::Program;
  using Shape = typename R::Shape;
  each_slot<0, P>([&](auto number) {
    constexpr int slot = decltype(number)::value;
    constexpr SlotInfo info = P::tables.slots[slot];
    if constexpr (P::matrices[slot] && is_edge(info))
      if constexpr (is_made(P::tables.slots[info.link])) {
#pragma unroll
        for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
          for (int c = 0; c < Shape::COLUMNS; ++c)
            held.of[held_before<P, typename R::Shape>(slot)][r][c] =
                held.of[held_before<P, typename R::Shape>(info.link)][r][c];
      }
  });
}

}  // namespace rnncc
