// A fused loop over CTAs of the whole grid. Matrices stay in registers and shared memory, and the warps of a CTA divide
// the terms. Where a sum does not take an operand, a kernel neither holds nor multiplies anything.
#pragma once

#include "grid_loop.cuh"
#include "../device/runs.cuh"

namespace rnncc {

// What a warp holds of a run's matrices.
template <class Run>
using MatrixOfRun = typename Run::Matrix;

// REGISTER_TILES has a number for each run of each phase.
template <class Step_, int H_, int UNIT_BLOCKS_, int K_WARPS_, int ENTRY_TILES_, int LANE_ROWS_, int... REGISTER_TILES_>
struct GridShape : GridLayout<Step_, H_, UNIT_BLOCKS_, K_WARPS_, ENTRY_TILES_> {
  using Layout = GridLayout<Step_, H_, UNIT_BLOCKS_, K_WARPS_, ENTRY_TILES_>;
  using Layout::H, Layout::K_WARPS, Layout::ENTRY_TILES, Layout::LAST, Layout::PHASES;
  using typename Layout::E;
  using typename Layout::Step;
  static constexpr int REGISTER_TILES[] = {REGISTER_TILES_...};
  static constexpr int POLLS = ENTRY_TILES * Message<E>::PARTS;
  static constexpr int MOST_POLLS = Relays<Step>::POLLS;  // pieces of 16 bytes that a lane asks for at a time

  template <int P, class = void>
  struct Phase : Layout::template OfPhase<P> {
    using Of = typename Layout::template OfPhase<P>;
    static constexpr int DEPTH = Of::DEPTH, WIDTH = Of::WIDTH;
    // Where a warp has rows of one run alone, all runs are alike, and the first one stands for the warp's.
    static constexpr bool HAS_ONE = Of::RELAYS || Of::BY_WARPS;
    static constexpr int RUNS = HAS_ONE ? 1 : runs_of<Step, P>();
    static constexpr int FIRST_RUN = Phase<P - 1>::END_RUN, END_RUN = FIRST_RUN + RUNS;  // among those of all phases
    // A warp has the sums of all its runs at once.
    static constexpr int LANE_ROWS =
        rows_of_lane(Of::RELAYS ? Of::HALVES : sums_of_runs<Step, P>(RUNS) * Layout::UNIT_BLOCKS, LANE_ROWS_);

    // The warps that share a run divide its terms, in chunks of 32. So it is known when the kernel is compiled which sums
    // take a chunk.
    template <int R, class = void>
    struct Run : RunOf<Step, P, R> {
      using OfRun = RunOf<Step, P, R>;
      using OfRun::OPERANDS;
      static constexpr int SUMS = OfRun::sums_before(Of::SUMS),
                           HALVES = Of::RELAYS ? Of::HALVES : SUMS * Layout::UNIT_BLOCKS,
                           ROWS = at_least_one(ceil_div(HALVES, 2)), TILES = ENTRY_TILES, LANE_ROWS = Phase::LANE_ROWS;
      static constexpr int CHUNKS = ceil_div(OPERANDS * DEPTH / 32, Of::SHARERS);  // of a warp
      // The chunks of all runs follow each other.
      static constexpr int FIRST_CHUNK = Run<R - 1>::END_CHUNK, END_CHUNK = FIRST_CHUNK + CHUNKS;
      // Whether some terms of chunks belong to no operand. Their places are never written.
      static constexpr bool PADDED = DEPTH > WIDTH || CHUNKS* Of::SHARERS * 32 > OPERANDS* DEPTH;
      using Matrix = typename MatrixIf<(SUMS > 0), Resident<E, at_least_one(CHUNKS), at_least_one(HALVES),
                                                            REGISTER_TILES[FIRST_RUN + R] / 2, LANE_ROWS>>::type;
      // The run's part of the matrices in shared memory.
      static constexpr int MATRICES_BEGIN = Run<R - 1>::MATRICES_END,
                           MATRICES_END = MATRICES_BEGIN + K_WARPS * Matrix::WARP_BYTES;
    };
    template <class V>
    struct Run<-1, V> {
      static constexpr int END_CHUNK = 0, MATRICES_END = Phase<P - 1>::MATRICES_END;
    };

    using Matrix = typename MatrixIf<(Of::SUMS > 0), PerRun<Phase, MatrixOfRun>>::type;
    static constexpr int CHUNKS = Run<RUNS - 1>::END_CHUNK, MATRICES_END = Run<RUNS - 1>::MATRICES_END;
    static constexpr int BATCH =
        CHUNKS * POLLS <= MOST_POLLS ? at_least_one(CHUNKS) : at_least_one(MOST_POLLS / POLLS);  // polled at a time
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int END_RUN = 0, MATRICES_END = 0;
  };
  static_assert(sizeof...(REGISTER_TILES_) == Phase<LAST>::END_RUN);

  static constexpr int PARTIAL_BYTES = ENTRY_TILES * Layout::template OfPhase<LAST>::MOST_PARTS * 256;
  static constexpr int MATRIX_BYTES = Phase<LAST>::MATRICES_END;
  // Each warp has room for a chunk of float operands, which all its lanes multiply.
  static constexpr int TILE_BYTES = 4 * OperandBlock<E>::BYTES,
                       STAGE_BYTES = sizeof(E) == 4 ? ENTRY_TILES * TILE_BYTES : 0;
  static constexpr int SHARED_BYTES =
      PARTIAL_BYTES + Layout::RECEIVED_BYTES + MATRIX_BYTES + K_WARPS * STAGE_BYTES + Layout::Memory::BYTES;
};

// A warp's part of a run's sums: as tensor cores give it, and where operands are float a lane's part of that.
template <class Run>
struct SumsOfRun {
  float acc[Run::TILES][Run::ROWS][4] = {};
  LaneSums<at_least_one(Run::HALVES), Run::LANE_ROWS> of_lane[Run::TILES];
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
        parts_(shared_address(shared) + lane_ * 8),
        matrices_(shared_address(shared) + S::PARTIAL_BYTES + S::RECEIVED_BYTES),
        stage_(matrices_ + S::MATRIX_BYTES + warp_ * S::STAGE_BYTES) {}

  // Takes the matrices from memory. Half-tile h of a run with SUMS sums is its sum h % SUMS of unit block h / SUMS.
  RNNCC_DEVICE void fill(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat) {
    const int row = lane_ / 4, q = lane_ % 4, unit0 = seat.rank * S::UNITS;
    rank_ = seat.rank;
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      using Phase = typename S::template Phase<P>;
      if constexpr (Phase::SUMS > 0)
        for_numbers<Phase::RUNS>([&](auto number) {
          constexpr int R = decltype(number)::value;
          using Run = typename Phase::template Run<R>;
          auto& matrix = held_.template of<P>().template of<R>();
          matrix.fill(matrices_ + Run::MATRICES_BEGIN, warp_, [&](int c, int m, int i) {
            if constexpr (Phase::HAS_ONE) {
              return terms_of_own_run<P>(call, own, seat, c, 2 * m + i);
            } else {
              const int term = (warp_ * Run::CHUNKS + c) * 32, operand = term / Phase::DEPTH,
                        k = term % Phase::DEPTH + q * 8;
              const int half = 2 * m + i, sum = Run::sum_at(half % Run::SUMS),
                        unit = unit0 + half / Run::SUMS * 8 + row;
              return half < Run::HALVES && operand < Run::OPERANDS
                         ? matrix8<Step, P, S::H>(call, own, sum, Run::FIRST_OPERAND + operand, seat.head, unit, k)
                         : Terms<E>{};
            }
          });
        });
    });
  }

  // Multiplies the operands of phase P of a step, which begin at `from` in the exchange. Calls `move` while they are on
  // their way. Returns whether the warp polled in vain. Sums may be read after a barrier of the CTA.
  template <int P, class Move>
  RNNCC_DEVICE bool multiply(const char* from, const GridTerms<S>& places, const Move& move) {
    using Phase = typename S::template Phase<P>;
    const int q = lane_ % 4;
    PerRun<Phase, SumsOfRun> sums;
    int first_term[Phase::RUNS];  // of the warp's, in the operands of each run
    for_numbers<Phase::RUNS>([&](auto number) {
      constexpr int R = decltype(number)::value;
      first_term[R] = share_of<P>() * Phase::template Run<R>::CHUNKS * 32;
    });
    // Where the warp has one run, its operands begin further on.
    const int own_run = Phase::HAS_ONE ? run_of<P>() : 0;
    if constexpr (Phase::HAS_ONE) from += uint32_t(own_run * Phase::template Run<0>::OPERANDS * Phase::OPERAND_BYTES);
    const bool has_rows = !Phase::HAS_ONE || own_run < runs_of<Step, P>();
    const auto is_wanted = [&](int c) {
      bool wanted = true;
      with_run_of<Phase>(c, [&](auto number) {
        constexpr int R = decltype(number)::value;
        using Run = typename Phase::template Run<R>;
        const int term = first_term[R] + (c - Run::FIRST_CHUNK) * 32;
        wanted = !Run::PADDED || (term < Run::OPERANDS * Phase::DEPTH && term % Phase::DEPTH + q * 8 < Phase::WIDTH);
      });
      return wanted && has_rows;
    };
    bool in_vain = false;
#pragma unroll
    for (int c0 = 0; c0 < Phase::CHUNKS; c0 += Phase::BATCH) {
      Message<E> h[Phase::BATCH][S::ENTRY_TILES];
      const auto ask = [&](int n, int b) {
        with_run_of<Phase>(c0 + b, [&](auto number) {
          constexpr int R = decltype(number)::value;
          using Run = typename Phase::template Run<R>;
          const int further = Run::FIRST_OPERAND * Phase::DEPTH + (c0 + b - Run::FIRST_CHUNK) * 32;
          h[b][n].ask(from + (places.terms[n] + S::place_of_chunk(first_term[R])) + S::place_of_chunk(further));
        });
      };
#pragma unroll
      for (int b = 0; b < Phase::BATCH; ++b)
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          if (c0 + b < Phase::CHUNKS && is_wanted(c0 + b))
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
            for (int i = 0; i < 2; ++i) {
              // Lanes of odd entries begin with the second part: together a store's lanes then meet in no bank.
              const bool is_odd = lane_ & 4;
              const uint32_t entry = stage_ + n * S::TILE_BYTES + q * OperandBlock<E>::BYTES + lane_ / 4 * 32;
              shared_at<uint4>(entry + (is_odd ? 16 - i * 16 : i * 16)) =
                  is_odd ? h[b][n].part[1 - i] : h[b][n].part[i];
            }
          __syncwarp();
          with_run_of<Phase>(c0 + b, [&](auto number) {
            constexpr int R = decltype(number)::value;
            multiply_pair(held_.template of<P>().template of<R>(), c0 + b - Phase::template Run<R>::FIRST_CHUNK, stage_,
                          S::TILE_BYTES, sums.template of<R>().of_lane);
          });
        } else {
          uint4 of_chunk[S::ENTRY_TILES];
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n) of_chunk[n] = h[b][n].part[0];
          with_run_of<Phase>(c0 + b, [&](auto number) {
            constexpr int R = decltype(number)::value;
            auto& acc = sums.template of<R>().acc;
            multiply_pair<E>(held_.template of<P>().template of<R>(), c0 + b - Phase::template Run<R>::FIRST_CHUNK,
                             of_chunk, acc, acc);
          });
        }
      }
    }
    if constexpr (sizeof(E) == 4)
      for_numbers<Phase::RUNS>([&](auto number) {
        auto& of_run = sums.template of<decltype(number)::value>();
        sum_over_lanes(of_run.of_lane, of_run.acc);
      });
    // The warps' partial sums lie as [half-tile, tile][warp][lane]. Where a warp has one run, half-tiles are counted run by
    // run.
    if constexpr (Phase::HAS_ONE) {
      using Run = typename Phase::template Run<0>;
      if (Phase::RELAYS || has_rows)
        for_numbers<Run::HALVES>([&](auto number) {
          constexpr int HALF = decltype(number)::value;
          const int half = Phase::RELAYS ? HALF : own_run * Run::HALVES + HALF;
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n) {
            const float (&part)[4] = sums.template of<0>().acc[n][HALF / 2];
            shared_at<float2>(parts_ + ((half * S::ENTRY_TILES + n) * Phase::SHARERS + share_of<P>()) * 256) =
                make_float2(part[HALF % 2 * 2], part[HALF % 2 * 2 + 1]);
          }
        });
    } else {
      for_numbers<Phase::HALVES>([&](auto number) {
        constexpr int HALF = decltype(number)::value, U = HALF / Phase::SUMS, I = HALF % Phase::SUMS;
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          shared_at<float2>(parts_ + ((HALF * S::ENTRY_TILES + n) * S::K_WARPS + warp_) * 256) =
              of_all_runs<Phase, U, I>(sums, n);
      });
    }
    return in_vain;
  }

  // The sums of phase P for the lane's unit of unit block u, and its two entries of tile n. `sum` begins with zeros.
  template <int P, int GIVES>
  RNNCC_DEVICE void sum(int u, int n, float (&sum)[2][GIVES]) const {
    using Phase = typename S::template Phase<P>;
    if constexpr (Phase::BY_WARPS) {
      using Run = typename Phase::template Run<0>;
      for_numbers<Phase::SUMS>([&](auto number) {
        constexpr int I = decltype(number)::value, RUN = run_with_sum<Step, P>(I), PLACE = place_in_run<Step, P>(I);
        const float2 whole = half_sum<P>(RUN * Run::HALVES + u * Run::SUMS + PLACE, n);
        sum[0][I] = whole.x;
        sum[1][I] = whole.y;
      });
    } else {
#pragma unroll
      for (int i = 0; i < Phase::SUMS; ++i)
#pragma unroll
        for (int w = 0; w < S::K_WARPS; ++w) {
          const float2 p =
              shared_at<const float2>(parts_ + (((u * Phase::SUMS + i) * S::ENTRY_TILES + n) * S::K_WARPS + w) * 256);
          sum[0][i] += p.x;
          sum[1][i] += p.y;
        }
    }
  }

  // What the warps have of a half-tile's sums together, for the lane's unit and its two entries of tile n.
  template <int P>
  RNNCC_DEVICE float2 half_sum(int half, int n) const {
    using Phase = typename S::template Phase<P>;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < Phase::SHARERS; ++w) {
      const float2 p = shared_at<const float2>(parts_ + ((half * S::ENTRY_TILES + n) * Phase::SHARERS + w) * 256);
      sum.x += p.x;
      sum.y += p.y;
    }
    return sum;
  }

 private:
  // The run that the warp multiplies in phase P, where it has one alone, and its number among the warps that share it.
  template <int P>
  RNNCC_DEVICE int run_of() const {
    using Phase = typename S::template Phase<P>;
    if constexpr (Phase::RELAYS)
      return relayed_seat<S, P>(rank_).run;
    else
      return warp_ / Phase::SHARERS;
  }
  template <int P>
  RNNCC_DEVICE int share_of() const {
    using Phase = typename S::template Phase<P>;
    return Phase::BY_WARPS ? warp_ % Phase::SHARERS : warp_;
  }

  // What the lane has of a half-tile in a chunk of the warp's run.
  template <int P>
  RNNCC_DEVICE Terms<E> terms_of_own_run(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat,
                                         int chunk, int half) const {
    using Phase = typename S::template Phase<P>;
    using Run = typename Phase::template Run<0>;
    const int run = run_of<P>(), term = (share_of<P>() * Run::CHUNKS + chunk) * 32, operand = term / Phase::DEPTH;
    if (half >= Run::HALVES || operand >= Run::OPERANDS || run >= runs_of<Step, P>()) return {};
    RelayedRows rows;
    if constexpr (Phase::RELAYS)
      rows = relayed_rows<S, P>(rank_, half);
    else
      rows = {true, sum_of_run<Step, P>(run, half % Run::SUMS), seat.rank * S::UNITS + half / Run::SUMS * 8};
    if (!rows.exist) return {};
    return matrix8<Step, P, S::H>(call, own, rows.sum, run * Run::OPERANDS + operand, seat.head, rows.unit + lane_ / 4,
                                  term % Phase::DEPTH + lane_ % 4 * 8);
  }

  // Calls f with the number of the run that has chunk c.
  template <class Phase, class F>
  RNNCC_DEVICE static void with_run_of(int c, const F& f) {
    for_numbers<Phase::RUNS>([&](auto number) {
      using Run = typename Phase::template Run<decltype(number)::value>;
      if (Run::FIRST_CHUNK <= c && c < Run::END_CHUNK) f(number);
    });
  }

  // The warp's part of sum I of unit block U, for the lane's entries of tile n: what all runs that have the sum give.
  template <class Phase, int U, int I, class Sums>
  RNNCC_DEVICE static float2 of_all_runs(Sums& sums, int n) {
    float2 all = {};
    bool is_first = true;
    for_numbers<Phase::RUNS>([&](auto number) {
      constexpr int R = decltype(number)::value;
      using Run = typename Phase::template Run<R>;
      if constexpr (Run::has_sum(I)) {
        constexpr int HALF = U * Run::SUMS + Run::sums_before(I);
        const float (&part)[4] = sums.template of<R>().acc[n][HALF / 2];
        const float x = part[HALF % 2 * 2], y = part[HALF % 2 * 2 + 1];
        all = is_first ? make_float2(x, y) : make_float2(all.x + x, all.y + y);
        is_first = false;
      }
    });
    return all;
  }

  const int lane_, warp_;
  const uint32_t parts_, matrices_, stage_;
  int rank_ = 0;
  Matrices<S> held_;
};

template <class S>
RNNCC_DEVICE void fused_grid(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  run_grid<S, GridProducts<S>>(call, own);
}

}  // namespace rnncc
