// A loop without products whose steps must follow each other: a lane walks through all steps of its channels. What it reads
// comes STEPS steps ahead.
#pragma once

#include "lanes.cuh"

namespace rnncc {

template <class Step_, int VEC_, int STEPS_, int WARPS_>
struct WalkShape {
  using Step = Step_;
  static constexpr int VEC = VEC_, STEPS = STEPS_, WARPS = WARPS_, THREADS = WARPS * 32;
  static constexpr int shared_bytes(int) { return 0; }
};

template <class S>
RNNCC_DEVICE void walk(const ScanCall<typename S::Step>& call, const ScanTensors<typename S::Step>& own) {
  using L = Lane<typename S::Step, S::VEC>;
  L lane;
  lane.begin(call, own, blockIdx.x * uint32_t(S::THREADS) + threadIdx.x);
  float carry[S::VEC][L::EDGES], total[S::VEC][L::TOTALS] = {};
  lane.initial(own, carry);
  typename L::Raw raw[S::STEPS];
  lane.fetch(own, 0, raw);
  for (int first = 0; first < call.steps; first += S::STEPS) {
    typename L::Raw next[S::STEPS];
    lane.fetch(own, first + S::STEPS, next);
#pragma unroll
    for (int s = 0; s < S::STEPS; ++s)
      lane.step(call, own, lane.values(raw[s], first + s), {}, first + s, carry, total);
#pragma unroll
    for (int s = 0; s < S::STEPS; ++s) raw[s] = next[s];
  }
  lane.last(own, carry);
  lane.put_totals(call, own, 0, total);
}

}  // namespace rnncc
