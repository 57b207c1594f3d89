// A fused loop over CTAs of the whole grid, for large batches. A CTA has some units of 64 batch entries. The entries are
// the rows of its products, and its matrices stay in shared memory. Each of its two warpgroups multiplies half of the
// terms. Then they exchange sums, and each does the elementwise work of half of the units.
#pragma once

#include "../device/exchange.cuh"
#include "../device/span.cuh"
#include "../device/wgmma.cuh"

namespace rnncc {

template <class Step_, int H_, int UNIT_BLOCKS_, int BUFFERS_>
struct WideShape {
  using Step = Step_;
  using E = typename Step::Element;
  static constexpr int H = H_, UNIT_BLOCKS = UNIT_BLOCKS_, UNITS = 8 * UNIT_BLOCKS, BUFFERS = BUFFERS_,
                       CTAS = H / UNITS;
  static constexpr int WARPGROUPS = 2, THREADS = WARPGROUPS * 128;
  // A lane has two entries, with LANE_UNITS units side by side of each.
  static constexpr int OWN_UNIT_BLOCKS = UNIT_BLOCKS / WARPGROUPS, LANE_UNITS = 2 * OWN_UNIT_BLOCKS;
  static constexpr int PHASES = Step::PHASES, LAST = PHASES - 1;

  // The exchange is [slot][group][head][operand][block][warp][lane], in pieces of 16 bytes. A block has 16 terms of 64
  // entries, and each warp has 16 of these. A piece is what one lane gives to a product: four terms of two entries. A
  // chunk is CHUNK blocks, for which a lane polls at a time. BUFFERS - 1 chunks are on their way while one is multiplied.
  static constexpr int TERM_BLOCKS = H / 16, BLOCK_BYTES = 4 * 512, CHUNK = 8;
  static constexpr int OPERANDS = LastPhase<Step>::FIRST_OPERAND + LastPhase<Step>::OPERANDS;
  static constexpr int HEAD_BYTES = OPERANDS * TERM_BLOCKS * BLOCK_BYTES;
  // Step t uses slot t % SLOTS. When a CTA sends operands of step t + 1, it has received all of step t. Every CTA sent
  // those after it had read all of step t - 1. So each thread then clears what it sent in step t - 1. A receiver must see
  // that before it polls the slot again. All threads fence every FENCE steps: the sender fences at the latest in step
  // t + FENCE, the receiver gets an operand that was sent after that fence, and fences at the latest in step t + 2 FENCE.
  static constexpr int ENTRIES = 64, SLOTS = 16, FENCE = 4;
  static_assert(SLOTS > 2 * FENCE + 1, "a receiver polls a slot again after both have fenced");

  template <int P, class = void>
  struct Phase : PhaseOf<Step, P> {
    using PhaseOf<Step, P>::SUMS, PhaseOf<Step, P>::OPERANDS;
    static_assert(SUMS > 0 && PhaseOf<Step, P>::REDUCTIONS == 0);
    // A column of the product is a sum of a unit. Blocks of 8 columns are [sum][warpgroup][block of the lane's units].
    static constexpr int COLUMNS = SUMS * UNITS;
    static constexpr int BLOCKS = OPERANDS * TERM_BLOCKS, OWN_TERM_BLOCKS = BLOCKS / WARPGROUPS,
                         CHUNKS = ceil_div(OWN_TERM_BLOCKS, CHUNK);
    static constexpr int FIRST_BLOCK = PhaseOf<Step, P>::FIRST_OPERAND * TERM_BLOCKS;  // in the exchange
    static constexpr int TERMS_STEP = COLUMNS * 16;  // bytes from 8 terms of the matrix to the next
    static constexpr int MATRIX_BEGIN = Phase<P - 1>::MATRIX_END, MATRIX_END = MATRIX_BEGIN + BLOCKS * 2 * TERMS_STEP;
    static constexpr int MOST_COLUMNS = COLUMNS > Phase<P - 1>::MOST_COLUMNS ? COLUMNS : Phase<P - 1>::MOST_COLUMNS;
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int MATRIX_END = 0, MOST_COLUMNS = 0;
  };
  // Sums that the warpgroups leave each other.
  static constexpr int MATRIX_BYTES = Phase<LAST>::MATRIX_END, SUM_BYTES = Phase<LAST>::MOST_COLUMNS * 256,
                       VECTOR_BYTES = Step::VECTORS * UNITS * 4;
  static constexpr int SHARED_BYTES = MATRIX_BYTES + SUM_BYTES + VECTOR_BYTES;
  static_assert(sizeof(E) == 2 && Step::WIDTHS == 1 && H % UNITS == 0 && H % (16 * WARPGROUPS) == 0);
  static_assert(LANE_UNITS == 2 || LANE_UNITS == 4);

  // The first of a lane's units, within the head.
  static RNNCC_DEVICE int first_unit(int rank, int warpgroup, int q) {
    return rank * UNITS + warpgroup * (UNITS / WARPGROUPS) + q * LANE_UNITS;
  }
};

// Fills shared memory with the matrix of phase P. For each 8 terms it has blocks of 8 columns, and a block has 8 rows of
// 16 bytes. A lane sends terms 2q, 2q + 1, 2q + 8 and 2q + 9 of a block, but its units lie side by side. So the terms of
// the matrix stand in the order in which lanes send units.
template <class S, int P>
RNNCC_DEVICE void fill_wide(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own,
                            const Seat& seat, uint32_t matrix) {
  using Phase = typename S::template Phase<P>;
  constexpr int PIECES = Phase::BLOCKS * 2;  // of 8 terms
  for (int i = threadIdx.x; i < PIECES * Phase::COLUMNS; i += S::THREADS) {
    const int piece = i % PIECES, column = i / PIECES, block = piece / 2;
    const int column_block = column / 8, in_block = column % 8;
    const int of_sum = column_block % S::UNIT_BLOCKS, own_block = of_sum % S::OWN_UNIT_BLOCKS;
    const int unit = S::first_unit(seat.rank, of_sum / S::OWN_UNIT_BLOCKS, in_block / 2) + own_block * 2 + in_block % 2;
    const uint4 terms =
        matrix8<typename S::Step, P, S::H>(call, own, column_block / S::UNIT_BLOCKS, block / S::TERM_BLOCKS, seat.head,
                                           unit, block % S::TERM_BLOCKS * 16 + piece % 2 * 8);
    const uint32_t words[] = {terms.x, terms.y, terms.z, terms.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int half = S::LANE_UNITS == 4 ? w % 2 : piece % 2, q = S::LANE_UNITS == 4 ? piece % 2 * 2 + w / 2 : w;
      shared_at<uint32_t>(matrix + (block * 2 + half) * Phase::TERMS_STEP + column_block * 128 + in_block * 16 +
                          q * 4) = words[w];
    }
  }
}

// What a warp receives: its 16 entries of all operands. `has_entries`: whether the group has any of them.
template <class S>
struct WideOperands {
  char* base;          // of the first slot, for the lane
  int64_t slot_bytes;  // from a slot to the next
  bool has_entries;

  RNNCC_DEVICE char* at(int t) const { return base + uint32_t(t) % S::SLOTS * slot_bytes; }

  // Adds the product of phase P of step t, over the warpgroup's terms, to sums. Returns whether the warp polled in vain.
  template <int P>
  RNNCC_DEVICE bool multiply(int t, uint32_t matrix, int warpgroup,
                             float (&sums)[S::template Phase<P>::COLUMNS / 2]) const {
    using Phase = typename S::template Phase<P>;
    const char* const from = at(t) + (Phase::FIRST_BLOCK + warpgroup * Phase::OWN_TERM_BLOCKS) * S::BLOCK_BYTES;
    const uint32_t own_matrix =
        matrix + Phase::MATRIX_BEGIN + warpgroup * Phase::OWN_TERM_BLOCKS * 2 * Phase::TERMS_STEP;
    uint4 operands[S::BUFFERS][S::CHUNK];
    const auto ask = [&](const char* all, int c, int i) {
      operands[c % S::BUFFERS][i] = load16_relaxed(all + (c * S::CHUNK + i) * S::BLOCK_BYTES);
    };
    const auto exists = [&](int c, int i) { return c * S::CHUNK + i < Phase::OWN_TERM_BLOCKS; };
    const auto ask_chunk = [&](int c) {
#pragma unroll
      for (int i = 0; i < S::CHUNK; ++i)
        if (exists(c, i) && has_entries) ask(from, c, i);
    };
    // What a lane sent comes as a whole, so one of its words is enough. With LANE_UNITS == 2 a piece has two senders, one in
    // each warpgroup. (PTX promises nothing where a load is wider than a store. GPUs of compute capability 9.0 load 16
    // aligned bytes as they are in L2.)
    const auto has_come = [&](const uint4& v) { return v.x != NOT_YET && (S::LANE_UNITS == 4 || v.z != NOT_YET); };
    bool in_vain = false;
    if (!has_entries)
#pragma unroll
      for (auto& buffer : operands)
#pragma unroll
        for (uint4& operand : buffer) operand = {};
#pragma unroll
    for (int c = 0; c < S::BUFFERS - 1 && c < Phase::CHUNKS; ++c) ask_chunk(c);
    hold_in_place(sums);
#pragma unroll
    for (int c = 0; c < Phase::CHUNKS; ++c) {
      uint4(&now)[S::CHUNK] = operands[c % S::BUFFERS];
      const auto all_have_come = [&] {
        bool all = true;
#pragma unroll
        for (int i = 0; i < S::CHUNK; ++i) all &= !exists(c, i) || has_come(now[i]);
        return __all_sync(~0u, all);
      };
      for (Spin spin; !all_have_come(); spin.poll()) {
        in_vain = true;
        const char* const again = made_again(from);
#pragma unroll
        for (int i = 0; i < S::CHUNK; ++i)
          if (exists(c, i) && !has_come(now[i])) ask(again, c, i);
      }
      begin_products();
      // The address is made again for each chunk, by an instruction whose result is the same in all lanes. So it takes no
      // register of each lane.
      const auto terms = shared_factor(__shfl_sync(~0u, own_matrix, 0), Phase::TERMS_STEP);
#pragma unroll
      for (int i = 0; i < S::CHUNK; ++i)
        if (exists(c, i)) {
          const uint32_t factor[] = {now[i].x, now[i].y, now[i].z, now[i].w};
          multiply64<typename S::E, Phase::COLUMNS>(sums, factor,
                                                    further(terms, (c * S::CHUNK + i) * 2 * Phase::TERMS_STEP));
        }
      commit_products();
      if (c + S::BUFFERS - 1 < Phase::CHUNKS) {
        wait_for_products<1>();  // the chunk before has been multiplied, so its registers are free
        ask_chunk(c + S::BUFFERS - 1);
      }
    }
    wait_for_products<0>();
    hold_in_place(sums);
    return in_vain;
  }

  // Sends the lane's terms of one operand, for both its entries. Lanes without an entry send too: others poll for their
  // words.
  static RNNCC_DEVICE void send(char* to, const uint32_t (&words)[2][S::LANE_UNITS / 2]) {
    if constexpr (S::LANE_UNITS == 4) {
      const uint32_t piece[] = {words[0][0], words[1][0], words[0][1], words[1][1]};
      store_relaxed(to, piece);
    } else {
      const uint32_t piece[] = {words[0][0], words[1][0]};
      store_relaxed(to, piece);
    }
  }
};

template <class S>
RNNCC_DEVICE void fused_wide(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  extern __shared__ __align__(128) char shared[];
  const uint32_t matrices = shared_address(shared), other_sums = matrices + S::MATRIX_BYTES + threadIdx.x % 128 * 16,
                 vectors = matrices + S::MATRIX_BYTES + S::SUM_BYTES;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, row = lane / 4, q = lane % 4;
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x / 128), 0);  // nvcc sees that all lanes have the same
  const Seat seat = seat_of<S::CTAS>(call);
  const int steps = seat.steps;

  for_numbers<S::PHASES>([&](auto phase) {
    constexpr int P = decltype(phase)::value;
    fill_wide<S, P>(call, own, seat, matrices + S::template Phase<P>::MATRIX_BEGIN);
  });
#pragma unroll
  for (int v = 0; v < Step::VECTORS; ++v)
    for (int i = threadIdx.x; i < S::UNITS; i += S::THREADS)
      shared_at<float>(vectors + (v * S::UNITS + i) * 4) =
          take<E>(own.vectors[v], 0, (seat.head * S::H + seat.rank * S::UNITS + i) * own.vectors[v].entry);
  show_to_products();
  __syncthreads();

  const int first_unit = S::first_unit(seat.rank, warpgroup, q);
  Span<Step, S::H, S::LANE_UNITS> spans[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    spans[j].vectors = vectors + (first_unit - seat.rank * S::UNITS) * 4;
    spans[j].vector_step = S::UNITS;
    spans[j].begin(call, own, seat, first_unit, warp * 16 + j * 8 + row);
  }

  WideOperands<S> operands;
  operands.base = own.exchange.base + (blockIdx.x / S::CTAS) * int64_t(S::HEAD_BYTES) + warp * 512 + lane * 16;
  operands.slot_bytes = own.exchange.step;
  operands.has_entries = warp * 16 < seat.entries;
  // Where the lane's units of the first operand go.
  const int own_place =
      S::LANE_UNITS == 4 ? (seat.rank * 2 + warpgroup) * S::BLOCK_BYTES : seat.rank * S::BLOCK_BYTES + warpgroup * 8;
  const auto place = [&](int t, int operand) {
    return operands.at(t) + (own_place + operand * S::TERM_BLOCKS * S::BLOCK_BYTES);
  };
  const auto send = [&](auto phase, int t, const auto& operand) {
    using Phase = typename S::template Phase<decltype(phase)::value>;
    if (!operands.has_entries) return;
#pragma unroll
    for (int p = 0; p < Phase::OPERANDS; ++p) {
      uint32_t words[2][S::LANE_UNITS / 2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int i = 0; i < S::LANE_UNITS / 2; ++i)
          words[j][i] = pack<E>(operand[j][2 * i][p], operand[j][2 * i + 1][p]);
      WideOperands<S>::send(place(t, Phase::FIRST_OPERAND + p), words);
    }
  };
  const auto clear = [&](int t) {
    if (!operands.has_entries) return;
#pragma unroll
    for (int p = 0; p < S::OPERANDS; ++p) {
      uint32_t words[2][S::LANE_UNITS / 2];
#pragma unroll
      for (auto& of_entry : words)
#pragma unroll
        for (uint32_t& word : of_entry) word = NOT_YET;
      WideOperands<S>::send(place(t, p), words);
    }
  };

  using Made = float[2][S::LANE_UNITS][written<Step>];
  typename Span<Step, S::H, S::LANE_UNITS>::Reads now[2], next[2];
  const auto start = [&](int t, Made& made) {
    float operand[2][S::LANE_UNITS][PhaseOf<Step, 0>::TAKES];
#pragma unroll
    for (int j = 0; j < 2; ++j) spans[j].start(call, own, t, next[j], operand[j], made[j]);
    send(Number<0>{}, t, operand);
  };
  const auto write = [&](auto stage, int t, const Made& made) {
#pragma unroll
    for (int j = 0; j < 2; ++j) spans[j].template write<decltype(stage)::value>(own, t, made[j]);
  };
  if (steps > 0) {
    Made started;
#pragma unroll
    for (int j = 0; j < 2; ++j) spans[j].ask(own, 0, next[j]);
    start(0, started);
    write(Number<0>{}, 0, started);
  }

  Pause pauses[S::PHASES];
  for (int t = 0; t < steps; ++t) {
    if (t % S::FENCE == 0) fence();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      spans[j].ask(own, t, now[j]);
      if (t + 1 < steps) spans[j].ask(own, t + 1, next[j]);
      spans[j].ask_rows(own, t + 1, steps);
    }
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      using Phase = typename S::template Phase<P>;
      float sums[Phase::COLUMNS / 2] = {};
      pauses[P].wait();
      pauses[P].learn(operands.template multiply<P>(t, matrices, warpgroup, sums));

      // The warpgroups exchange sums, as [block of columns][warpgroup that reads them][lane].
      const auto sums_of = [&](int s, int b, int w) {
        const float* const of = sums + ((s * S::WARPGROUPS + w) * S::OWN_UNIT_BLOCKS + b) * 4;
        return float4{of[0], of[1], of[2], of[3]};
      };
#pragma unroll
      for (int s = 0; s < Phase::SUMS; ++s)
#pragma unroll
        for (int b = 0; b < S::OWN_UNIT_BLOCKS; ++b)
          shared_at<float4>(other_sums + ((s * S::OWN_UNIT_BLOCKS + b) * 2 + 1 - warpgroup) * 2048) =
              warpgroup == 0 ? sums_of(s, b, 1) : sums_of(s, b, 0);
      __syncthreads();
      float sum[2][S::LANE_UNITS][Phase::SUMS];
#pragma unroll
      for (int s = 0; s < Phase::SUMS; ++s)
#pragma unroll
        for (int b = 0; b < S::OWN_UNIT_BLOCKS; ++b) {
          const float4 own_part = warpgroup == 0 ? sums_of(s, b, 0) : sums_of(s, b, 1);
          const float4 other =
              shared_at<const float4>(other_sums + ((s * S::OWN_UNIT_BLOCKS + b) * 2 + warpgroup) * 2048);
          sum[0][2 * b][s] = own_part.x + other.x;
          sum[0][2 * b + 1][s] = own_part.y + other.y;
          sum[1][2 * b][s] = own_part.z + other.z;
          sum[1][2 * b + 1][s] = own_part.w + other.w;
        }
      Made made;
      if constexpr (P < S::LAST) {
        float operand[2][S::LANE_UNITS][PhaseOf<Step, P + 1>::TAKES];
#pragma unroll
        for (int j = 0; j < 2; ++j) spans[j].template middle<P + 1>(call, own, t, now[j], sum[j], operand[j], made[j]);
        send(Number<P + 1>{}, t, operand);
      } else {
        Made started;
#pragma unroll
        for (int j = 0; j < 2; ++j) spans[j].finish(call, own, t, now[j], sum[j], made[j]);
        if (t + 1 < steps) {
          start(t + 1, started);
          if (t > 0 && t - 1 + S::SLOTS < steps) clear(t - 1);  // its slot is used again
          write(Number<0>{}, t + 1, started);
        }
      }
      write(Number<P + 1>{}, t, made);
      // All threads have read the sums. And a warp that polls before its own CTA has sent would only slow the others down.
      __syncthreads();
    });
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) spans[j].end(own);
}

}  // namespace rnncc
