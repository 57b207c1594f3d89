// A fused loop whose operands go to all CTAs of the cluster; see cluster.cuh.
#pragma once

#include "cluster.cuh"

namespace rnncc {

// A CTA has UNIT_WARPS × K_WARPS warps. A warp has UNIT_BLOCKS blocks of 8 units, and one of K_WARPS ranges of the terms.
template <class Step_, int H_, int CTAS_, int UNIT_WARPS_, int K_WARPS_, int UNIT_BLOCKS_, int ENTRY_TILES_, int REGISTER_TILES_>
struct GatherShape {
  using Step = Step_;
  using E = typename Step::Element;
  static constexpr int H = H_, CTAS = CTAS_, UNIT_WARPS = UNIT_WARPS_, K_WARPS = K_WARPS_, UNIT_BLOCKS = UNIT_BLOCKS_, ENTRY_TILES = ENTRY_TILES_;
  static constexpr int UNITS = UNIT_WARPS * UNIT_BLOCKS * 8, DIM = UNITS * CTAS, ENTRIES = ENTRY_TILES * 8;
  static constexpr int THREADS = UNIT_WARPS * K_WARPS * 32;
  static constexpr int HALVES = Step::SUMS * UNIT_BLOCKS;
  static constexpr int DEPTH = Step::OPERANDS * DIM, RANGE = DEPTH / K_WARPS;  // all terms; terms per warp
  using Matrix = Resident<E, RANGE / 32, HALVES, REGISTER_TILES_ / 2>;
  using Block = OperandBlock<E>;
  // K warp u % K_WARPS owns unit block u: it adds up the block's sums, and does its elementwise part.
  static constexpr int OWNED = ceil_div(UNIT_BLOCKS, K_WARPS);
  static constexpr int TILE_BYTES = DEPTH / 8 * Block::BYTES, BUFFER_BYTES = ENTRY_TILES * TILE_BYTES;
  static constexpr int PARTIAL_BYTES = (K_WARPS - 1) * UNIT_WARPS * ENTRY_TILES * HALVES * 256;
  static constexpr int MATRIX_BYTES = UNIT_WARPS * K_WARPS * Matrix::WARP_BYTES;
  using Memory = Traffic<Step, H, UNITS, ENTRIES, THREADS>;
  static constexpr int SHARED_BYTES = 2 * BUFFER_BYTES + MATRIX_BYTES + PARTIAL_BYTES + Memory::BYTES + 16 * K_WARPS;
  static_assert(H % 8 == 0 && DIM >= H && DIM % (32 * K_WARPS) == 0);
};

template <class S>
RNNCC_DEVICE void fused_gather(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  extern __shared__ __align__(128) char shared[];
  char* const operands = shared;
  char* const matrices = operands + 2 * S::BUFFER_BYTES;
  float2* const partial = reinterpret_cast<float2*>(matrices + S::MATRIX_BYTES);
  char* const ring = matrices + S::MATRIX_BYTES + S::PARTIAL_BYTES;
  const uint32_t barriers = shared_address(ring + S::Memory::BYTES);  // [2][K_WARPS]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, q = lane % 4;
  const int unit_warp = warp % S::UNIT_WARPS, k_warp = warp / S::UNIT_WARPS;
  const Seat seat = seat_of<S::CTAS>(call);
  const int first_unit = seat.rank * S::UNITS, own_unit = unit_warp * S::UNIT_BLOCKS * 8, unit0 = first_unit + own_unit, steps = seat.steps;

  typename S::Matrix matrix;
  matrix.fill(matrices, warp, [&](int pair, int m, int i) {
    const int term = k_warp * S::RANGE + pair * 32 + q * 8, operand = term / S::DIM, k = term % S::DIM;
    const int half = 2 * m + i, sum = half % Step::SUMS, unit = unit0 + half / Step::SUMS * 8 + row;
    return half < S::HALVES ? matrix8<Step, S::H>(own.matrices[sum * Step::OPERANDS + operand], seat.head, unit, k)
                            : Terms<E>{};
  });
  for (int i = threadIdx.x; i < 2 * S::BUFFER_BYTES / 4; i += S::THREADS) reinterpret_cast<uint32_t*>(operands)[i] = 0;
  typename S::Memory traffic;
  traffic.begin(call, own, seat, first_unit, ring);
  const uint32_t expected = seat.entries * S::RANGE * sizeof(E);
  if constexpr (S::CTAS > 1) begin_barriers(barriers, 2 * S::K_WARPS, expected);
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
      peer_operands[p] = peer_address(shared_address(operands), peer);
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
  // Runs start(t), and sends its operands to all CTAs.
  const auto start = [&](int o, int n, int t, float (&write)[2][at_least_one(Step::WRITES)]) {
    const int u = k_warp + o * S::K_WARPS, buffer = t & 1;
    Own& item = items[o][n];
    float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], operand[2][Step::OPERANDS];
    item.template load<true>(own, t, t + 1 == steps, read, rows);
#pragma unroll
    for (int j = 0; j < 2; ++j) Step::start(read[j], rows[j], item.vector, call.constants, item.carry[j], operand[j], write[j]);
#pragma unroll
    for (int p = 0; p < Step::OPERANDS; ++p) {
      const int term = p * S::DIM + unit0 + u * 8;
      const int place = buffer * S::BUFFER_BYTES + n * S::TILE_BYTES + term / 8 * Block::BYTES;
      const float x = item.valid[0] ? operand[0][p] : 0.0f, y = item.valid[1] ? operand[1][p] : 0.0f;
      if constexpr (S::CTAS == 1) {
        Block::store(operands + place, x, y);
      } else {
        const uint4 w = Block::piece(x, y);
        if (n * 8 + Block::entry(piece) < seat.entries)
#pragma unroll
          for (int i = 0; i < SENDS; ++i)
            if (S::CTAS % PEERS == 0 || i * PEERS + first_peer < S::CTAS)
              send16(peer_operands[i] + place + piece * 16, peer_barriers[i] + 8 * (buffer * S::K_WARPS + term / S::RANGE), w.x, w.y, w.z, w.w);
      }
    }
  };
  for (int t = 0; t < S::Memory::STAGES; ++t) traffic.fetch(t);
  if (steps > 0) traffic.wait(0);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n)
      if (k_warp + o * S::K_WARPS < S::UNIT_BLOCKS && steps > 0) {
        float started[2][at_least_one(Step::WRITES)];
        start(o, n, 0, started);
        items[o][n].template put_down<true>(-1, started);
      }
  __syncthreads();
  traffic.store(-1);

  for (int t = 0; t < steps; ++t) {
    const int buffer = t & 1;
#pragma unroll
    for (int o = 0; o < S::OWNED; ++o)
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n)
        if (k_warp + o * S::K_WARPS < S::UNIT_BLOCKS) items[o][n].ask(own, t + 1, steps);
    if constexpr (S::CTAS > 1) {
      const uint32_t barrier = barriers + 8 * (buffer * S::K_WARPS + k_warp);
      barrier_wait(barrier, (t >> 1) & 1);
      if (unit_warp == 0 && lane == 0) barrier_expect(barrier, expected);  // for the step after next
    }
    float acc[S::ENTRY_TILES][S::Matrix::ROWS][4] = {};
    multiply<E>(matrix, operands + buffer * S::BUFFER_BYTES + k_warp * S::RANGE / 8 * Block::BYTES, S::TILE_BYTES, acc);
    if constexpr (S::K_WARPS > 1) {
      // Partial sums lie as [unit warp][half-tile, tile][K warps after the owner, less one][lane].
      float2* const parts = partial + unit_warp * S::HALVES * S::ENTRY_TILES * (S::K_WARPS - 1) * 32 + lane;
#pragma unroll
      for (int half = 0; half < S::HALVES; ++half) {
        const int owner = half / Step::SUMS % S::K_WARPS;
        if (owner != k_warp)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
            parts[((half * S::ENTRY_TILES + n) * (S::K_WARPS - 1) + (k_warp - owner + S::K_WARPS) % S::K_WARPS - 1) * 32] =
                make_float2(acc[n][half / 2][half % 2 * 2], acc[n][half / 2][half % 2 * 2 + 1]);
      }
      __syncthreads();
#pragma unroll
      for (int half = 0; half < S::HALVES; ++half)
        if (half / Step::SUMS % S::K_WARPS == k_warp)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
#pragma unroll
            for (int w = 0; w < S::K_WARPS - 1; ++w) {
              const float2 p = parts[((half * S::ENTRY_TILES + n) * (S::K_WARPS - 1) + w) * 32];
              acc[n][half / 2][half % 2 * 2] += p.x;
              acc[n][half / 2][half % 2 * 2 + 1] += p.y;
            }
    }
    if (t + 1 < steps) traffic.wait(t + 1);
#pragma unroll
    for (int u = 0; u < S::UNIT_BLOCKS; ++u) {
      if (u % S::K_WARPS != k_warp) continue;
      const int o = u / S::K_WARPS;
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n) {
        Own& item = items[o][n];
        float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>];
        float finished[2][at_least_one(Step::WRITES)], started[2][at_least_one(Step::WRITES)];
        item.template load<false>(own, t, t + 1 == steps, read, rows);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float sum[Step::SUMS];
#pragma unroll
          for (int i = 0; i < Step::SUMS; ++i) sum[i] = acc[n][(u * Step::SUMS + i) / 2][(u * Step::SUMS + i) % 2 * 2 + j];
          item.finish(call, j, t, sum, read[j], rows[j], finished[j]);
        }
        if (t + 1 < steps) start(o, n, t + 1, started);
        item.template put_down<false>(t, finished);
        if (t + 1 < steps) item.template put_down<true>(t, started);
      }
    }
    __syncthreads();
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
