// Relayed phases in a grid. The sums of such a phase do nothing but go into the next phase, and they are narrower than
// the state. So all CTAs of a head share them, each some half-tiles, whatever units it has (runs.cuh). call.cuh says
// which phases these are.
#pragma once

#include "exchange.cuh"
#include "runs.cuh"

namespace rnncc {

// The run whose rows a CTA has, and which of the run's half-tiles is its first. A CTA without rows has a run behind the
// last one.
struct RelayedSeat {
  int run, first_half;
};
template <class S, int P>
RNNCC_DEVICE RelayedSeat relayed_seat(int rank) {
  using Step = typename S::Step;
  using Phase = typename S::template Phase<P>;
  RelayedSeat seat = {runs_of<Step, P>(), 0};
  int first = 0;
  for_numbers<runs_of<Step, P>()>([&](auto number) {
    constexpr int R = decltype(number)::value,
                  CTAS = ceil_div(sums_of_run<Step, P>(R) * (Relays<Step>::NARROW / 8), Phase::HALVES);
    if (first <= rank && rank < first + CTAS) seat = {R, (rank - first) * Phase::HALVES};
    first += CTAS;
  });
  return seat;
}

// The sum and the first unit of one of a CTA's half-tiles, if it exists.
struct RelayedRows {
  bool exist;
  int sum, unit;
};
template <class S, int P>
RNNCC_DEVICE RelayedRows relayed_rows(int rank, int half) {
  using Step = typename S::Step;
  constexpr int BLOCKS = Relays<Step>::NARROW / 8;
  const RelayedSeat seat = relayed_seat<S, P>(rank);
  const int index = seat.first_half + half;
  int sums = 0;
  for_numbers<runs_of<Step, P>()>([&](auto number) {
    constexpr int R = decltype(number)::value, SUMS = sums_of_run<Step, P>(R);
    if (seat.run == R) sums = SUMS;
  });
  const bool exist = half < S::template Phase<P>::HALVES && index < sums * BLOCKS;
  return {exist, exist ? sum_of_run<Step, P>(seat.run, index / BLOCKS) : 0, index % BLOCKS * 8};
}

// Sends the sums of relayed phases to the other CTAs, and writes them to their tensors. An *item* here is a half-tile
// of sums for a tile of entries. A warp sends it.
template <class S>
class Relay {
 public:
  using Step = typename S::Step;
  using E = typename S::E;

  // How many items a CTA has in phase P.
  template <int P>
  RNNCC_DEVICE static constexpr int items() {
    return S::template Phase<P>::HALVES * S::ENTRY_TILES;
  }

  // exchange_tile(n): where tile n of the group begins in a slot of the exchange. rows_of(entry): an entry's rows.
  template <class Tile, class Rows>
  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat,
                          const Tile& exchange_tile, const Rows& rows_of) {
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      if constexpr (S::template Phase<P>::RELAYS) {
        using Next = typename S::template Phase<P + 1>;
#pragma unroll
        for (int o = 0; o < OWNED<P>; ++o) {
          const int item = threadIdx.x / 32 + o * S::K_WARPS;
          const RelayedRows rows = relayed_rows<S, P>(seat.rank, item % S::template Phase<P>::HALVES);
          Destination& to = to_[P][o];
          to = {};
          to.exists = item < items<P>() && rows.exist;
          if (!to.exists) continue;
          int operand = 0, write = -1;
          for_numbers<PhaseOf<Step, P>::SUMS>([&](auto number) {
            constexpr int I = PhaseOf<Step, P>::FIRST_SUM + decltype(number)::value;
            constexpr int OPERAND = Relays<Step>::operand(I), WRITE = Relays<Step>::write(I);
            if (rows.sum == decltype(number)::value) operand = OPERAND, write = WRITE;
          });
          const int tile = item / S::template Phase<P>::HALVES, lane = threadIdx.x % 32, row = lane / 4, q = lane % 4;
          // As grid_loop.cuh has it: which entry and unit the lane stores.
          const int unit = rows.unit + (sizeof(E) == 4 ? row : 2 * q);
#pragma unroll
          for (int j = 0; j < STORES; ++j) {
            const int in_tile = sizeof(E) == 4 ? 2 * q + j : row, entry = tile * 8 + in_tile;
            to.exchange[j] = exchange_tile(tile) + uint32_t(Next::OPERANDS_BEGIN + operand * Next::OPERAND_BYTES) +
                             S::place_of_octet(rows.unit) + S::place_of_entry(in_tile) +
                             (unit - rows.unit) * uint32_t(sizeof(E));
            to.steps[j] = entry < seat.entries ? rows_of(entry).steps : 0;
            if (write < 0 || entry >= seat.entries) continue;
            const Place& given = own.writes[write];
            const OwnRows own_row = own_rows<Step>(call, own.descending, seat.first_entry + entry);
            to.step = given.step;
            if (given.base)
              to.write[j] = given.base + own_row.first * given.entry +
                            (int64_t(seat.head) * Relays<Step>::NARROW + unit) * int(sizeof(E));
          }
        }
      }
    });
  }

  // Sends the sums of phase P of step t, which `products` has. `exchange`: where the step's slot begins.
  template <int P, class Products>
  RNNCC_DEVICE void send(const Products& products, char* exchange, int t) {
#pragma unroll
    for (int o = 0; o < OWNED<P>; ++o) {
      const int item = threadIdx.x / 32 + o * S::K_WARPS;
      const Destination& to = to_[P][o];
      if (!to.exists) continue;
      const float2 sum =
          products.template half_sum<P>(item % S::template Phase<P>::HALVES, item / S::template Phase<P>::HALVES);
      if constexpr (sizeof(E) == 4) {
        put(to, 0, t, exchange, message(sum.x));
        put(to, 1, t, exchange, message(sum.y));
      } else {
        put(to, 0, t, exchange, transpose8x8(pack<E>(sum.x, sum.y)));
      }
    }
  }

  // Takes back what the CTA sent of all relayed phases in a step, whose slot of the exchange begins at `exchange`.
  RNNCC_DEVICE void clear(char* exchange) const {
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      if constexpr (S::template Phase<P>::RELAYS)
#pragma unroll
        for (int o = 0; o < OWNED<P>; ++o)
          if (to_[P][o].exists)
#pragma unroll
            for (int j = 0; j < STORES; ++j) store4_relaxed(exchange + to_[P][o].exchange[j], NOT_YET);
    });
  }

 private:
  template <int P>
  static constexpr int OWNED = ceil_div(S::template Phase<P>::HALVES * S::ENTRY_TILES, S::K_WARPS);

  // How many stores a lane makes for an item. It has the sums of one unit for two entries. Where sums are sent in 16
  // bits, lanes first exchange them: then it has those of two units for one entry, which are one store.
  static constexpr int STORES = sizeof(E) == 4 ? 2 : 1;
  // Where a lane stores the sums of an item. For each store: the offset in a slot of the exchange, how many steps the
  // entry has, and the address in a tensor at the loop's first step, if a tensor takes the sum. `step` leads from one
  // step of that tensor to the next.
  struct Destination {
    bool exists;
    uint32_t exchange[STORES];
    int steps[STORES];
    char* write[STORES];
    int64_t step;
  };
  RNNCC_DEVICE static void put(const Destination& to, int j, int t, char* exchange, uint32_t value) {
    store4_relaxed(exchange + to.exchange[j], value);
    if (to.write[j] && t < to.steps[j]) *reinterpret_cast<uint32_t*>(to.write[j] + t * to.step) = value;
  }

  // The most items that a warp has in a phase.
  template <int P = 0>
  static constexpr int most() {
    if constexpr (P < S::PHASES) {
      const int own = S::template Phase<P>::RELAYS ? OWNED<P> : 0, others = most<P + 1>();
      return own > others ? own : others;
    } else {
      return 0;
    }
  }
  Destination to_[S::PHASES][at_least_one(most())];
};

}  // namespace rnncc
