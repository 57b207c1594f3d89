// The loop of CTAs of the whole grid. Operands and parts of reductions go through the exchange (exchange.cuh). There is
// no barrier of the grid, and no fence. grid.cuh, sparse.cuh and blocks.cuh say how matrices are held and multiplied.
#pragma once

#include "../device/exchange.cuh"
#include "../device/relay.cuh"

namespace rnncc {

// What all kernels of this form have in common, however they hold matrices.
//
// A CTA takes its group of batch entries in one or two *turns*. While the operands of one turn are on their way, it
// works for the other one. A turn has ENTRY_TILES tiles, and a tile has LANE_ENTRIES entries: 8, as many as an item, or
// fewer.
template <class Step_, int H_, int UNIT_BLOCKS_, int K_WARPS_, int ENTRY_TILES_, int TURNS_ = 1, int LANE_ENTRIES_ = 8>
struct GridLayout {
  using Step = Step_;
  using E = typename Step::Element;
  static constexpr int H = H_, UNIT_BLOCKS = UNIT_BLOCKS_, K_WARPS = K_WARPS_, ENTRY_TILES = ENTRY_TILES_,
                       TURNS = TURNS_, LANE_ENTRIES = LANE_ENTRIES_;
  static constexpr int UNITS = UNIT_BLOCKS * 8, CTAS = ceil_div(H, UNITS), THREADS = K_WARPS * 32;
  static_assert(TURNS == 1 || TURNS == 2);
  static constexpr int PHASES = Step::PHASES, LAST = PHASES - 1;
  static constexpr int DEPTH = ceil_div(H, 32) * 32;  // terms per operand, unless it was relayed
  static constexpr int OPERAND_BYTES = DEPTH * int(sizeof(E)),
                       OPERANDS = LastPhase<Step>::FIRST_OPERAND + LastPhase<Step>::OPERANDS;
  static constexpr int SOURCES = H / 8, SOURCE_PIECES = ceil_div(SOURCES, 4);

  template <int P, class = void>
  struct OfPhase : PhaseOf<Step, P> {
    using PhaseOf<Step, P>::SUMS, PhaseOf<Step, P>::OPERANDS;
    static constexpr bool RELAYS = rnncc::Relays<Step>::has_phase(P),
                          TAKES_RELAYED = rnncc::Relays<Step>::has_phase(P - 1);
    // The exchange is [step][entry][head][operand][DEPTH], so that the terms that a warp reads follow each other. It
    // has the operands of all phases.
    static constexpr int WIDTH = TAKES_RELAYED ? rnncc::Relays<Step>::NARROW : H, DEPTH = ceil_div(WIDTH, 32) * 32,
                         OPERAND_BYTES = DEPTH * int(sizeof(E));
    static constexpr int OPERANDS_BEGIN = OfPhase<P - 1>::OPERANDS_END,
                         OPERANDS_END = OPERANDS_BEGIN + OPERANDS * OPERAND_BYTES;
    // How many half-tiles of sums a CTA has, and how many warps share the terms of each.
    static constexpr int HALVES = RELAYS ? relayed_halves_of<Step, P>(CTAS) : SUMS * UNIT_BLOCKS;
    static constexpr bool BY_WARPS = TAKES_RELAYED && shares_warps<Step, P>(K_WARPS);
    static constexpr int SHARERS = BY_WARPS ? K_WARPS / runs_of<Step, P>() : K_WARPS;
    static constexpr int PARTS = HALVES * SHARERS,
                         MOST_PARTS = PARTS > OfPhase<P - 1>::MOST_PARTS ? PARTS : OfPhase<P - 1>::MOST_PARTS;
    using Received = rnncc::Received<Step, P, H, K_WARPS, ENTRY_TILES>;
    static constexpr int MOST_RECEIVED =
        Received::BYTES > OfPhase<P - 1>::MOST_RECEIVED ? Received::BYTES : OfPhase<P - 1>::MOST_RECEIVED;
  };
  template <class V>
  struct OfPhase<-1, V> {
    static constexpr int OPERANDS_END = 0, MOST_PARTS = 0, MOST_RECEIVED = 0;
  };
  // Behind the operands, the exchange has what each block of units gives to the reductions: floats
  // [reduction][SOURCES], padded to 16 bytes.
  static constexpr int REDUCTIONS = LastPhase<Step>::FIRST_REDUCTION + LastPhase<Step>::REDUCTIONS;
  static constexpr int REDUCTIONS_BEGIN = OfPhase<LAST>::OPERANDS_END;
  static constexpr int HEAD_BYTES = REDUCTIONS_BEGIN + REDUCTIONS * SOURCE_PIECES * 16;

  // Item i has unit block i % UNIT_BLOCKS and tile i / UNIT_BLOCKS, counted through all turns.
  static constexpr int ITEMS = UNIT_BLOCKS * ENTRY_TILES * TURNS, OWNED = ceil_div(ITEMS, K_WARPS);
  static constexpr int AHEAD = 4;
  static constexpr int RECEIVED_BYTES = OfPhase<LAST>::MOST_RECEIVED;
  using Memory = Traffic<Step, H, UNITS, TURNS * ENTRY_TILES * LANE_ENTRIES, THREADS, LANE_ENTRIES>;
  static_assert(H % 8 == 0);
};

// Where a lane finds the operands of a turn of a step in the exchange.
//
// terms   offsets of the lane's first terms of an operand, per tile of entries. Lane 4 r + q has entry r, or entry
//         r % LANE_ENTRIES where a tile has fewer entries. Where the group has no such entry, they are those of its last
//         entry, and nobody reads the sums
// until   in masked loops: for how many steps the entry has rows
template <class S>
struct GridTerms {
  uint32_t terms[S::ENTRY_TILES];
  int until[S::Step::MASKED ? S::ENTRY_TILES : 1];
  RNNCC_DEVICE bool has_rows(int n, int t) const { return !S::Step::MASKED || t < until[S::Step::MASKED ? n : 0]; }
};

// The loop. `Products` holds the matrices of a shape and multiplies, as GridProducts does.
template <class S, class Products>
RNNCC_DEVICE void run_grid(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  extern __shared__ __align__(128) char shared[];
  const uint32_t begin = shared_address(shared), received = begin + S::PARTIAL_BYTES,
                 ring = begin + S::SHARED_BYTES - S::Memory::BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, q = lane % 4;
  const Seat seat = seat_of<S::CTAS>(call);
  const int rank = seat.rank, head = seat.head, first_entry = seat.first_entry, entries = seat.entries;
  const int unit0 = rank * S::UNITS, steps = seat.steps;

  Products products(shared);
  products.fill(call, own, seat);

  typename S::Memory traffic;
  traffic.begin(call, own, seat, unit0, ring);
  __syncthreads();

  Item<Step, S::H, typename S::Memory> items[S::OWNED];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    if (item < S::ITEMS) {
      items[o].begin(call, own, traffic, seat, unit0, u * 8, n * 8);
    }
  }
  for (int t = 0; t < S::Memory::STAGES - 1; ++t) traffic.fetch(t);

  // A step of the exchange begins at an address that all threads share. A thread's places in the step are offsets of 32
  // bits; the host makes sure that they fit.
  const uint32_t exchange_entry = uint32_t(own.exchange.entry), exchange_head = head * S::HEAD_BYTES;
  const auto exchange_at = [&](int t) { return own.exchange.base + int64_t(t) * own.exchange.step; };
  // In the exchange the rows of an entry follow each other in the loop's order. Where the group has no such entry, the
  // rows are those of its last entry.
  const auto rows_of = [&](int entry) { return own_rows<Step>(call, false, first_entry + ::min(entry, entries - 1)); };
  const auto exchange_row = [&](int entry) { return uint32_t(rows_of(entry).first) * exchange_entry + exchange_head; };
  uint32_t mine[S::OWNED];                   // where the lane's operands of an item go
  [[maybe_unused]] uint32_t next[S::OWNED];  // where those of its second entry go, in masked loops in float
  // Whether the lane stores operands of 16 bits: whether it has units and an entry after lanes have exchanged theirs.
  // In masked loops, for how many steps it does.
  int stored_steps[S::OWNED];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    const int tile = n * S::LANE_ENTRIES;  // its first entry
    const int entry = sizeof(E) == 4 ? 2 * q : row, unit = sizeof(E) == 4 ? row : 2 * q;
    stored_steps[o] = row < S::LANE_ENTRIES && tile + row < entries && unit0 + u * 8 < S::H;
    if constexpr (Step::MASKED) stored_steps[o] *= rows_of(tile + row).steps;
    mine[o] = exchange_row(tile + entry) + (unit0 + u * 8 + unit) * sizeof(E);
    if constexpr (sizeof(E) == 4 && Step::MASKED)
      next[o] = exchange_row(tile + entry + 1) + (unit0 + u * 8 + unit) * sizeof(E);
  }
  GridTerms<S> places_of[S::TURNS];
#pragma unroll
  for (int turn = 0; turn < S::TURNS; ++turn)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n) {
      const int entry = (turn * S::ENTRY_TILES + n) * S::LANE_ENTRIES + row % S::LANE_ENTRIES;
      places_of[turn].terms[n] = exchange_row(entry) + q * 8 * sizeof(E);
      if constexpr (Step::MASKED) places_of[turn].until[n] = rows_of(entry).steps;
    }
  // Where the lane stores what an item gives to reductions. Few lanes store: those that have an entry for it. In masked
  // loops, for how many steps they do.
  [[maybe_unused]] uint32_t given_row[S::OWNED];
  [[maybe_unused]] int given_steps[S::OWNED];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    const int in_tile = 2 * q + row % 2, entry = n * S::LANE_ENTRIES + in_tile;
    given_row[o] = exchange_row(entry) + (unit0 / 8 + u) * 4;
    given_steps[o] = row < 2 && in_tile < S::LANE_ENTRIES && entry < entries && unit0 + u * 8 < S::H;
    if constexpr (Step::MASKED) given_steps[o] *= rows_of(entry).steps;
  }
  // Sends an item's operands, and what it gives to reductions, of a phase of step t to the other CTAs.
  const auto send = [&](auto phase, int o, int t, const auto& operand) {
    constexpr int P = decltype(phase)::value;
    using Phase = typename S::template Phase<P>;
#pragma unroll
    for (int p = 0; p < Phase::OPERANDS; ++p) {
      char* const to = exchange_at(t) + Phase::OPERANDS_BEGIN + p * Phase::OPERAND_BYTES;
      const bool exists = Step::WIDTHS == 1 || items[o].has_unit[width_of<Step, Value::operand, P>(p)];
      const float x = exists ? operand[0][p] : 0.0f, y = exists ? operand[1][p] : 0.0f;
      if constexpr (sizeof(E) == 4) {
        if (items[o].has_rows(0, t)) store4_relaxed(to + mine[o], message(x));
        if (items[o].has_rows(1, t))
          store4_relaxed(to + (Step::MASKED ? next[o] : mine[o] + exchange_entry), message(y));
      } else {
        const uint32_t two = transpose8x8(pack<E>(x, y));
        if (Step::MASKED ? t < stored_steps[o] : stored_steps[o]) store4_relaxed(to + mine[o], two);
      }
    }
    if constexpr (Phase::REDUCTIONS > 0) {
      char* const to = exchange_at(t) + S::REDUCTIONS_BEGIN + Phase::FIRST_REDUCTION * S::SOURCE_PIECES * 16;
      float given[Phase::REDUCTIONS];
      join_units<Step, P>(operand, items[o].has_unit, given);
#pragma unroll
      for (int r = 0; r < Phase::REDUCTIONS; ++r)
        store4_relaxed_if(Step::MASKED ? t < given_steps[o] : given_steps[o],
                          to + given_row[o] + r * S::SOURCE_PIECES * 16, message(given[r]));
    }
  };
  const auto start = [&](int o, int t, float (&write)[2][written<Step>]) {
    float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], operand[2][PhaseOf<Step, 0>::TAKES];
    items[o].template load<true>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
    for (int j = 0; j < 2; ++j) items[o].start(call, j, read[j], rows[j], operand[j], write[j]);
    send(Number<0>{}, o, t, operand);
  };
  [[maybe_unused]] const OwnRows of_lane_entry = Step::MASKED ? rows_of(lane) : OwnRows{};
  Relay<S> relay;
  relay.begin(call, own, seat, exchange_row, rows_of);
  if (steps > 0) traffic.wait(0);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
    if (warp + o * S::K_WARPS < S::ITEMS && steps > 0) {
      float started[2][written<Step>];
      start(o, 0, started);
      items[o].template put_down<0>(own, -1, started);
    }
  __syncthreads();

  // The pauses before the warp polls for the operands of a phase, or for what is reduced where it has no operands.
  Pause pauses[S::PHASES];
  for (int t = 0; t < steps; ++t) {
#pragma unroll
    for (int o = 0; o < S::OWNED; ++o)
      if (warp + o * S::K_WARPS < S::ITEMS) items[o].ask(own, t + 1, steps);
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      using Phase = typename S::template Phase<P>;
      // The CTA writes and reads while what it waits for is on its way.
      const auto move = [&] {
        traffic.store(t - 1);
        traffic.fetch(t - 1 + S::Memory::STAGES);
      };
#pragma unroll 1
      for (int turn = 0; turn < S::TURNS; ++turn) {
        if (P == 0 && Phase::SUMS == 0 && turn == 0) move();
        GridTerms<S> places = places_of[0];
        if (turn > 0) places = places_of[S::TURNS - 1];
        bool in_vain = false;
        pauses[P].wait();
        if constexpr (Phase::SUMS > 0) {
          in_vain = products.template multiply<P>(exchange_at(t) + Phase::OPERANDS_BEGIN, places, t, [&] {
            if (P == 0 && turn == 0) move();
          });
          pauses[P].learn(in_vain);
        }
        if constexpr (Phase::REDUCTIONS > 0) {
          const char* const from =
              exchange_at(t) + S::REDUCTIONS_BEGIN + Phase::FIRST_REDUCTION * S::SOURCE_PIECES * 16;
          Phase::Received::receive(
              call, [&](int n) { return from + (places.terms[n] - uint32_t(q * 8 * sizeof(E))); },
              [&](int n) { return places.has_rows(n, t); }, received, in_vain);
          if (Phase::SUMS == 0) pauses[P].learn(in_vain);
        }
        __syncthreads();
        if (P == S::LAST && t + 1 < steps) traffic.wait(t + 1);
        if constexpr (Phase::RELAYS) {
          relay.template send<P>(products, exchange_at(t), t);
          relay.template prefetch<P>(exchange_at(t + S::AHEAD), t + S::AHEAD);
          const OwnRows polled = Step::MASKED ? of_lane_entry : rows_of(lane);
          if (Relay<S>::template prefetches<P>() && warp == S::K_WARPS - 1 && lane < entries &&
              t + S::AHEAD < polled.steps)
            relay.prefetch_operands(
                exchange_at(t + S::AHEAD) + (uint32_t(polled.first) * exchange_entry + exchange_head), unit0);
        }
#pragma unroll
        for (int o = 0; o < (Phase::RELAYS ? 0 : S::OWNED); ++o) {
          const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
          if (item >= S::ITEMS || n / S::ENTRY_TILES != turn) continue;
          float sum[2][Phase::GIVES] = {};
          if constexpr (Phase::SUMS > 0) products.template sum<P>(u, n % S::ENTRY_TILES, sum);
          if constexpr (Phase::REDUCTIONS > 0) {
            using Given = typename Phase::Received::Given;
            float reduced[2][Phase::REDUCTIONS];
            join_parts<Step, P, S::H, Given>(call, received + n % S::ENTRY_TILES * Given::BYTES, reduced);
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
              for (int r = 0; r < Phase::REDUCTIONS; ++r) sum[j][Phase::SUMS + r] = reduced[j][r];
          }
          float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], made[2][written<Step>];
          items[o].template load<false>(call, own, t, t + 1 == steps, read, rows);
          if constexpr (P < S::LAST) {
            float operand[2][PhaseOf<Step, P + 1>::TAKES];
#pragma unroll
            for (int j = 0; j < 2; ++j)
              items[o].template middle<P + 1>(call, j, sum[j], read[j], rows[j], operand[j], made[j]);
            send(Number<P + 1>{}, o, t, operand);
          } else {
            float started[2][written<Step>];
#pragma unroll
            for (int j = 0; j < 2; ++j) items[o].finish(call, j, t, sum[j], read[j], rows[j], made[j]);
            if (t + 1 < steps) start(o, t + 1, started);
            if (t + 1 < steps) items[o].template put_down<0>(own, t, started);
          }
          items[o].template put_down<P + 1>(own, t, made);
        }
        if (P == S::LAST && turn + 1 == S::TURNS) {
          // The lines of the exchange that will be polled come from memory into L2 before anyone polls.
          const OwnRows polled = Step::MASKED ? of_lane_entry : rows_of(lane);
          if (Relays<Step>::NARROW == 0 && S::ITEMS < S::K_WARPS && warp == S::K_WARPS - 1 && lane < entries &&
              t + S::AHEAD < polled.steps)
#pragma unroll
            for (int p = 0; p < S::OPERANDS; ++p)
              prefetch_l2(exchange_at(t + S::AHEAD) + (uint32_t(polled.first) * exchange_entry + exchange_head +
                                                       unit0 * int(sizeof(E)) + p * S::OPERAND_BYTES),
                          ::min(S::UNITS, S::H - unit0) * int(sizeof(E)));
        }
        // Not all operands can arrive before this CTA has sent its own. A warp that polls before that would only slow
        // the others down. Between turns, the barrier in which warps wait for operands is enough where nothing is
        // reduced.
        if (turn + 1 == S::TURNS || Phase::SUMS == 0 || Phase::REDUCTIONS > 0) __syncthreads();
      }
    });
  }
  traffic.store(steps - 1);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
    if (warp + o * S::K_WARPS < S::ITEMS) items[o].end(own);
}

}  // namespace rnncc
