// A fused loop whose operands go to all CTAs of the cluster; see cluster.cuh.
#pragma once

#include "cluster.cuh"
#include "../device/reduce.cuh"

namespace rnncc {

// A CTA has UNIT_WARPS × K_WARPS warps. A warp has UNIT_BLOCKS blocks of 8 units, and one of K_WARPS ranges of the
// terms. REGISTER_TILES has a number for each phase.
template <class Step_, int H_, int CTAS_, int UNIT_WARPS_, int K_WARPS_, int UNIT_BLOCKS_, int ENTRY_TILES_,
          int LANE_ROWS_, int... REGISTER_TILES_>
struct GatherShape {
  using Step = Step_;
  using E = typename Step::Element;
  static constexpr int H = H_, CTAS = CTAS_, UNIT_WARPS = UNIT_WARPS_, K_WARPS = K_WARPS_, UNIT_BLOCKS = UNIT_BLOCKS_,
                       ENTRY_TILES = ENTRY_TILES_;
  static constexpr int UNITS = UNIT_WARPS * UNIT_BLOCKS * 8, DIM = UNITS * CTAS, ENTRIES = ENTRY_TILES * 8;
  static constexpr int THREADS = UNIT_WARPS * K_WARPS * 32;
  static constexpr int PHASES = Step::PHASES, LAST = PHASES - 1;
  static constexpr int REGISTER_TILES[] = {REGISTER_TILES_...};
  static_assert(sizeof...(REGISTER_TILES_) == PHASES);
  using Block = OperandBlock<E>;
  // K warp u % K_WARPS owns unit block u: it adds up the block's sums, and does its elementwise part.
  static constexpr int OWNED = ceil_div(UNIT_BLOCKS, K_WARPS);
  // A step of one phase has two buffers for its operands, in turns. In a longer step each phase has one: who sends the
  // operands of a phase again has received those of another phase, which all others sent after they had read the
  // buffer.
  static constexpr int BUFFERS = PHASES == 1 ? 2 : 1;
  // Each item of a head gives its part to a reduction.
  static constexpr int SOURCES = CTAS * UNIT_WARPS * UNIT_BLOCKS;

  template <int P, class = void>
  struct Phase : PhaseOf<Step, P> {
    using PhaseOf<Step, P>::SUMS, PhaseOf<Step, P>::OPERANDS, PhaseOf<Step, P>::REDUCTIONS;
    static constexpr int HALVES = SUMS * UNIT_BLOCKS;
    static constexpr int DEPTH = OPERANDS * DIM, RANGE = DEPTH / K_WARPS;  // all terms; terms per warp
    using Matrix =
        typename MatrixIf<(SUMS > 0), Resident<E, at_least_one(RANGE / 32), at_least_one(HALVES), REGISTER_TILES[P] / 2,
                                               rows_of_lane(HALVES, LANE_ROWS_)>>::type;
    // A buffer has the operands. Behind them it has, per tile, what items give to the reductions.
    using Given = Parts<at_least_one(REDUCTIONS), SOURCES, 8>;
    static constexpr int TILE_BYTES = DEPTH / 8 * Block::BYTES, REDUCED_BEGIN = ENTRY_TILES * TILE_BYTES;
    static constexpr int REDUCED_BYTES = REDUCTIONS > 0 ? ENTRY_TILES * Given::BYTES : 0,
                         BUFFER_BYTES = REDUCED_BEGIN + REDUCED_BYTES;
    // A barrier expects all bytes of the buffer, so the last piece must be whole.
    static_assert(CTAS == 1 || REDUCTIONS * SOURCES % 4 == 0);
    static constexpr int MATRIX_BYTES = UNIT_WARPS * K_WARPS * Matrix::WARP_BYTES;
    // Where the phase's part of the operands and of the matrices begins and ends.
    static constexpr int OPERANDS_BEGIN = Phase<P - 1>::OPERANDS_END,
                         OPERANDS_END = OPERANDS_BEGIN + BUFFERS * BUFFER_BYTES;
    static constexpr int MATRICES_BEGIN = Phase<P - 1>::MATRICES_END, MATRICES_END = MATRICES_BEGIN + MATRIX_BYTES;
    static constexpr int MOST_HALVES = HALVES > Phase<P - 1>::MOST_HALVES ? HALVES : Phase<P - 1>::MOST_HALVES;
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int OPERANDS_END = 0, MATRICES_END = 0, MOST_HALVES = 0;
  };

  static constexpr int OPERAND_BYTES = Phase<LAST>::OPERANDS_END, MATRIX_BYTES = Phase<LAST>::MATRICES_END;
  static constexpr int PARTIAL_BYTES = (K_WARPS - 1) * UNIT_WARPS * ENTRY_TILES * Phase<LAST>::MOST_HALVES * 256;
  // [BUFFERS][PHASES][RANGES]: one for each range of a phase's operands, and one for its reductions.
  static constexpr bool REDUCES = LastPhase<Step>::FIRST_REDUCTION + LastPhase<Step>::REDUCTIONS > 0;
  static constexpr int RANGES = K_WARPS + REDUCES, BARRIERS = BUFFERS * PHASES * RANGES;
  using Memory = Traffic<Step, H, UNITS, ENTRIES, THREADS>;
  static constexpr int SHARED_BYTES = OPERAND_BYTES + MATRIX_BYTES + PARTIAL_BYTES + Memory::BYTES + 8 * BARRIERS;
  static_assert(H % 8 == 0 && DIM >= H && DIM % (32 * K_WARPS) == 0);
};

template <class S>
RNNCC_DEVICE void fused_gather(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  extern __shared__ __align__(128) char shared[];
  const uint32_t operands = shared_address(shared), matrices = operands + S::OPERAND_BYTES,
                 partial = matrices + S::MATRIX_BYTES, ring = partial + S::PARTIAL_BYTES,
                 barriers = ring + S::Memory::BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, q = lane % 4;
  // nvcc does not know how many warps there are. Where it knows that all have the same part in reductions, no shuffle of
  // theirs stands in a branch. Other kernels take more registers with this knowledge.
  constexpr bool ALL_UNITS = S::K_WARPS == 1 && S::REDUCES;
  const int unit_warp = ALL_UNITS ? warp : warp % S::UNIT_WARPS, k_warp = ALL_UNITS ? 0 : warp / S::UNIT_WARPS;
  const Seat seat = seat_of<S::CTAS>(call);
  const int first_unit = seat.rank * S::UNITS, own_unit = unit_warp * S::UNIT_BLOCKS * 8, unit0 = first_unit + own_unit,
            steps = seat.steps;

  Matrices<S> held;
  for_numbers<S::PHASES>([&](auto phase) {
    constexpr int P = decltype(phase)::value;
    using Phase = typename S::template Phase<P>;
    if constexpr (Phase::SUMS > 0)
      held.template of<P>().fill(matrices + Phase::MATRICES_BEGIN, warp, [&](int pair, int m, int i) {
        const int term = k_warp * Phase::RANGE + pair * 32 + q * 8, operand = term / S::DIM, k = term % S::DIM;
        const int half = 2 * m + i, sum = half % Phase::SUMS, unit = unit0 + half / Phase::SUMS * 8 + row;
        return half < Phase::HALVES ? matrix8<Step, P, S::H>(call, own, sum, operand, seat.head, unit, k) : Terms<E>{};
      });
  });
  for (int i = threadIdx.x; i < S::OPERAND_BYTES / 4; i += S::THREADS) shared_at<uint32_t>(operands + 4 * i) = 0;
  typename S::Memory traffic;
  traffic.begin(call, own, seat, first_unit, ring);
  // The barrier of a range of a phase's operands in one of its buffers, or (K_WARPS) of its reductions; and the bytes
  // that it counts.
  const auto barrier_of = [&](auto phase, int buffer, int range) {
    return barriers + 8 * ((buffer * S::PHASES + decltype(phase)::value) * S::RANGES + range);
  };
  const auto expected = [&](auto phase) {
    return uint32_t(seat.entries * S::template Phase<decltype(phase)::value>::RANGE * sizeof(E));
  };
  const auto expected_reduced = [&](auto phase) {
    return uint32_t(S::template Phase<decltype(phase)::value>::REDUCED_BYTES);
  };
  if constexpr (S::CTAS > 1) {
    if (threadIdx.x == 0)
      for (int i = 0; i < S::BARRIERS; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_visible();
    __syncthreads();
    if (threadIdx.x == 0)
      for_numbers<S::PHASES>([&](auto phase) {
        for (int buffer = 0; buffer < S::BUFFERS; ++buffer)
          for (int range = 0; range < S::RANGES; ++range)
            barrier_expect(barrier_of(phase, buffer, range),
                           range < S::K_WARPS ? expected(phase) : expected_reduced(phase));
      });
    cluster_barrier();
  }
  __syncthreads();

  // A lane sends its piece of an operand block to every PEERS-th CTA from first_peer on.
  using Block = typename S::Block;
  constexpr int PEERS = 32 / Block::PIECES, SENDS = ceil_div(S::CTAS, PEERS);
  const int piece = lane % Block::PIECES, first_peer = lane / Block::PIECES;
  uint32_t peer_operands[SENDS], peer_barriers[SENDS];
  if constexpr (S::CTAS > 1)
#pragma unroll
    for (int p = 0; p < SENDS; ++p) {
      const int peer = ::min(p * PEERS + first_peer, S::CTAS - 1);
      peer_operands[p] = peer_address(operands, peer);
      peer_barriers[p] = peer_address(barriers, peer);
    }

  using Own = Item<Step, S::H, typename S::Memory>;
  Own items[S::OWNED][S::ENTRY_TILES];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n) {
      const int u = k_warp + o * S::K_WARPS;
      if (u >= S::UNIT_BLOCKS) continue;
      items[o][n].begin(call, own, traffic, seat, first_unit, own_unit + u * 8, n * 8);
    }
  // Sends an item's operands, and what it gives to reductions, of a phase of step t to all CTAs.
  const auto send = [&](auto phase, int o, int n, int t, const auto& operand) {
    constexpr int P = decltype(phase)::value;
    using Phase = typename S::template Phase<P>;
    const int u = k_warp + o * S::K_WARPS, buffer = t % S::BUFFERS;
    const Own& item = items[o][n];
#pragma unroll
    for (int p = 0; p < Phase::OPERANDS; ++p) {
      const int term = p * S::DIM + unit0 + u * 8;
      const int place =
          Phase::OPERANDS_BEGIN + buffer * Phase::BUFFER_BYTES + n * Phase::TILE_BYTES + term / 8 * Block::BYTES;
      const int width = width_of<Step, Value::operand, P>(p);
      const float x = item.exists(0, width) ? operand[0][p] : 0.0f, y = item.exists(1, width) ? operand[1][p] : 0.0f;
      if constexpr (S::CTAS == 1) {
        Block::store(operands + place, x, y);
      } else {
        const uint4 w = Block::piece(x, y);
        const uint32_t barrier = barrier_of(phase, buffer, term / at_least_one(Phase::RANGE)) - barriers;
        if (n * 8 + Block::entry(piece) < seat.entries)
#pragma unroll
          for (int i = 0; i < SENDS; ++i)
            if (S::CTAS % PEERS == 0 || i * PEERS + first_peer < S::CTAS)
              send16(peer_operands[i] + place + piece * 16, peer_barriers[i] + barrier, w.x, w.y, w.z, w.w);
      }
    }
    if constexpr (Phase::REDUCTIONS > 0) {
      using Given = typename Phase::Given;
      float number[Phase::REDUCTIONS];
      join_units<Step, P>(operand, item.has_unit, number);
      const int source = (seat.rank * S::UNIT_WARPS + unit_warp) * S::UNIT_BLOCKS + u;
      const int begin = Phase::OPERANDS_BEGIN + buffer * Phase::BUFFER_BYTES + Phase::REDUCED_BEGIN + n * Given::BYTES,
                entry = 2 * q + row % 2;
      if constexpr (S::CTAS == 1) {
        // The lanes of all rows have what those of the first two have. A branch would only come between.
        Given::store(operands + begin, source, entry, number);
      } else {
        // The lanes of two rows have what all entries need. They send it to every fourth CTA.
#pragma unroll
        for (int peer = row / 2; peer < S::CTAS; peer += 4) {
          const uint32_t to = peer_address(operands, peer) + begin,
                         barrier = peer_address(barrier_of(phase, buffer, S::K_WARPS), peer);
#pragma unroll
          for (int r = 0; r < Phase::REDUCTIONS; r += Given::AT_ONCE)
            if constexpr (Given::AT_ONCE == 2)
              send8(to + Given::place(source, r, entry), barrier, number[r], number[r + 1]);
            else
              send4(to + Given::place(source, r, entry), barrier, number[r]);
        }
      }
    }
  };
  const auto start = [&](int o, int n, int t, float (&write)[2][written<Step>]) {
    Own& item = items[o][n];
    float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], operand[2][PhaseOf<Step, 0>::TAKES];
    item.template load<true>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
    for (int j = 0; j < 2; ++j) item.start(call, j, read[j], rows[j], operand[j], write[j]);
    send(Number<0>{}, o, n, t, operand);
  };
  for (int t = 0; t < S::Memory::STAGES; ++t) traffic.fetch(t);
  if (steps > 0) traffic.wait(0);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n)
      if (k_warp + o * S::K_WARPS < S::UNIT_BLOCKS && steps > 0) {
        float started[2][written<Step>];
        start(o, n, 0, started);
        items[o][n].template put_down<0>(own, -1, started);
      }
  __syncthreads();
  traffic.store(-1);

  for (int t = 0; t < steps; ++t) {
    const int buffer = t % S::BUFFERS;
#pragma unroll
    for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n)
        if (k_warp + o * S::K_WARPS < S::UNIT_BLOCKS) items[o][n].ask(own, t + 1, steps);
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      using Phase = typename S::template Phase<P>;
      using Matrix = typename Phase::Matrix;
      if constexpr (S::CTAS > 1 && Phase::SUMS > 0) {
        const uint32_t barrier = barrier_of(phase, buffer, k_warp);
        barrier_wait(barrier, t / S::BUFFERS & 1);
        if (unit_warp == 0 && lane == 0) barrier_expect(barrier, expected(phase));  // for the buffer's next use
      }
      float acc[S::ENTRY_TILES][Matrix::ROWS][4] = {};
      if constexpr (Phase::SUMS > 0) {
        multiply<E>(
            held.template of<P>(),
            operands + Phase::OPERANDS_BEGIN + buffer * Phase::BUFFER_BYTES + k_warp * Phase::RANGE / 8 * Block::BYTES,
            Phase::TILE_BYTES, acc);
        if constexpr (S::K_WARPS > 1) {
          // Partial sums lie as [unit warp][half-tile, tile][K warps after the owner, less one][lane].
          float2* const parts = &shared_at<float2>(
              partial + unit_warp * Phase::HALVES * S::ENTRY_TILES * (S::K_WARPS - 1) * 256 + lane * 8);
#pragma unroll
          for (int half = 0; half < Phase::HALVES; ++half) {
            const int owner = half / Phase::SUMS % S::K_WARPS;
            if (owner != k_warp)
#pragma unroll
              for (int n = 0; n < S::ENTRY_TILES; ++n)
                parts[((half * S::ENTRY_TILES + n) * (S::K_WARPS - 1) + (k_warp - owner + S::K_WARPS) % S::K_WARPS -
                       1) *
                      32] = make_float2(acc[n][half / 2][half % 2 * 2], acc[n][half / 2][half % 2 * 2 + 1]);
          }
          __syncthreads();
#pragma unroll
          for (int half = 0; half < Phase::HALVES; ++half)
            if (half / Phase::SUMS % S::K_WARPS == k_warp)
#pragma unroll
              for (int n = 0; n < S::ENTRY_TILES; ++n)
#pragma unroll
                for (int w = 0; w < S::K_WARPS - 1; ++w) {
                  const float2 p = parts[((half * S::ENTRY_TILES + n) * (S::K_WARPS - 1) + w) * 32];
                  acc[n][half / 2][half % 2 * 2] += p.x;
                  acc[n][half / 2][half % 2 * 2 + 1] += p.y;
                }
        }
      }
      // What all items have given to the reductions, for the lane's entries of each tile.
      [[maybe_unused]] float reduced[S::ENTRY_TILES][2][at_least_one(Phase::REDUCTIONS)];
      if constexpr (Phase::REDUCTIONS > 0) {
        if (S::K_WARPS <= S::UNIT_BLOCKS || k_warp < S::UNIT_BLOCKS) {
          if constexpr (S::CTAS > 1) {
            const uint32_t barrier = barrier_of(phase, buffer, S::K_WARPS);
            barrier_wait(barrier, t / S::BUFFERS & 1);
            if (threadIdx.x == 0) barrier_expect(barrier, expected_reduced(phase));
          }
          const uint32_t from = operands + Phase::OPERANDS_BEGIN + buffer * Phase::BUFFER_BYTES + Phase::REDUCED_BEGIN;
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
            join_parts<Step, P, S::H, typename Phase::Given>(call, from + n * Phase::Given::BYTES, reduced[n]);
        }
      }
      if (P == S::LAST && t + 1 < steps) traffic.wait(t + 1);
#pragma unroll
      for (int u = 0; u < S::UNIT_BLOCKS; ++u) {
        if (u % S::K_WARPS != k_warp) continue;
        const int o = u / S::K_WARPS;
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n) {
          Own& item = items[o][n];
          float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], sum[2][Phase::GIVES];
          float made[2][written<Step>];
          item.template load<false>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
          for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int i = 0; i < Phase::SUMS; ++i)
              sum[j][i] = acc[n][(u * Phase::SUMS + i) / 2][(u * Phase::SUMS + i) % 2 * 2 + j];
#pragma unroll
          for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int r = 0; r < Phase::REDUCTIONS; ++r) sum[j][Phase::SUMS + r] = reduced[n][j][r];
          if constexpr (P < S::LAST) {
            float operand[2][PhaseOf<Step, P + 1>::TAKES];
#pragma unroll
            for (int j = 0; j < 2; ++j)
              item.template middle<P + 1>(call, j, sum[j], read[j], rows[j], operand[j], made[j]);
            send(Number<P + 1>{}, o, n, t, operand);
          } else {
            float started[2][written<Step>];
#pragma unroll
            for (int j = 0; j < 2; ++j) item.finish(call, j, t, sum[j], read[j], rows[j], made[j]);
            if (t + 1 < steps) start(o, n, t + 1, started);
            if (t + 1 < steps) item.template put_down<0>(own, t, started);
          }
          item.template put_down<P + 1>(own, t, made);
        }
      }
      // The partial sums of this phase have been read, and the operands of the next one have been written.
      if constexpr (P == S::LAST || S::CTAS == 1 || S::K_WARPS > 1) __syncthreads();
    });
    traffic.store(t);
    traffic.fetch(t + S::Memory::STAGES);
  }
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n)
      if (k_warp + o * S::K_WARPS < S::UNIT_BLOCKS) items[o][n].end(own);
  // A CTA that ended would take its shared memory with it, while a peer may still write there.
  if constexpr (S::CTAS > 1) cluster_barrier();
}

}  // namespace rnncc
