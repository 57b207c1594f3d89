// The loop of CTAs of the whole grid. Operands and parts of reductions go through the exchange (exchange.cuh). There is
// no barrier of the grid. grid.cuh, sparse.cuh and blocks.cuh say how matrices are held and multiplied.
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

  // The exchange is [slot][tile][head][operand][chunk][two entries][octet][entry of the two]. An octet is 8 terms of an
  // entry, and a chunk has the octets of 32 terms. So what a warp asks for lies side by side, and in 16 bits what a CTA
  // sends of two entries fills a sector of 32 bytes. (Where each entry had a row of its own, steps took up to twice as
  // long.) Behind the operands of all phases there is what each block of 8 units gives to the reductions: floats
  // [reduction][four blocks][entry][block].
  static constexpr int OCTET_BYTES = 8 * int(sizeof(E)), CHUNK_BYTES = 4 * LANE_ENTRIES * OCTET_BYTES,
                       TWO_ENTRIES_BYTES = 8 * OCTET_BYTES;
  RNNCC_DEVICE static constexpr uint32_t place_of_chunk(int term) { return uint32_t(term) / 32 * CHUNK_BYTES; }
  RNNCC_DEVICE static constexpr uint32_t place_of_octet(int term) {
    return place_of_chunk(term) + uint32_t(term) / 8 % 4 * (2 * OCTET_BYTES);
  }
  RNNCC_DEVICE static constexpr uint32_t place_of_entry(int entry) {
    return uint32_t(entry) / 2 * TWO_ENTRIES_BYTES + uint32_t(entry) % 2 * OCTET_BYTES;
  }

  // Step t uses slot t % SLOTS. At the end of step t a CTA has received all of step t, of all its turns: itself, or by what
  // others made of it. All that was sent after its senders had read all of step t - 1 of that turn. So each thread then
  // clears what it sent in step t - LAG, unless nobody uses the slot again. A receiver must see that before it polls
  // there. All threads fence every FENCE steps: the sender fences at the latest in step t + FENCE, the receiver gets a
  // word that was sent after that fence, and fences at the latest in step t + 2 FENCE. Where a CTA does not receive
  // something of all others, it waits for them every FENCE steps, and LAG is larger.
  static constexpr int SLOTS = 64, ENTRIES = TURNS * ENTRY_TILES * LANE_ENTRIES;
  static constexpr int FENCE = 31, LAG = 1;

  template <int P, class = void>
  struct OfPhase : PhaseOf<Step, P> {
    using PhaseOf<Step, P>::SUMS, PhaseOf<Step, P>::OPERANDS;
    static constexpr bool RELAYS = rnncc::Relays<Step>::has_phase(P),
                          TAKES_RELAYED = rnncc::Relays<Step>::has_phase(P - 1);
    static constexpr int WIDTH = TAKES_RELAYED ? rnncc::Relays<Step>::NARROW : H, DEPTH = ceil_div(WIDTH, 32) * 32,
                         OPERAND_BYTES = place_of_chunk(DEPTH);
    static constexpr int OPERANDS_BEGIN = OfPhase<P - 1>::OPERANDS_END,
                         OPERANDS_END = OPERANDS_BEGIN + OPERANDS * OPERAND_BYTES;
    // How many half-tiles of sums a CTA has, and how many warps share the terms of each.
    static constexpr int HALVES = RELAYS ? relayed_halves_of<Step, P>(CTAS) : SUMS * UNIT_BLOCKS;
    static constexpr bool BY_WARPS = TAKES_RELAYED && shares_warps<Step, P>(K_WARPS);
    static constexpr int SHARERS = BY_WARPS ? K_WARPS / runs_of<Step, P>() : K_WARPS;
    static constexpr int PARTS = HALVES * SHARERS,
                         MOST_PARTS = PARTS > OfPhase<P - 1>::MOST_PARTS ? PARTS : OfPhase<P - 1>::MOST_PARTS;
    using Received = rnncc::Received<Step, P, H, K_WARPS, ENTRY_TILES, LANE_ENTRIES>;
    static constexpr int MOST_RECEIVED =
        Received::BYTES > OfPhase<P - 1>::MOST_RECEIVED ? Received::BYTES : OfPhase<P - 1>::MOST_RECEIVED;
  };
  template <class V>
  struct OfPhase<-1, V> {
    static constexpr int OPERANDS_END = 0, MOST_PARTS = 0, MOST_RECEIVED = 0;
  };
  static constexpr int REDUCTIONS = LastPhase<Step>::FIRST_REDUCTION + LastPhase<Step>::REDUCTIONS,
                       REDUCTION_BYTES = ceil_div(H, 32) * 16 * LANE_ENTRIES;
  static constexpr int REDUCTIONS_BEGIN = OfPhase<LAST>::OPERANDS_END;
  static constexpr int HEAD_BYTES = REDUCTIONS_BEGIN + REDUCTIONS * REDUCTION_BYTES;

  // Item i has unit block i % UNIT_BLOCKS and tile i / UNIT_BLOCKS, counted through all turns.
  static constexpr int ITEMS = UNIT_BLOCKS * ENTRY_TILES * TURNS, OWNED = ceil_div(ITEMS, K_WARPS);
  static constexpr int RECEIVED_BYTES = OfPhase<LAST>::MOST_RECEIVED;
  using Memory = Traffic<Step, H, UNITS, TURNS * ENTRY_TILES * LANE_ENTRIES, THREADS, LANE_ENTRIES>;
  static_assert(H % 8 == 0);
};

// Waits until all CTAs of the head have sent operands of a step. `tile`: where the group's first tile begins in its slot.
template <class S>
RNNCC_DEVICE void wait_for_all(const char* tile) {
  for (int rank = threadIdx.x; rank < S::CTAS; rank += S::THREADS)
    for (Spin spin; load4_relaxed(tile + S::place_of_octet(rank * S::UNITS)) == NOT_YET; spin.poll()) {
    }
  __syncthreads();
}

// Where a lane finds what it receives in a turn of a step, as offsets in the step's slot, per tile of entries. Lane
// 4 r + q has entry r, or entry r % LANE_ENTRIES where a tile has fewer entries. Where the group has no such entry, it
// reads what the group's last entry has, and nobody reads the sums.
//
// terms   the lane's piece of an operand's first chunk
// given   what the first blocks of units give to a reduction
template <class S>
struct GridTerms {
  uint32_t terms[S::ENTRY_TILES], given[S::REDUCTIONS > 0 ? S::ENTRY_TILES : 1];
};

// The loop. `Products` holds the matrices of a shape and multiplies, as GridProducts does.
template <class S, class Products>
RNNCC_DEVICE void run_grid(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  extern __shared__ __align__(128) char shared[];
  static_assert(S::SLOTS > 2 * S::FENCE + S::LAG, "a receiver polls a slot again after both have fenced");
  const uint32_t begin = shared_address(shared), received = begin + S::PARTIAL_BYTES,
                 ring = begin + S::SHARED_BYTES - S::Memory::BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, q = lane % 4;
  const Seat seat = seat_of<S::CTAS>(call);
  const int rank = seat.rank, head = seat.head, first_entry = seat.first_entry, entries = seat.entries;
  const int unit0 = rank * S::UNITS, steps = seat.steps;
  // A turn in which the group has no entries would poll for those of the turn before, which may be cleared by then.
  const int turns = S::TURNS == 1 ? 1 : ceil_div(entries, S::ENTRY_TILES * S::LANE_ENTRIES);

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

  // A slot of the exchange begins at an address that all threads share. A thread's places in it are offsets of 32 bits;
  // the host makes sure that they fit.
  const int first_tile = blockIdx.x / S::CTAS / call.heads * (S::TURNS * S::ENTRY_TILES);
  const auto exchange_at = [&](int t) {
    return own.exchange.base + int64_t(uint32_t(t) % S::SLOTS) * own.exchange.step;
  };
  const auto exchange_tile = [&](int n) { return uint32_t((first_tile + n) * call.heads + head) * S::HEAD_BYTES; };
  // The rows of an entry, or of the last one where the group has no such entry.
  const auto rows_of = [&](int entry) { return own_rows<Step>(call, false, first_entry + ::min(entry, entries - 1)); };
  uint32_t mine[S::OWNED];  // where the lane's operands of an item go; in float, those of its first entry
  bool stores[S::OWNED];    // whether there are such units, and the group has such an entry
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    const int entry = sizeof(E) == 4 ? 2 * q : row, unit = sizeof(E) == 4 ? row : 2 * q;
    stores[o] = entry < S::LANE_ENTRIES && n * S::LANE_ENTRIES + entry < entries && unit0 + u * 8 < S::H;
    mine[o] = exchange_tile(n) + S::place_of_octet(unit0 + u * 8) + S::place_of_entry(entry) + unit * sizeof(E);
  }
  GridTerms<S> places_of[S::TURNS];
#pragma unroll
  for (int turn = 0; turn < S::TURNS; ++turn)
#pragma unroll
    for (int n = 0; n < S::ENTRY_TILES; ++n) {
      const int entry = (turn * S::ENTRY_TILES + n) * S::LANE_ENTRIES + row % S::LANE_ENTRIES;
      const int existing = ::min(entry, entries - 1), in_tile = existing % S::LANE_ENTRIES;
      const uint32_t of_tile = exchange_tile(existing / S::LANE_ENTRIES);
      places_of[turn].terms[n] = of_tile + S::place_of_entry(in_tile) + S::place_of_octet(q * 8);
      if constexpr (S::REDUCTIONS > 0) places_of[turn].given[n] = of_tile + S::REDUCTIONS_BEGIN + in_tile * 16;
    }
  // Where the lane stores what an item gives to reductions. Few lanes do: one for each entry.
  [[maybe_unused]] uint32_t given_at[S::OWNED];
  [[maybe_unused]] bool gives[S::OWNED];
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o) {
    const int item = warp + o * S::K_WARPS, u = item % S::UNIT_BLOCKS, n = item / S::UNIT_BLOCKS;
    const int in_tile = 2 * q + row % 2, entry = n * S::LANE_ENTRIES + in_tile, block = unit0 / 8 + u;
    given_at[o] = exchange_tile(n) + S::REDUCTIONS_BEGIN + (block / 4 * S::LANE_ENTRIES + in_tile) * 16 + block % 4 * 4;
    gives[o] = row < 2 && in_tile < S::LANE_ENTRIES && entry < entries && block * 8 < S::H;
  }
  // Stores the words of an item's operand p of a phase: in float one for each of the lane's two entries, in 16 bits one,
  // which has two units of an entry.
  const auto put = [&](auto phase, int o, int t, int p, uint32_t first, uint32_t second) {
    using Phase = typename S::template Phase<decltype(phase)::value>;
    char* const to = exchange_at(t) + Phase::OPERANDS_BEGIN + p * Phase::OPERAND_BYTES + mine[o];
    if (!stores[o]) return;
    store4_relaxed(to, first);
    if (sizeof(E) == 4) store4_relaxed(to + S::OCTET_BYTES, second);
  };
  // Stores what an item gives to a phase's reduction r.
  const auto put_given = [&](auto phase, int o, int t, int r, uint32_t word) {
    using Phase = typename S::template Phase<decltype(phase)::value>;
    store4_relaxed_if(gives[o], exchange_at(t) + (Phase::FIRST_REDUCTION + r) * S::REDUCTION_BYTES + given_at[o], word);
  };
  // Sends an item's operands, and what it gives to reductions, of a phase of step t to the other CTAs.
  const auto send = [&](auto phase, int o, int t, const auto& operand) {
    constexpr int P = decltype(phase)::value;
    using Phase = typename S::template Phase<P>;
#pragma unroll
    for (int p = 0; p < Phase::OPERANDS; ++p) {
      const bool exists = Step::WIDTHS == 1 || items[o].has_unit[width_of<Step, Value::operand, P>(p)];
      const float x = exists ? operand[0][p] : 0.0f, y = exists ? operand[1][p] : 0.0f;
      if constexpr (sizeof(E) == 4)
        put(phase, o, t, p, message(x), message(y));
      else
        put(phase, o, t, p, transpose8x8(pack<E>(x, y)), 0);
    }
    if constexpr (Phase::REDUCTIONS > 0) {
      float given[Phase::REDUCTIONS];
      join_units<Step, P>(operand, items[o].has_unit, given);
#pragma unroll
      for (int r = 0; r < Phase::REDUCTIONS; ++r) put_given(phase, o, t, r, message(given[r]));
    }
  };
  // Takes back all that was sent of an item in step t.
  const auto clear = [&](int o, int t) {
    for_numbers<S::PHASES>([&](auto phase) {
      using Phase = typename S::template Phase<decltype(phase)::value>;
#pragma unroll
      for (int p = 0; p < (Phase::TAKES_RELAYED ? 0 : Phase::OPERANDS); ++p) put(phase, o, t, p, NOT_YET, NOT_YET);
#pragma unroll
      for (int r = 0; r < Phase::REDUCTIONS; ++r) put_given(phase, o, t, r, NOT_YET);
    });
  };
  const auto start = [&](int o, int t, float (&write)[2][written<Step>]) {
    float read[2][at_least_one(Step::READS)], rows[2][row_values<Step>], operand[2][PhaseOf<Step, 0>::TAKES];
    items[o].template load<true>(call, own, t, t + 1 == steps, read, rows);
#pragma unroll
    for (int j = 0; j < 2; ++j) items[o].start(call, j, read[j], rows[j], operand[j], write[j]);
    send(Number<0>{}, o, t, operand);
  };
  Relay<S> relay;
  relay.begin(call, own, seat, exchange_tile, rows_of);
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
    if (t % S::FENCE == 0) fence();
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
      for (int turn = 0; turn < turns; ++turn) {
        if (P == 0 && Phase::SUMS == 0 && turn == 0) move();
        GridTerms<S> places = places_of[0];
        if (turn > 0) places = places_of[S::TURNS - 1];
        bool in_vain = false;
        pauses[P].wait();
        if constexpr (Phase::SUMS > 0) {
          in_vain = products.template multiply<P>(exchange_at(t) + Phase::OPERANDS_BEGIN, places, [&] {
            if (P == 0 && turn == 0) move();
          });
          pauses[P].learn(in_vain);
        }
        if constexpr (Phase::REDUCTIONS > 0) {
          const char* const from = exchange_at(t) + Phase::FIRST_REDUCTION * S::REDUCTION_BYTES;
          Phase::Received::receive(call, [&](int n) { return from + places.given[n]; }, received, in_vain);
          if (Phase::SUMS == 0) pauses[P].learn(in_vain);
        }
        __syncthreads();
        if (P == S::LAST && t + 1 < steps) traffic.wait(t + 1);
        if constexpr (Phase::RELAYS) {
          relay.template send<P>(products, exchange_at(t), t);
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
        // Not all operands can arrive before this CTA has sent its own. A warp that polls before that would only slow
        // the others down. Between turns, the barrier in which warps wait for operands is enough where nothing is
        // reduced.
        if (turn + 1 == turns || Phase::SUMS == 0 || Phase::REDUCTIONS > 0) __syncthreads();
      }
    });
    if constexpr (S::LAG > 1)
      if (t % S::FENCE == 0) wait_for_all<S>(exchange_at(t) + exchange_tile(0));
    if (t >= S::LAG && t - S::LAG + S::SLOTS < steps) {
#pragma unroll
      for (int o = 0; o < S::OWNED; ++o)
        if (warp + o * S::K_WARPS < S::ITEMS) clear(o, t - S::LAG);
      relay.clear(exchange_at(t - S::LAG));
    }
  }
  traffic.store(steps - 1);
#pragma unroll
  for (int o = 0; o < S::OWNED; ++o)
    if (warp + o * S::K_WARPS < S::ITEMS) items[o].end(own);
}

}  // namespace rnncc
