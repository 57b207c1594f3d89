// A loop without products whose steps must follow each other. A lane walks through all steps of its channels, and reads
// STEPS steps ahead or more.
#pragma once

#include "source.cuh"

namespace rnncc {

template <class Step_, int VEC_, int STEPS_, int WARPS_, int DEPTH_>
struct WalkShape {
  using Step = Step_;
  static constexpr int VEC = VEC_, STEPS = STEPS_, WARPS = WARPS_, DEPTH = DEPTH_, THREADS = WARPS * 32;
  using L = Lane<Step, VEC>;
  using Source = SourceOf<L, STEPS, DEPTH>;
  static constexpr int shared_bytes(int) { return WARPS * Source::WARP_BYTES; }
};

template <class S>
RNNCC_DEVICE void walk(const ScanCall<typename S::Step>& call, const ScanTensors<typename S::Step>& own) {
  using L = typename S::L;
  extern __shared__ __align__(128) char shared[];
  const uint32_t index = blockIdx.x * uint32_t(S::THREADS) + threadIdx.x;
  L lane;
  lane.begin(call, own, index);
  float carry[S::VEC][L::EDGES], total[S::VEC][L::TOTALS] = {};
  lane.initial(own, carry);
  typename S::Source source;
  source.begin(call, own, lane, index / 32 * 32, shared + threadIdx.x / 32 * S::Source::WARP_BYTES, 0, S::STEPS);
  const int shortest = lane.shortest(call), longest = lane.longest(call);
  for (int first = 0; first < longest; first += S::STEPS) {
    source.advance(own, lane, first);
    typename L::Places places = lane.places(own, first);
    const auto part = [&](auto inner) {
#pragma unroll
      for (int s = 0; s < S::STEPS; ++s)
        lane.template step<inner>(call, own, lane.template values<inner>(source, s, first + s), {}, first + s, places,
                                  carry, total);
    };
    if (first + S::STEPS < shortest)
      part(Constant<true>());
    else
      part(Constant<false>());
  }
  source.end();
  lane.last(own, carry);
  lane.put_totals(call, own, 0, total);
}

}  // namespace rnncc
