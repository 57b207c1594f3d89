// The driver of one step. Where the alternating kernel (sequence.cuh) lets CTAs wait for each other, a launch ends here,
// and products are made in between (single.h). A thread works on one element of a stage, and finds it again in
// the next stage of the same width.
#pragma once

#include "single_call.h"
#include "matrices.cuh"

namespace rnncc {

// The only step of a program, as place.cuh reads it.
template <class P, class S>
struct SingleStep {
  using Program = P;
  using Scalar = S;
  const SingleCall<P>& plan;
  const Direction<P>& own;
  static constexpr int64_t n = 0, t = 0;

  static constexpr bool ADDS_BIASES = true;
  template <int slot>
  RNNCC_DEVICE float bias(int64_t unit) const {
    constexpr int stream = streams_before(P::tables, slot);
    const BiasPlace& place = plan.biases[stream];
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < MOST_BIASES; ++b)
      if (place.base[b]) sum += to_float(static_cast<const S*>(place.base[b])[unit]);
    return sum;
  }
  RNNCC_DEVICE char* images() const { return global<char>(own.images); }
  RNNCC_DEVICE int64_t image_step() const { return 0; }
  // A product may read its operand from a tensor; then the operand has no image.
  RNNCC_DEVICE bool wants(const ImagePlace& image) const { return image.blocks > 0; }
  RNNCC_DEVICE int64_t time(int64_t) const { return 0; }
  RNNCC_DEVICE int64_t steps_of(int) const { return 1; }
  template <class Place>
  RNNCC_DEVICE int64_t row_of(const Place& place, int64_t, int64_t, int entry) const {
    return entry * place.row;
  }
};

// The accumulators of an element.
struct SingleSums {
  const SumPlace* places;
  int entry, unit;

  RNNCC_DEVICE float operator[](int accumulator) const {
    const SumPlace& place = places[accumulator];
    const float* at = place.base + entry * place.row + unit;
    float total = *at;
    for (int64_t part = 1; part < place.parts; ++part) total += *(at += place.part);
    return total;
  }
};

template <class F>
RNNCC_DEVICE void each_element(int width, int64_t batch, const F& work) {
  const int all = width * int(batch);
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS) {
    const int entry = i / width;
    work(entry, i - entry * width);
  }
}

template <int stage, class R>
RNNCC_DEVICE void single_stage(const R& run) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  if constexpr (info.row != RowOperator::none) {
    extern __shared__ __align__(128) char shared[];
    for (int entry = blockIdx.x; entry < run.plan.batch; entry += gridDim.x)
      row_or_elements<stage>(run, entry, reinterpret_cast<float*>(shared));
  } else {
    using F = stage_of<typename R::Program, stage>;
    constexpr int first = accumulators_before(R::Program::tables, stage);
    const int width = int(run.plan.dims[info.width]), heads = int(run.plan.dims[info.blocks]);
    each_element(width, run.plan.batch, [&](int entry, int unit) {
      const int head = heads == 1 ? 0 : unit / (width / (info.parts * heads)) % heads;
      const Element at = {entry, unit, head, true};
      const auto early = F::early(run, at);
      const auto late = F::late(run, at);
      F::store_rest(run, at, F::compute(run, at, early, late, SingleSums{run.plan.sums + first, entry, unit}));
    });
  }
}

template <int stage, class R>
RNNCC_DEVICE void single_stages(const R& run) {
  if constexpr (stage < R::Program::tables.stage_count) {
    if (run.plan.launch == launch_of(R::Program::tables, stage)) single_stage<stage>(run);
    single_stages<stage + 1>(run);
  }
}

// After the only step an edge has what its slot holds.
template <int f, class R>
RNNCC_DEVICE void single_finals(const R& run) {
  if constexpr (f < R::Program::tables.final_count) {
    constexpr SlotInfo edge = R::Program::tables.slots[R::Program::tables.finals[f].slot];
    const OutputPlace& place = run.own.finals[f];
    if (place.base)
      each_element(int(run.plan.dims[edge.width]), run.plan.batch, [&](int entry, int unit) {
        global<float>(place.base)[entry * place.row + unit] = load<edge.link>(run, entry, unit);
      });
    single_finals<f + 1>(run);
  }
}

template <class P, class S>
RNNCC_DEVICE void run_single(const SingleCall<P>& call) {
  const SingleStep<P, S> run = {call, call.own};
  single_stages<0>(run);
  if (call.launch == call.last) single_finals<0>(run);
}

}  // namespace rnncc
