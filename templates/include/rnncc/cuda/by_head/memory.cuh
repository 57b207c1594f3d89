// Where the values of a head's step lie: vectors in shared memory, matrices in registers, and what a call gives and takes in
// memory.
#pragma once

#include "../stages.cuh"
#include "call.h"

namespace rnncc {

// How the threads of a CTA divide a matrix: LANES lanes share a row and have COLUMNS elements of it, a thread has so
// many ROWS.
template <int LANES_, int COLUMNS_, int ROWS_>
struct HeadShape {
  static constexpr int LANES = LANES_, COLUMNS = COLUMNS_, ROWS = ROWS_;
  static constexpr int ROWS_AT_ONCE = THREADS / LANES;
  // Whether threads have registers for the elements of matrices that they fetch a step ahead.
  static constexpr bool FETCHES = ROWS * COLUMNS <= 16;

  // The row and the column of a thread's element (r, c) in a head's block.
  static RNNCC_DEVICE int row(int r) { return threadIdx.x / LANES + r * ROWS_AT_ONCE; }
  static RNNCC_DEVICE int column(int c) { return threadIdx.x % LANES + c * LANES; }
};

// Whether a slot is a matrix that a thread holds its elements of: one that a stage makes, or that is fetched and read at
// two steps, or what such a one is at another step.
template <class P, class Shape>
constexpr bool is_held(int slot) {
  const SlotInfo& info = P::tables.slots[slot];
  if (!P::matrices[slot]) return false;
  if (is_made(P::tables.slots[is_edge(info) ? info.link : slot])) return true;
  return Shape::FETCHES && (is_edge(info) || (info.kind == Kind::read && is_linked(P::tables, slot)));
}
template <class P, class Shape>
constexpr int held_before(int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += is_held<P, Shape>(s);
  return count;
}

// A thread's elements of all matrices that are held.
template <class P, class Shape>
struct HeldMatrices {
  float of[at_least_one(held_before<P, Shape>(P::tables.slot_count))][Shape::ROWS][Shape::COLUMNS];
};

// A head's step, as rows.cuh and a program's stages read it: units are counted within the head.
template <class P, class S, class Shape_>
struct HeadRun {
  using Program = P;
  using Scalar = S;
  using Shape = Shape_;
  struct Plan {
    const int32_t* dims;
    const float* constants;
    static constexpr int64_t heads = 1;
  };
  const HeadCall<P>& call;
  Plan plan;
  Run<P, S, HeadCall<P>> memory;  // the same step, with the units of all heads
  float* vectors;                 // in shared memory
  int head;

  // The place of a head's unit in a tensor's row.
  template <int slot>
  RNNCC_DEVICE int in_tensor(int unit) const {
    constexpr SlotInfo info = P::tables.slots[slot];
    if (call.dims[info.width] == 1) return unit;
    const int width = plan.dims[info.width];
    if (P::matrices[slot] || info.parts == 1) return head * width + unit;
    const int depth = width / info.parts;
    return (unit / depth * int(call.heads) + head) * depth + unit % depth;
  }
  // Where a vector's values lie that it has at the step with the number `step`.
  template <int slot>
  RNNCC_DEVICE float& on_chip(int64_t step, int unit) const {
    const bool is_other = steps_on_chip(P::tables, slot) == 2 && (step & 1);
    return vectors[call.offsets[slot] + (is_other ? plan.dims[P::tables.slots[slot].width] : 0) + unit];
  }
};

template <int slot, class P, class S, class Shape>
RNNCC_DEVICE float load(const HeadRun<P, S, Shape>& run, int entry, int64_t unit) {
  constexpr SlotInfo info = P::tables.slots[slot];
  if constexpr (info.kind == Kind::view)
    return load<info.link>(run, entry, unit + run.plan.dims[info.offset]);
  else if constexpr (!P::matrices[slot] && steps_on_chip(P::tables, slot) > 0)
    return run.template on_chip<slot>(run.memory.n, int(unit));
  else if constexpr (!P::matrices[slot] && is_edge(info))
    return run.template on_chip<info.link>(run.memory.n - 1, int(unit));
  else
    return load<slot>(run.memory, entry, run.template in_tensor<slot>(int(unit)));
}

template <int slot, class P, class S, class Shape>
RNNCC_DEVICE void publish(const HeadRun<P, S, Shape>& run, int entry, int64_t unit, float value) {
  if constexpr (P::tables.slots[slot].read) run.template on_chip<slot>(run.memory.n, int(unit)) = value;
}

template <int slot, class P, class S, class Shape>
RNNCC_DEVICE void store_rest(const HeadRun<P, S, Shape>& run, int entry, int64_t unit, float value) {
  constexpr SlotInfo info = P::tables.slots[slot];
  const int64_t at = run.template in_tensor<slot>(int(unit));
  put_outputs<info.first_destination, info.destinations>(run.memory, entry, at, value);
  if constexpr (info.lasting)
    put<S>(run.memory, run.memory.own.records[records_before(P::tables, slot)], entry, at, value);
}

template <int slot, class P, class S, class Shape>
RNNCC_DEVICE void store(const HeadRun<P, S, Shape>& run, int entry, int64_t unit, float value) {
  publish<slot>(run, entry, unit, value);
  store_rest<slot>(run, entry, unit, value);
}

// Element (r, c) of a thread, as a function of a matrix's elements reads it. Where the head's matrix has none there, it
// reads another one, and stores nothing.
template <class R>
struct HeadElement {
  using Program = typename R::Program;
  using Held = HeldMatrices<Program, typename R::Shape>;
  const R& run;
  const typename R::Plan& plan;
  Held& held;
  int r, c;
  bool exists;
};

template <int slot, class R>
RNNCC_DEVICE float load(const HeadElement<R>& at, int entry, int64_t unit) {
  using P = typename R::Program;
  if constexpr (is_held<P, typename R::Shape>(slot))
    return at.held.of[held_before<P, typename R::Shape>(slot)][at.r][at.c];
  else
    return load<slot>(at.run, entry, unit);
}

template <int slot, class R>
RNNCC_DEVICE void store(const HeadElement<R>& at, int entry, int64_t unit, float value) {
  using P = typename R::Program;
  if constexpr (is_held<P, typename R::Shape>(slot))
    at.held.of[held_before<P, typename R::Shape>(slot)][at.r][at.c] = value;
  if (at.exists) store_rest<slot>(at.run, entry, unit, value);
}

}  // namespace rnncc
