// A loop without products whose steps are no affine maps of the carries. Warps work on slices of time side by side all the same, by
// Newton's method for the carries at which the slices begin. This is multiple shooting; DEER (arXiv:2309.12252) and ParaRNN
// (arXiv:2510.21450) have slices of one step.
//
// Tiles and slices are those of a scan. In an iteration each warp runs its slice from an estimate of its first carries, and
// multiplies the Jacobians of the steps. The result is an affine map, which is the slice near that estimate. Maps are joined as in
// a scan, and tell the next estimates. The first slice begins at exact carries, so after n iterations the first n slices are
// exact. Where no estimate has moved by more than TOLERANCE, the tile has settled: its steps run once more from the last
// estimates, and are written.
//
// A tile may not settle within MOST_ITERATIONS, where steps amplify or carries are not finite. It then runs slice after slice,
// which is the loop itself, and some of the tiles after it do so without any iterations.
//
// `Step` has, besides what a walk needs:
//   tangent             computes the carries from those before, and slopes: the derivatives by the carries before
//   SLOPES, ENTRIES     which slopes may not be zero, of one step and of any number of steps (sets)
#pragma once

#include "scan.cuh"

namespace rnncc {

constexpr int MOST_ITERATIONS = 16, LONGEST_PAUSE = 63;
// A fraction of the carry's size (Trace), 64 times what the rounding of a carry may be. After one more iteration, what
// is left of a movement is of the order of its square.
constexpr float TOLERANCE = 1.0f / (1 << 18);
constexpr float LEAST_NORMAL = 0x1p-126f;  // the smallest float with all its digits

// The map next = offset + slopes · (carry - centre). At the centre the result is the offset, to the last bit. If slopes
// · centre had been subtracted beforehand, large slopes would cost the result its digits.
template <int N, uint64_t ENTRIES>
struct CentredMap : AffineMap<N, ENTRIES> {
  using Base = AffineMap<N, ENTRIES>;
  static constexpr int NUMBERS = Base::NUMBERS + N;
  float centre[N];

  RNNCC_DEVICE void clear() {
    Base::clear();
#pragma unroll
    for (int i = 0; i < N; ++i) centre[i] = 0.0f;
  }
  RNNCC_DEVICE void begin(const CentredMap& first) {
    Base::clear();
#pragma unroll
    for (int i = 0; i < N; ++i) this->offset[i] = centre[i] = first.centre[i];
  }
  RNNCC_DEVICE void apply(float (&carry)[N]) const {
    float next[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      next[i] = this->offset[i];
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (has(ENTRIES, i * N + k)) next[i] = fmaf(this->slope[i][k], carry[k] - centre[k], next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) carry[i] = next[i];
  }
  RNNCC_DEVICE void then(const CentredMap& next) {
    next.apply(this->offset);
    this->template turn<ENTRIES>(next.slope);
  }
  RNNCC_DEVICE float* number(int n) { return n < Base::NUMBERS ? Base::number(n) : &centre[n - Base::NUMBERS]; }
};

template <class Step_, int VEC_, int STEPS_, int WARPS_, int DEPTH_>
struct NewtonShape : ScanShape<Step_, VEC_, STEPS_, WARPS_, DEPTH_, CentredMap<Step_::EDGES, Step_::ENTRIES>> {
  using Base = ScanShape<Step_, VEC_, STEPS_, WARPS_, DEPTH_, CentredMap<Step_::EDGES, Step_::ENTRIES>>;
  static_assert(Step_::TOTALS == 0, "steps run several times");
  static_assert(DEPTH_ > 1, "steps read several times");
  // Shared memory holds what a scan's holds, and each CTA's answers in two iterations.
  static constexpr int shared_bytes(int ctas) { return Base::shared_bytes(ctas) + (ctas > 1 ? ctas * 8 : 0); }
};

// The carries that slices make of those at a tile's beginning, map by map. `size` is the size of a carry, plus the
// sizes of the carries before the last map as far as that passes them on. A slope above 1 counts as 1: slices that
// amplify rounding could begin anywhere otherwise.
template <class S>
struct Trace {
  static constexpr int N = S::Step::EDGES;
  float carry[S::VEC][N], size[S::VEC][N];

  RNNCC_DEVICE void apply(int j, const typename S::Map& map) {
    float before[N];
#pragma unroll
    for (int e = 0; e < N; ++e) before[e] = carry[j][e];
    map.apply(carry[j]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      size[j][i] = fabsf(carry[j][i]);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (has(S::Step::ENTRIES, i * N + k)) size[j][i] += fminf(fabsf(map.slope[i][k]), 1.0f) * fabsf(before[k]);
    }
  }
  RNNCC_DEVICE void apply(const float* from) {
#pragma unroll
    for (int j = 0; j < S::VEC; ++j) apply(j, Exchange<S>::load(from, j));
  }
  // Sets `start` to the carries here, where they are finite. Returns whether `start` was there already.
  RNNCC_DEVICE bool settle(float (&start)[S::VEC][N]) const {
    bool settled = true;
#pragma unroll
    for (int j = 0; j < S::VEC; ++j)
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const bool finite = fabsf(carry[j][e]) < infinity<float>();
        settled &= finite && fabsf(carry[j][e] - start[j][e]) <= fmaf(TOLERANCE, size[j][e], LEAST_NORMAL);
        start[j][e] = finite ? carry[j][e] : start[j][e];
      }
    return settled;
  }
  RNNCC_DEVICE bool is_finite() const {
    bool finite = true;
#pragma unroll
    for (int j = 0; j < S::VEC; ++j)
#pragma unroll
      for (int e = 0; e < N; ++e) finite &= fabsf(carry[j][e]) < infinity<float>();
    return finite;
  }
};

// Whether `here` is true in any thread of the cluster. The CTAs' answers lie after their maps.
template <class S>
RNNCC_DEVICE bool in_any(const Exchange<S>& exchange, int parity, bool here) {
  bool found = __syncthreads_or(here);
  if constexpr (HAS_CLUSTERS)
    if (exchange.ctas > 1) {
      float* const answers = exchange.map_of_cta(2, 0) - exchange.lane + parity * exchange.ctas;
      if (threadIdx.x < exchange.ctas)
        store4(peer_address(shared_address(answers + exchange.rank), threadIdx.x), found ? 1.0f : 0.0f);
      __syncwarp();
      cluster_barrier();
      for (int r = 0; r < exchange.ctas; ++r) found |= answers[r] != 0.0f;
    }
  return found;
}

// Joins the maps of all slices. It sets `start` to the next estimate of the carries where the warp's slice begins, and
// moves `carry` from the tile's beginning to its end. Returns whether all estimates have settled. `number` counts
// iterations from the first tile on.
template <class S>
RNNCC_DEVICE bool iterate(const Exchange<S>& exchange, int number, bool valid, typename S::Map (&own)[S::VEC],
                          float (&start)[S::VEC][S::Step::EDGES], float (&carry)[S::VEC][S::Step::EDGES]) {
  const int parity = number & 1, phase = number >> 1 & 1;
#pragma unroll
  for (int j = 0; j < S::VEC; ++j) exchange.store(exchange.map_of_warp(parity, exchange.warp), j, own[j]);
  __syncthreads();
  Trace<S> trace = {}, begin;
  copy(carry, trace.carry);
  if (exchange.ctas > 1) {
    typename S::Map before[S::VEC];
    exchange.send_joined(parity, before);
    exchange.wait(parity, phase);
    for (int r = 0; r < exchange.ctas; ++r) {
      if (r == exchange.rank) begin = trace;
      trace.apply(exchange.map_of_cta(parity, r));
    }
#pragma unroll
    for (int j = 0; j < S::VEC; ++j)
      if (exchange.warp > 0) begin.apply(j, before[j]);
  } else {
#pragma unroll
    for (int w = 0; w < S::WARPS; ++w) {
      if (w == exchange.warp) begin = trace;
      trace.apply(exchange.map_of_warp(parity, w));
    }
  }
  const bool settled = begin.settle(start) && trace.is_finite();
  copy(trace.carry, carry);
  return !in_any(exchange, parity, valid && !settled);
}

template <class S>
RNNCC_DEVICE void newton(const ScanCall<typename S::Step>& call, const ScanTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using Map = typename S::Map;
  using L = typename S::L;
  constexpr int N = Step::EDGES;
  // How many of the steps that are written are unrolled. Where all are, loops with several float32 carries spill
  // registers. But all must be where values of rows stand in registers, which have no addresses.
  constexpr int UNROLLED = sizeof(typename Step::Element) == 4 && N > 1 && Step::ROW_READS == 0 ? 4 : S::STEPS;
  extern __shared__ __align__(128) char shared[];
  float* const floats = reinterpret_cast<float*>(shared + S::SOURCE_BYTES);
  const int ctas = cluster_ctas(), rank = blockIdx.x % ctas, warp = threadIdx.x / 32, slice = rank * S::WARPS + warp;
  const Exchange<S> exchange{floats, ctas, rank, warp, int(threadIdx.x % 32)};
  const int tile = ctas * S::WARPS * S::STEPS;
  const uint32_t index = blockIdx.x / ctas * 32;
  L lane;
  lane.begin(call, own, index + threadIdx.x % 32);
  float carry[S::VEC][N];
  lane.initial(own, carry);
  typename S::Source source;
  source.begin(call, own, lane, index, shared + warp * S::Source::WARP_BYTES, slice * S::STEPS, tile);
  exchange.begin();

  // How many tiles more run without iterations, and how many did so the last time.
  int pause = 0, paused = 0;
  const int shortest = lane.shortest(call), longest = lane.longest(call);
  for (int base = 0, number = 0; base < longest; base += tile) {
    const int first = base + slice * S::STEPS;
    source.advance(own, lane, first);
    float start[S::VEC][N], end[S::VEC][N];
    copy(carry, start);
    // Computes the map of the slice near `start`.
    const auto shoot = [&](auto inner, Map(&near)[S::VEC]) {
      float now[S::VEC][N];
      copy(start, now);
#pragma unroll
      for (int j = 0; j < S::VEC; ++j) near[j].clear();
#pragma unroll
      for (int s = 0; s < S::STEPS; ++s) {
        const typename L::Values v = lane.template values<inner>(source, s, first + s);
#pragma unroll
        for (int j = 0; j < S::VEC; ++j) {
          float slope[N][N], next[N];
#pragma unroll
          for (int e = 0; e < N; ++e) next[e] = now[j][e];
          Step::tangent(v.read[j], v.row, lane.vector[j], call.constants, next, slope);
          // Beyond the end nothing changes.
          if (!inner && first + s >= lane.rows.steps) continue;
          near[j].template turn<Step::SLOPES>(slope);
#pragma unroll
          for (int e = 0; e < N; ++e) now[j][e] = next[e];
        }
      }
#pragma unroll
      for (int j = 0; j < S::VEC; ++j)
#pragma unroll
        for (int i = 0; i < N; ++i) {
          near[j].offset[i] = now[j][i];
          near[j].centre[i] = start[j][i];
        }
    };
    bool settled = false;
    const int most = pause > 0 ? 0 : MOST_ITERATIONS;
    for (int i = 0; i < most && !settled; ++i, ++number) {
      Map near[S::VEC];
      if (first + S::STEPS < shortest)
        shoot(Constant<true>(), near);
      else
        shoot(Constant<false>(), near);
      copy(carry, end);
      settled = iterate(exchange, number, lane.valid, near, start, end);
    }
    if (settled) {
      paused = 0;
    } else if (pause > 0) {
      --pause;
    } else {
      pause = paused = min(2 * paused + 1, LONGEST_PAUSE);
    }
    const int turns = settled ? 1 : ctas * S::WARPS;
    for (int turn = 0; turn < turns; ++turn) {
      if (settled || turn == slice) {
        if (!settled) copy(carry, start);
        typename L::Places places = lane.places(own, first);
        float nothing[S::VEC][L::TOTALS] = {};
#pragma unroll UNROLLED
        for (int s = 0; s < S::STEPS; ++s)
          lane.template step<false>(call, own, lane.template values<false>(source, s, first + s), {}, first + s, places,
                                    start, nothing);
        if (!settled) exchange.put_carry(turn & 1, start);
      }
      if (!settled) {
        exchange.barrier();
        exchange.get_carry(turn & 1, carry);
      }
    }
    if (settled) copy(end, carry);
  }
  source.end();
  if (slice == 0) lane.last(own, carry);
}

}  // namespace rnncc
