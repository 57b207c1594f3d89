// A fused loop whose sums go to the CTAs that own their units; see cluster.cuh.
#pragma once

#include "cluster.cuh"

namespace rnncc {

// The number range * SIZE + within, with 0 <= within < SIZE. `range` belongs to a warp. `within` is known when the
// kernel is compiled, except after a remainder by a number that neither divides SIZE nor is a multiple of it. Both
// parts are divided apart, for two reasons: nvcc 13.0 loses the / 2 of (8 * (x & 1) + 1) % 16 / 2, and a quotient that
// is known when compiled costs nothing.
template <int SIZE>
struct Ranged {
  int range, within;

  RNNCC_DEVICE int value() const { return range * SIZE + within; }

  template <int DIVISOR>
  RNNCC_DEVICE int quotient() const {
    if constexpr (SIZE % DIVISOR == 0)
      return range * (SIZE / DIVISOR) + within / DIVISOR;
    else if constexpr (DIVISOR % SIZE == 0)
      return range / (DIVISOR / SIZE);
    else
      return hidden() / DIVISOR;
  }

  template <int DIVISOR>
  RNNCC_DEVICE Ranged remainder() const {
    if constexpr (SIZE % DIVISOR == 0)
      return {0, within % DIVISOR};
    else if constexpr (DIVISOR % SIZE == 0)
      return {range % (DIVISOR / SIZE), within};
    else {
      const int rest = hidden() % DIVISOR;
      return {rest / SIZE, rest % SIZE};
    }
  }

 private:
  // The value, without what nvcc knows of its bits.
  RNNCC_DEVICE unsigned hidden() const {
    unsigned number = value();
    asm("" : "+r"(number));
    return number;
  }
};

// A CTA has ROW_WARPS × K_WARPS warps. A warp has 1/ROW_WARPS of the rows (sums of all units), and one of K_WARPS
// ranges of the terms (operands of the CTA's own UNITS units).
template <class Step_, int H_, int CTAS_, int UNITS_, int ROW_WARPS_, int K_WARPS_, int ENTRY_TILES_, int LANE_ROWS_,
          int REGISTER_TILES_>
struct ScatterShape {
  using Step = Step_;
  using E = typename Step::Element;
  static_assert(Step::PHASES == 1 && PhaseOf<Step, 0>::REDUCTIONS == 0 && Step::ROW_WRITES == 0);
  static constexpr int SUMS = PhaseOf<Step, 0>::SUMS, OPERANDS = PhaseOf<Step, 0>::OPERANDS;
  static constexpr int H = H_, CTAS = CTAS_, UNITS = UNITS_, ROW_WARPS = ROW_WARPS_, K_WARPS = K_WARPS_,
                       ENTRY_TILES = ENTRY_TILES_;
  static constexpr int DIM = UNITS * CTAS, UNIT_BLOCKS = UNITS / 8, ENTRIES = ENTRY_TILES * 8;
  static constexpr int WARPS = ROW_WARPS * K_WARPS, THREADS = WARPS * 32;
  static constexpr int RANGE = ceil_div(OPERANDS * UNITS, 32 * K_WARPS) * 32, DEPTH = RANGE * K_WARPS;
  static constexpr int HALVES = SUMS * DIM / 8 / ROW_WARPS;
  using Matrix = Resident<E, RANGE / 32, HALVES, REGISTER_TILES_ / 2, rows_of_lane(HALVES, LANE_ROWS_)>;
  using Block = OperandBlock<E>;
  static constexpr int ITEMS = UNIT_BLOCKS * ENTRY_TILES, OWNED = ceil_div(ITEMS, WARPS), SOURCES = CTAS * K_WARPS;
  static constexpr int TILE_BYTES = DEPTH / 8 * Block::BYTES, BUFFER_BYTES = ENTRY_TILES * TILE_BYTES;
  static constexpr int PART_BYTES = SOURCES * ITEMS * SUMS * 256;  // float [source][item][sum][8 units][8 entries]
  static constexpr int MATRIX_BYTES = WARPS * Matrix::WARP_BYTES;
  using Memory = Traffic<Step, H, UNITS, ENTRIES, THREADS>;
  static constexpr int SHARED_BYTES = 2 * BUFFER_BYTES + 2 * PART_BYTES + MATRIX_BYTES + Memory::BYTES + 16;
  static_assert(H % 8 == 0 && DIM >= H && SUMS * DIM % (16 * ROW_WARPS) == 0);
};

template <class S>
RNNCC_DEVICE void fused_scatter(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  constexpr int STAGES = S::Memory::STAGES;
  extern __shared__ __align__(128) char shared[];
  const uint32_t operands = shared_address(shared), parts = operands + 2 * S::BUFFER_BYTES,
                 matrices = parts + 2 * S::PART_BYTES, ring = matrices + S::MATRIX_BYTES,
                 barriers = ring + S::Memory::BYTES;  // [2]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, q = lane % 4;
  const int row_warp = warp % S::ROW_WARPS, k_warp = warp / S::ROW_WARPS;
  const Seat seat = seat_of<S::CTAS>(call);
  const int first_unit = seat.rank * S::UNITS, steps = seat.steps;
  // Half-tile i of the warp's tile m is a block of 8 units of one sum.
  const auto half_tile = [&](int m, int i) { return Ranged<2 * S::Matrix::ROWS>{row_warp, 2 * m + i}; };

  // The terms are the CTA's own units, operand by operand.
  typename S::Matrix matrix;
  matrix.fill(matrices, warp, [&](int pair, int m, int i) {
    const int term = k_warp * S::RANGE + pair * 32 + q * 8, operand = term / S::UNITS, k = first_unit + term % S::UNITS;
    const auto half = half_tile(m, i);
    const int sum = half.template quotient<S::DIM / 8>(),
              unit = half.template remainder<S::DIM / 8>().value() * 8 + row;
    return operand < S::OPERANDS ? matrix8<Step, 0, S::H>(call, own, sum, operand, seat.head, unit, k) : Terms<E>{};
  });
  for (int i = threadIdx.x; i < 2 * S::BUFFER_BYTES / 4; i += S::THREADS) shared_at<uint32_t>(operands + 4 * i) = 0;
  typename S::Memory traffic;
  traffic.begin(call, own, seat, first_unit, ring);
  const uint32_t expected =
      S::SOURCES * S::SUMS * S::UNITS * ((seat.entries + 1) / 2) * 8;  // entries are sent in pairs
  if constexpr (S::CTAS > 1) begin_barriers(barriers, 2, expected);
  __syncthreads();

  Item<Step, S::H, typename S::Memory> items[S::OWNED];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    if (item >= S::ITEMS) continue;
    items[o].begin(call, own, traffic, seat, first_unit, u * 8, n * 8);
  }
  // Runs start(t). Its operands stay in this CTA.
  const auto start = [&](int o, int t) {
    const int item = warp + o * S::WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], operand[2][S::OPERANDS];
    float write[2][written<Step>];
    items[o].template load<true>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
    for (int j = 0; j < 2; ++j) items[o].start(call, j, read[j], rows[j], operand[j], write[j]);
#pragma unroll
    for (int p = 0; p < S::OPERANDS; ++p)
      S::Block::store(
          operands + (t & 1) * S::BUFFER_BYTES + n * S::TILE_BYTES + (p * S::UNIT_BLOCKS + u) * S::Block::BYTES,
          items[o].has_entry[0] ? operand[0][p] : 0.0f, items[o].has_entry[1] ? operand[1][p] : 0.0f);
    items[o].template put_down<0>(own, t - 1, write);
  };
  for (int s = 0; s < STAGES - 1; ++s) traffic.fetch(s);
  if (steps > 0) traffic.wait(0);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
    if (warp + o * S::WARPS < S::ITEMS && steps > 0) start(o, 0);

  for (int t = 0; t < steps; ++t) {
    const int buffer = t & 1;
#pragma unroll
    for (int o = 0; o < S::OWNED; ++o)
      if (warp + o * S::WARPS < S::ITEMS) items[o].ask(own, t + 1, steps);
    __syncthreads();
    float acc[S::ENTRY_TILES][S::Matrix::ROWS][4] = {};
    multiply<E>(matrix, operands + buffer * S::BUFFER_BYTES + k_warp * S::RANGE / 8 * S::Block::BYTES, S::TILE_BYTES,
                acc);
    // Whether all sums of a tile are sent in one branch. Where each send has a condition of its own, the compiler joins
    // only some of them, and at the beginning of a branch a warp waits until the sends before it have read their
    // registers. Where CTAs send 16 KB per tile and step (512 units), the backward took 10 % less in one branch; where they
    // send 12 KB or less, it took 2 to 3 % more.
    constexpr bool ONE_BRANCH = S::CTAS > 1 && S::WARPS * S::Matrix::ROWS >= 32;
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n) {
      if (ONE_BRANCH && n * 8 + 2 * q >= seat.entries) continue;
#pragma unroll
      for (int m = 0; m < S::Matrix::ROWS; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int sum = half_tile(m, i).template quotient<S::DIM / 8>();
          const auto block = half_tile(m, i).template remainder<S::DIM / 8>();
          const int owner = block.template quotient<S::UNIT_BLOCKS>();
          const int item = n * S::UNIT_BLOCKS + block.template remainder<S::UNIT_BLOCKS>().value(),
                    source = seat.rank * S::K_WARPS + k_warp;
          const uint32_t to =
              parts + buffer * S::PART_BYTES + ((source * S::ITEMS + item) * S::SUMS + sum) * 256 + lane * 8;
          const float x = acc[n][m][2 * i], y = acc[n][m][2 * i + 1];
          if constexpr (S::CTAS == 1)
            shared_at<float2>(to) = make_float2(x, y);
          else if (ONE_BRANCH || n * 8 + 2 * q < seat.entries)
            send8(peer_address(to, owner), peer_address(barriers + 8 * buffer, owner), x, y);
        }
    }
    // At the barrier above all threads of the CTA were done with the reads and writes of step t - 1.
    traffic.store(t - 1);
    traffic.fetch(t + STAGES - 1);
    if constexpr (S::CTAS == 1) __syncthreads();
    if (t + 1 < steps) traffic.wait(t + 1);
    if (S::CTAS > 1 && warp < S::ITEMS) {
      barrier_wait(barriers + 8 * buffer, (t >> 1) & 1);
      if (threadIdx.x == 0) barrier_expect(barriers + 8 * buffer, expected);
    }
#pragma unroll
    for (int o = 0; o < S::OWNED; ++o) {
      const int item = warp + o * S::WARPS;
      if (item >= S::ITEMS) continue;
      float sum[2][S::SUMS] = {};
#pragma unroll
      for (int i = 0; i < S::SUMS; ++i) {
        const uint32_t from = parts + buffer * S::PART_BYTES + (item * S::SUMS + i) * 256 + lane * 8;
#pragma unroll
        for (int s = 0; s < S::SOURCES; ++s) {
          const float2 p = shared_at<const float2>(from + s * S::ITEMS * S::SUMS * 256);
          sum[0][i] += p.x;
          sum[1][i] += p.y;
        }
      }
      float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], write[2][written<Step>];
      items[o].template load<false>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
      for (int j = 0; j < 2; ++j) items[o].finish(call, j, t, sum[j], read[j], rows[j], write[j]);
      if (t + 1 < steps) start(o, t + 1);
      items[o].template put_down<1>(own, t, write);
    }
  }
  __syncthreads();
  traffic.store(steps - 1);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
    if (warp + o * S::WARPS < S::ITEMS) items[o].end(own);
  if constexpr (S::CTAS > 1) cluster_barrier();
}

}  // namespace rnncc
