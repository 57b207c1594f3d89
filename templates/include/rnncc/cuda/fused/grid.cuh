// A fused loop over CTAs of the whole grid. Matrices stay in registers and shared memory, and the warps of a CTA divide
// the terms.
#pragma once

#include "grid_loop.cuh"

namespace rnncc {

// REGISTER_TILES has a number for each phase.
template <class Step_, int H_, int UNIT_BLOCKS_, int K_WARPS_, int ENTRY_TILES_, int... REGISTER_TILES_>
struct GridShape : GridLayout<Step_, H_, UNIT_BLOCKS_, K_WARPS_, ENTRY_TILES_> {
  using Layout = GridLayout<Step_, H_, UNIT_BLOCKS_, K_WARPS_, ENTRY_TILES_>;
  using typename Layout::E;
  using Layout::DEPTH, Layout::H, Layout::K_WARPS, Layout::ENTRY_TILES, Layout::LAST, Layout::PHASES;
  static constexpr int REGISTER_TILES[] = {REGISTER_TILES_...};
  static_assert(sizeof...(REGISTER_TILES_) == PHASES);
  static constexpr int POLLS = ENTRY_TILES * Message<E>::PARTS;

  template <int P, class = void>
  struct Phase : Layout::template OfPhase<P> {
    using Of = typename Layout::template OfPhase<P>;
    using Of::HALVES, Of::OPERANDS, Of::SUMS;
    static constexpr int CHUNKS = ceil_div(OPERANDS * DEPTH / 32, K_WARPS);  // chunks of 32 terms per warp
    // Whether some terms of chunks belong to no operand. Their places are never written.
    static constexpr bool PADDED = DEPTH > H || CHUNKS * K_WARPS * 32 > OPERANDS* DEPTH;
    using Matrix =
        typename MatrixIf<(SUMS > 0),
                          Resident<E, at_least_one(CHUNKS), at_least_one(HALVES), REGISTER_TILES[P] / 2>>::type;
    static constexpr int BATCH =
        CHUNKS * POLLS <= 8 ? at_least_one(CHUNKS) : at_least_one(8 / POLLS);  // chunks polled at a time
    // The phase's part of the matrices in shared memory.
    static constexpr int MATRICES_BEGIN = Phase<P - 1>::MATRICES_END,
                         MATRICES_END = MATRICES_BEGIN + K_WARPS * Matrix::WARP_BYTES;
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int MATRICES_END = 0;
  };

  static constexpr int PARTIAL_BYTES =
      K_WARPS * ENTRY_TILES * Layout::template OfPhase<LAST>::MOST_HALVES * 256;
  static constexpr int MATRIX_BYTES = Phase<LAST>::MATRICES_END;
  // Each warp has room for a chunk of float operands, which all its lanes multiply.
  static constexpr int TILE_BYTES = 4 * OperandBlock<E>::BYTES,
                       STAGE_BYTES = sizeof(E) == 4 ? ENTRY_TILES * TILE_BYTES : 0;
  static constexpr int SHARED_BYTES = PARTIAL_BYTES + Layout::RECEIVED_BYTES + MATRIX_BYTES + K_WARPS * STAGE_BYTES +
                                      Layout::Memory::BYTES;
};

// The products of a grid kernel, by tensor cores. The warps divide the terms. Each polls for its own operands, multiplies
// them as they come, and leaves its part of all sums in shared memory.
template <class S>
class GridProducts {
 public:
  using Step = typename S::Step;
  using E = typename S::E;

  // The CTA's shared memory, but for what it receives of reductions.
  RNNCC_DEVICE GridProducts(char* shared)
      : lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        parts_(reinterpret_cast<float2*>(shared) + lane_),
        matrices_(shared + S::PARTIAL_BYTES + S::RECEIVED_BYTES),
        stage_(matrices_ + S::MATRIX_BYTES + warp_ * S::STAGE_BYTES) {}

  // Takes the matrices from memory. Half-tile h is sum h % SUMS of unit block h / SUMS. Chunk c of this warp has 32
  // terms of one operand.
  RNNCC_DEVICE void fill(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat) {
    const int row = lane_ / 4, q = lane_ % 4, unit0 = seat.rank * S::UNITS;
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      using Phase = typename S::template Phase<P>;
      if constexpr (Phase::SUMS > 0)
        held_.template of<P>().fill(matrices_ + Phase::MATRICES_BEGIN, warp_, [&](int c, int m, int i) {
          const int term = (warp_ * Phase::CHUNKS + c) * 32, operand = term / S::DEPTH, k = term % S::DEPTH + q * 8;
          const int half = 2 * m + i, sum = half % Phase::SUMS, unit = unit0 + half / Phase::SUMS * 8 + row;
          return half < Phase::HALVES && operand < Phase::OPERANDS
                     ? matrix8<Step, P, S::H>(call, own, sum, operand, seat.head, unit, k)
                     : Terms<E>{};
        });
    });
  }

  // Multiplies the operands of phase P of step t, which begin at `from` in the exchange. Calls `move` while they are on
  // their way. Returns whether the warp polled in vain. Sums may be read after a barrier of
  // the CTA.
  template <int P, class Move>
  RNNCC_DEVICE bool multiply(const char* from, const GridTerms<S>& places, int t, const Move& move) {
    using Phase = typename S::template Phase<P>;
    const int q = lane_ % 4;
    float acc[S::ENTRY_TILES][Phase::ROWS][4] = {};
    [[maybe_unused]] float of_lane[S::ENTRY_TILES][at_least_one(Phase::HALVES)][8] =
        {};                                             // the lane's parts of sums, where operands are float
    const int first_term = warp_ * Phase::CHUNKS * 32;  // of the warp's, in all operands of the phase
    const auto is_wanted = [&](int c) {
      const int term = first_term + c * 32;
      return !Phase::PADDED || (term < Phase::OPERANDS * S::DEPTH && term % S::DEPTH + q * 8 < S::H);
    };
    bool in_vain = false;
#pragma unroll
    for (int c0 = 0; c0 < Phase::CHUNKS; c0 += Phase::BATCH) {
      Message<E> h[Phase::BATCH][S::ENTRY_TILES];
      const auto ask = [&](int n, int b) {
        h[b][n].ask(from + (places.terms[n] + uint32_t(first_term * sizeof(E))) + (c0 + b) * 32 * sizeof(E));
      };
#pragma unroll
      for (int b = 0; b < Phase::BATCH; ++b)
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          if (c0 + b < Phase::CHUNKS && is_wanted(c0 + b) && places.has_rows(n, t))
            ask(n, b);
          else
            h[b][n] = {};
      if (c0 == 0) move();
      const auto all_have_come = [&] {
        bool all = true;
#pragma unroll
        for (int b = 0; b < Phase::BATCH; ++b)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n) all &= h[b][n].has_come();
        return __all_sync(~0u, all);
      };
      for (Spin spin; !all_have_come(); spin.poll()) {
        in_vain = true;
#pragma unroll
        for (int b = 0; b < Phase::BATCH; ++b)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
            if (!h[b][n].has_come()) ask(n, b);
      }
#pragma unroll
      for (int b = 0; b < Phase::BATCH; ++b) {
        if (c0 + b >= Phase::CHUNKS) continue;
        if constexpr (sizeof(E) == 4) {
          __syncwarp();  // all lanes are done with the chunk before
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              *reinterpret_cast<uint4*>(stage_ + n * S::TILE_BYTES + q * OperandBlock<E>::BYTES + lane_ / 4 * 32 +
                                        i * 16) = h[b][n].part[i];
          __syncwarp();
          if constexpr (Phase::SUMS > 0) multiply_pair(held_.template of<P>(), c0 + b, stage_, S::TILE_BYTES, of_lane);
        } else {
          uint4 of_chunk[S::ENTRY_TILES];
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n) of_chunk[n] = h[b][n].part[0];
          if constexpr (Phase::SUMS > 0) multiply_pair<E>(held_.template of<P>(), c0 + b, of_chunk, acc, acc);
        }
      }
    }
    if constexpr (sizeof(E) == 4 && Phase::SUMS > 0) sum_over_lanes(of_lane, acc);
    // The warps' partial sums lie as [half-tile, tile][warp][lane].
#pragma unroll
    for (int half = 0; half < Phase::HALVES; ++half)
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n)
        parts_[((half * S::ENTRY_TILES + n) * S::K_WARPS + warp_) * 32] =
            make_float2(acc[n][half / 2][half % 2 * 2], acc[n][half / 2][half % 2 * 2 + 1]);
    return in_vain;
  }

  // The sums of phase P for the lane's unit of unit block u, and its two entries of tile n. `sum` begins with zeros.
  template <int P, int GIVES>
  RNNCC_DEVICE void sum(int u, int n, float (&sum)[2][GIVES]) const {
    using Phase = typename S::template Phase<P>;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i)
#pragma unroll
      for (int w = 0; w < S::K_WARPS; ++w) {
        const float2 p = parts_[(((u * Phase::SUMS + i) * S::ENTRY_TILES + n) * S::K_WARPS + w) * 32];
        sum[0][i] += p.x;
        sum[1][i] += p.y;
      }
  }

 private:
  const int lane_, warp_;
  float2* const parts_;
  char* const matrices_;
  char* const stage_;
  Matrices<S> held_;
};

template <class S>
RNNCC_DEVICE void fused_grid(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  run_grid<S, GridProducts<S>>(call, own);
}

}  // namespace rnncc
