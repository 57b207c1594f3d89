// A loop without products whose steps are affine maps of the carries. Warps work on slices of time side by side.
//
// A slice is STEPS steps, and a tile is one slice per warp of all CTAs of a cluster. Each warp joins the maps of its
// slice, and puts the joined map where all can read it. It applies the maps of the slices before its own to the carries
// at the tile's beginning, in their order. Then it runs its steps. So a tile costs one barrier, everything is read and
// written once, and sums are taken in a fixed order. Meanwhile the next tile's values are on their way.
//
// Joined maps are sums in another order than the loop's. A joined map may not be finite, where an input is infinite or
// products of slopes overflow. It then says less than the steps themselves, since 0 · ∞ is not what a step makes that
// starts anew. So the slices of such a tile run one after the other. Channels with finite maps still begin each slice
// as the maps say.
#pragma once

#include "source.cuh"

namespace rnncc {

// The map next = slopes · carry + offset. Elements of `slope` that are not in ENTRIES are zero.
template <int N, uint64_t ENTRIES>
struct AffineMap {
  static constexpr int NUMBERS = count_below(ENTRIES, N* N) + N;
  float slope[N][N], offset[N];

  RNNCC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      offset[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < N; ++j) slope[i][j] = i == j ? 1.0f : 0.0f;
    }
  }
  // Joins the map of one step, which comes after this map. Its slopes that are not in SLOPES are zero.
  template <uint64_t SLOPES>
  RNNCC_DEVICE void then(const float (&by)[N][N], const float (&and_offset)[N]) {
    float next[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      next[i] = and_offset[i];
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (has(SLOPES, i * N + k)) next[i] = fmaf(by[i][k], offset[k], next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) offset[i] = next[i];
    turn<SLOPES>(by);
  }
  // Joins the map of several steps.
  RNNCC_DEVICE void then(const AffineMap& next) { then<ENTRIES>(next.slope, next.offset); }
  // Begins a joined map. Its first map will be the argument.
  RNNCC_DEVICE void begin(const AffineMap&) { clear(); }
  // Joins the slopes of a map alone.
  template <uint64_t SLOPES>
  RNNCC_DEVICE void turn(const float (&by)[N][N]) {
    const AffineMap before = *this;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j) {
        slope[i][j] = 0.0f;
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (has(SLOPES, i * N + k) && has(ENTRIES, k * N + j))
            slope[i][j] = fmaf(by[i][k], before.slope[k][j], slope[i][j]);
      }
  }
  RNNCC_DEVICE void apply(float (&carry)[N]) const {
    float next[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      next[i] = offset[i];
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (has(ENTRIES, i * N + j)) next[i] = fmaf(slope[i][j], carry[j], next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) carry[i] = next[i];
  }
  // The n-th of the map's NUMBERS.
  RNNCC_DEVICE float* number(int n) {
    int at = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (has(ENTRIES, i * N + j) && at++ == n) return &slope[i][j];
      if (at++ == n) return &offset[i];
    }
    return nullptr;
  }
};

template <class Step_, int VEC_, int STEPS_, int WARPS_, int DEPTH_,
          class Map_ = AffineMap<Step_::EDGES, Step_::ENTRIES>>
struct ScanShape {
  using Step = Step_;
  static constexpr int VEC = VEC_, STEPS = STEPS_, WARPS = WARPS_, DEPTH = DEPTH_, THREADS = WARPS * 32;
  using L = Lane<Step, VEC>;
  using Source = SourceOf<L, STEPS, DEPTH>;
  using Map = Map_;
  static constexpr int MAP_FLOATS = Map::NUMBERS * VEC * 32, CARRY_FLOATS = Step::EDGES * VEC * 32;
  // Shared memory holds the sources, the warps' maps of two tiles, the carries of two turns, and two barriers. In a
  // cluster it also holds the CTAs' maps of two tiles. After the loop it holds the warps' totals.
  static constexpr int SOURCE_BYTES = WARPS * Source::WARP_BYTES;
  static constexpr int shared_bytes(int ctas) {
    const int in_loop =
        SOURCE_BYTES + 4 * (2 * WARPS * MAP_FLOATS + 2 * CARRY_FLOATS) + 16 + (ctas > 1 ? ctas * 8 * MAP_FLOATS : 0);
    const int after = WARPS * Step::TOTALS * VEC * 128;
    return in_loop > after ? in_loop : after;
  }
};

// The values of a tile that the CTAs of a cluster share.
template <class S>
struct Exchange {
  using Map = typename S::Map;
  static constexpr int N = S::Step::EDGES, VEC = S::VEC;
  float* shared;
  int ctas, rank, warp, lane;

  RNNCC_DEVICE float* map_of_warp(int parity, int w) const {
    return shared + (parity * S::WARPS + w) * S::MAP_FLOATS + lane;
  }
  RNNCC_DEVICE float* carry_of(int parity) const {
    return shared + 2 * S::WARPS * S::MAP_FLOATS + parity * S::CARRY_FLOATS + lane;
  }
  // The barriers that count the bytes of the CTAs' maps. Tiles use the two in turn.
  RNNCC_DEVICE uint32_t arrived(int parity) const {
    return shared_address(shared + 2 * S::WARPS * S::MAP_FLOATS + 2 * S::CARRY_FLOATS) + 8 * parity;
  }
  RNNCC_DEVICE float* map_of_cta(int parity, int r) const {
    return shared + 2 * S::WARPS * S::MAP_FLOATS + 2 * S::CARRY_FLOATS + 4 + (parity * ctas + r) * S::MAP_FLOATS + lane;
  }
  // Call it before the first tile.
  RNNCC_DEVICE void begin() const {
    if constexpr (HAS_CLUSTERS)
      if (ctas > 1) begin_barriers(arrived(0), 2, ctas * S::MAP_FLOATS * 4);
  }
  // A barrier of all threads of the cluster.
  RNNCC_DEVICE void barrier() const {
    if constexpr (HAS_CLUSTERS)
      if (ctas > 1) return cluster_barrier();
    __syncthreads();
  }
  RNNCC_DEVICE static Map load(const float* from, int j) {
    Map map;
    map.clear();
#pragma unroll
    for (int n = 0; n < Map::NUMBERS; ++n) *map.number(n) = from[(n * VEC + j) * 32];
    return map;
  }
  RNNCC_DEVICE static void store(float* to, int j, Map& map) {
#pragma unroll
    for (int n = 0; n < Map::NUMBERS; ++n) to[(n * VEC + j) * 32] = *map.number(n);
  }
  // Applies the maps at `from` to all of a lane's channels.
  RNNCC_DEVICE static void apply(const float* from, float (&carry)[VEC][N]) {
#pragma unroll
    for (int j = 0; j < VEC; ++j) load(from, j).apply(carry[j]);
  }
  // Joins the warps' maps, and sends the result to all CTAs; the warps share the receivers. A number that is not finite
  // stays so. `before` gets the joined maps of the warps before this one.
  RNNCC_DEVICE void send_joined(int parity, Map (&before)[VEC]) const {
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      Map joined;
      joined.begin(load(map_of_warp(parity, 0), j));
#pragma unroll
      for (int w = 0; w < S::WARPS; ++w) {
        if (w == warp) before[j] = joined;
        joined.then(load(map_of_warp(parity, w), j));
      }
      if constexpr (HAS_CLUSTERS)
        for (int r = warp; r < ctas; r += S::WARPS) {
          const uint32_t to = peer_address(shared_address(map_of_cta(parity, rank)), r),
                         barrier = peer_address(arrived(parity), r);
#pragma unroll
          for (int n = 0; n < Map::NUMBERS; ++n) send4(to + (n * VEC + j) * 128, barrier, *joined.number(n));
        }
    }
  }
  // Waits until the maps of all CTAs have arrived. `phase` changes with each tile of the same parity.
  RNNCC_DEVICE void wait(int parity, int phase) const {
    if constexpr (HAS_CLUSTERS) {
      barrier_wait(arrived(parity), phase);
      if (threadIdx.x == 0) barrier_expect(arrived(parity), ctas * S::MAP_FLOATS * 4);
    }
  }
  // Sends a slice's last carries to all CTAs.
  RNNCC_DEVICE void put_carry(int parity, const float (&carry)[VEC][N]) const {
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < N; ++e) {
        float* const to = carry_of(parity) + (e * VEC + j) * 32;
        if constexpr (HAS_CLUSTERS)
          for (int r = 0; r < ctas; ++r) store4(peer_address(shared_address(to), r), carry[j][e]);
        else
          *to = carry[j][e];
      }
  }
  RNNCC_DEVICE void get_carry(int parity, float (&carry)[VEC][N]) const {
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < N; ++e) carry[j][e] = carry_of(parity)[(e * VEC + j) * 32];
  }
};

template <int VEC, int N>
RNNCC_DEVICE void copy(const float (&from)[VEC][N], float (&to)[VEC][N]) {
#pragma unroll
  for (int j = 0; j < VEC; ++j)
#pragma unroll
    for (int e = 0; e < N; ++e) to[j][e] = from[j][e];
}

template <class S>
RNNCC_DEVICE void scan(const ScanCall<typename S::Step>& call, const ScanTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using Map = typename S::Map;
  using L = typename S::L;
  constexpr int N = Step::EDGES;
  extern __shared__ __align__(128) char shared[];
  float* const floats = reinterpret_cast<float*>(shared + S::SOURCE_BYTES);
  const int ctas = cluster_ctas(), rank = blockIdx.x % ctas, warp = threadIdx.x / 32, slice = rank * S::WARPS + warp;
  const Exchange<S> exchange{floats, ctas, rank, warp, int(threadIdx.x % 32)};
  const int tile = ctas * S::WARPS * S::STEPS;
  const uint32_t index = blockIdx.x / ctas * 32;
  L lane;
  lane.begin(call, own, index + threadIdx.x % 32);
  float carry[S::VEC][N], total[S::VEC][L::TOTALS] = {};
  lane.initial(own, carry);
  typename S::Source source;
  source.begin(call, own, lane, index, shared + warp * S::Source::WARP_BYTES, slice * S::STEPS, tile);
  exchange.begin();

  // All warps of the cluster have the same channels.
  const int shortest = lane.shortest(call), longest = lane.longest(call);
  for (int base = 0, number = 0; base < longest; base += tile, ++number) {
    const int first = base + slice * S::STEPS, parity = number & 1, phase = number >> 1 & 1;
    source.advance(own, lane, first);
    typename L::Prepared prepared[S::STEPS];
    Map joined[S::VEC];
#pragma unroll
    for (int j = 0; j < S::VEC; ++j) joined[j].clear();
    const auto join = [&](auto inner) {
#pragma unroll
      for (int s = 0; s < S::STEPS; ++s) {
        const typename L::Values v = lane.template values<inner>(source, s, first + s);
#pragma unroll
        for (int j = 0; j < S::VEC; ++j) {
          float slope[N][N], offset[N];
          Step::prepare(v.read[j], v.row, lane.vector[j], call.constants, prepared[s].of[j]);
          Step::map(v.read[j], v.row, lane.vector[j], call.constants, prepared[s].of[j], slope, offset);
          // Beyond the end nothing changes.
          if (inner || first + s < lane.rows.steps) joined[j].template then<Step::SLOPES>(slope, offset);
        }
      }
    };
    const bool is_inner = first + S::STEPS < shortest;
    if (is_inner)
      join(Constant<true>());
    else
      join(Constant<false>());
#pragma unroll
    for (int j = 0; j < S::VEC; ++j) exchange.store(exchange.map_of_warp(parity, warp), j, joined[j]);
    __syncthreads();
    // `before` gets the carries where the tile begins, `start` those where the warp's slice begins, and `carry` those
    // where the tile ends.
    float before[S::VEC][N], start[S::VEC][N];
    copy(carry, before);
    if (ctas > 1) {
      Map own_before[S::VEC];
      exchange.send_joined(parity, own_before);
      exchange.wait(parity, phase);
      for (int r = 0; r < ctas; ++r) {
        if (r == rank) copy(carry, start);
        exchange.apply(exchange.map_of_cta(parity, r), carry);
      }
#pragma unroll
      for (int j = 0; j < S::VEC; ++j) own_before[j].apply(start[j]);
    } else {
#pragma unroll
      for (int w = 0; w < S::WARPS; ++w) {
        if (w == warp) copy(carry, start);
        exchange.apply(exchange.map_of_warp(parity, w), carry);
      }
    }
    // Whether the maps tell these carries. If a number of a map is not finite, neither is the carry that it makes.
    // Every map has slopes on the diagonal, so such a carry stays so, and it is enough to look at the last carries.
    bool told[S::VEC], all_told = true;
#pragma unroll
    for (int j = 0; j < S::VEC; ++j) {
      told[j] = true;
#pragma unroll
      for (int e = 0; e < N; ++e) told[j] &= fabsf(carry[j][e]) < infinity<float>();
      all_told &= told[j];
    }
    // All warps of the cluster have read the same maps, so they agree. Lanes beyond the last channel do not count: they
    // read zeros, of which steps may make anything.
    const bool in_turns = __any_sync(~0u, lane.valid && !all_told);
    typename L::Places places = lane.places(own, first);
    const auto run = [&](auto inner) {
#pragma unroll
      for (int s = 0; s < S::STEPS; ++s)
        lane.template step<inner>(call, own, lane.template values<inner>(source, s, first + s), prepared[s], first + s,
                                  places, start, total);
    };
    if (is_inner && !in_turns) {
      run(Constant<true>());
    } else if (!in_turns) {
      run(Constant<false>());
    } else {
      for (int turn = 0; turn < ctas * S::WARPS; ++turn) {
        if (turn == slice) {
#pragma unroll
          for (int j = 0; j < S::VEC; ++j)
#pragma unroll
            for (int e = 0; e < N; ++e) start[j][e] = told[j] ? start[j][e] : before[j][e];
          run(Constant<false>());
          exchange.put_carry(turn & 1, start);
        }
        exchange.barrier();
        exchange.get_carry(turn & 1, before);
      }
#pragma unroll
      for (int j = 0; j < S::VEC; ++j)
#pragma unroll
        for (int e = 0; e < N; ++e) carry[j][e] = told[j] ? carry[j][e] : before[j][e];
    }
  }
  source.end();
  if (slice == 0) lane.last(own, carry);
  if constexpr (Step::TOTALS > 0) {
    float* const totals = reinterpret_cast<float*>(shared) + threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Step::TOTALS; ++i)
#pragma unroll
      for (int j = 0; j < S::VEC; ++j) totals[((warp * Step::TOTALS + i) * S::VEC + j) * 32] = total[j][i];
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < S::WARPS; ++w)
#pragma unroll
      for (int i = 0; i < Step::TOTALS; ++i)
#pragma unroll
        for (int j = 0; j < S::VEC; ++j) total[j][i] += totals[((w * Step::TOTALS + i) * S::VEC + j) * 32];
    lane.put_totals(call, own, rank, total);
  }
}

}  // namespace rnncc
