// What a CTA of a sparse kernel keeps of its matrices, and how it makes that before the first step.
#pragma once

#include "sparse_order.cuh"
#include "sparse_split.cuh"

namespace rnncc {

// Four words, as a thread loads them. A *word* is an element that is not zero and the place of its operand: in the
// upper and the lower half of 32 bits, or in 32 bits each where elements are float.
template <class E>
struct Quad {
  static constexpr int PARTS = sizeof(E) / 2;  // of 16 bytes
  uint4 part[PARTS];

  RNNCC_DEVICE static uint32_t component(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  RNNCC_DEVICE float value(int i) const {
    if constexpr (sizeof(E) == 4)
      return __uint_as_float(component(part[i / 2], i % 2 * 2));
    else
      return to_float(E{uint16_t(component(part[0], i) >> 16)});
  }
  RNNCC_DEVICE uint32_t place(int i) const {
    if constexpr (sizeof(E) == 4)
      return component(part[i / 2], i % 2 * 2 + 1);
    else
      return component(part[0], i) & 0xffff;
  }
};

// The elements of a CTA's rows that are not zero. A *list* is what one thread multiplies: words of one row of a matrix.
// Each row has as many lists as it needs for the lists of a phase to be about as long. Where operands come in waves, a
// list has equally many quads for each wave, and a row as many lists as its longest wave needs. A matrix may have more
// elements than the kernel was planned for. Then those that have no room in lists stay in memory.
template <class S>
class SparseLists {
 public:
  using Step = typename S::Step;
  using E = typename S::E;

  // The CTA's shared memory, but for what it receives of reductions.
  RNNCC_DEVICE SparseLists(char* shared)
      : lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        partials_(shared),
        split_(shared_address(shared) + S::PARTIAL_BYTES + S::RECEIVED_BYTES),
        info_(shared + S::PARTIAL_BYTES + S::RECEIVED_BYTES + S::GIVEN_BYTES),
        operands_(info_ + S::INFO_BYTES),
        words_(operands_ + S::OPERANDS_BYTES) {}

  // Makes the lists of all phases, and begins the barriers of the cluster. All threads call it.
  RNNCC_DEVICE void fill(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat) {
    call_ = &call;
    own_ = &own;
    head_ = seat.head;
    split_.begin(seat.rank % S::SPLIT);
    unit0_ = (seat.rank - split_.rank()) * S::UNITS;
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      if constexpr (S::template Phase<P>::SUMS > 0) fill_phase<P>();
    });
    if (threadIdx.x < S::ZERO_BYTES / 4)
      reinterpret_cast<uint32_t*>(operands_ + padding_ * S::TERM_BYTES)[threadIdx.x] = 0;
  }

 protected:
  // Which lists a row has: the first, and how many.
  template <int P>
  RNNCC_DEVICE uint32_t& info(int row) const {
    return reinterpret_cast<uint32_t*>(info_ + S::template Phase<P>::INFO_BEGIN)[row];
  }
  // The first term of a wave and a row whose element has no room in lists: nor have those behind it. The number of the
  // phase's terms where all have room.
  template <int P>
  RNNCC_DEVICE uint32_t& first_unlisted(int wave, int row) const {
    using Phase = typename S::template Phase<P>;
    return reinterpret_cast<uint32_t*>(info_ + Phase::INFO_BEGIN)[(1 + wave) * Phase::ROWS + row];
  }

  // Quad i of a list whose first quad begins at `list`.
  RNNCC_DEVICE static Quad<E> load(const char* list, int i) {
    Quad<E> quad;
#pragma unroll
    for (int p = 0; p < Quad<E>::PARTS; ++p)
      quad.part[p] = *reinterpret_cast<const uint4*>(list + i * S::QUAD_BYTES + p * S::LISTS * 16);
    return quad;
  }

  // Calls f(term, element) for the elements of a row that are not zero, in the order of the terms, from octet `begin`
  // of terms to octet `end`.
  template <int P, class F>
  RNNCC_DEVICE void for_elements(int row, int begin, int end, const F& f) const {
    using Phase = typename S::template Phase<P>;
    const int owner = row / Phase::OWN_ROWS, own_row = row % Phase::OWN_ROWS, sum = own_row / S::UNITS,
              unit = unit0_ + owner * S::UNITS + own_row % S::UNITS, first_term = split_.rank() * Phase::TERMS;
    constexpr int AHEAD = 4;
    for (int first = begin; first < end; first += AHEAD) {
      Terms<E> terms[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const int term = first_term + (first + a) * 8;
        terms[a] = first + a < end && (!Phase::UNEVEN || term < Phase::ALL_TERMS)
                       ? matrix8<Step, P, S::H>(*call_, *own_, sum, term / S::DEPTH, head_, unit, term % S::DEPTH)
                       : Terms<E>{};
      }
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        // The elements that are not zero, which are few.
        uint32_t set = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) set |= uint32_t(!is_zero(element(terms[a], i))) << i;
        for (; set != 0; set &= set - 1) {
          const int i = __ffs(set) - 1;
          f((first + a) * 8 + i, element(terms[a], i));
        }
      }
    }
  }
  RNNCC_DEVICE static E element(const Terms<E>& terms, int i) {
    if constexpr (sizeof(E) == 4) {
      const float4& v = i < 4 ? terms.low : terms.high;
      return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
    } else {
      return E{uint16_t(Quad<E>::component(terms, i / 2) >> (i % 2 * 16))};
    }
  }
  RNNCC_DEVICE static bool is_zero(float x) { return x == 0.0f; }
  template <class Half>
  RNNCC_DEVICE static bool is_zero(Half x) {
    return (x.bits & 0x7fff) == 0;
  }

  // Word `slot` of a list, in shared memory whose first quads begin at `words`.
  RNNCC_DEVICE static uint32_t* word(char* words, int list, int slot) {
    constexpr int PER_PART = 4 / Quad<E>::PARTS;
    const int part = slot / 4 * Quad<E>::PARTS + slot % 4 / PER_PART;
    return reinterpret_cast<uint32_t*>(words + (part * S::LISTS + list) * 16) + slot % PER_PART * Quad<E>::PARTS;
  }
  RNNCC_DEVICE static void set_word(uint32_t* to, E x, uint32_t place) {
    if constexpr (sizeof(E) == 4) {
      to[0] = __float_as_uint(x);
      to[1] = place;
    } else {
      to[0] = uint32_t(x.bits) << 16 | place;
    }
  }
  RNNCC_DEVICE static uint32_t place_of_word(const uint32_t* at) {
    return sizeof(E) == 4 ? at[sizeof(E) / 4] : at[0] & 0xffff;
  }

  // Makes the lists of phase P. Several threads go through each row, each through a segment of its terms.
  template <int P>
  RNNCC_DEVICE void fill_phase() {
    using Phase = typename S::template Phase<P>;
    constexpr int OCTETS = ceil_div(Phase::WAVE_TERMS / 8, Phase::SEGMENTS), ROOM = Phase::ROOM;
    const int row = threadIdx.x % Phase::ROWS, segment = threadIdx.x / Phase::ROWS;
    const auto begin_of = [&](int wave) { return Phase::first_term(wave) / 8 + segment * OCTETS; };
    const auto end_of = [&](int wave) {
      return segment < Phase::SEGMENTS ? ::min(begin_of(wave) + OCTETS, Phase::end_term(wave) / 8) : begin_of(wave);
    };
    // A thread counts the elements of its segment that are not zero, and one thread per row adds these up. What counts
    // is the wave in which a row has most of them.
    uint32_t* const counts = reinterpret_cast<uint32_t*>(operands_);
    uint32_t* const totals = counts + S::THREADS;
    uint32_t before[Phase::WAVES];  // in the segments before the thread's
    for_numbers<Phase::WAVES>([&](auto wave) {
      constexpr int WAVE = decltype(wave)::value;
      uint32_t count = 0, sooner = 0;
      for_elements<P>(row, begin_of(WAVE), end_of(WAVE), [&](int, E) { ++count; });
      counts[threadIdx.x] = count;
      __syncthreads();
      const int segments = Phase::SEGMENTS;
      for (int s = 0; s < ::min(segment, segments); ++s) sooner += counts[s * Phase::ROWS + row];
      if (segment == segments - 1) totals[row] = WAVE > 0 ? ::max(totals[row], sooner + count) : sooner + count;
      __syncthreads();
      before[WAVE] = sooner;
    });

    // The fewest quads per list for which there are enough lists. All threads find the same.
    const auto lists_of = [&](int r, uint32_t quads) { return (totals[r] + 4 * quads - 1) / (4 * quads); };
    const auto lists = [&](uint32_t quads) {
      uint32_t sum = 0;
      for (int r = 0; r < Phase::ROWS; ++r) sum += lists_of(r, quads);
      return sum;
    };
    uint32_t most = ROOM, least = 1;
    has_more_[P] = lists(ROOM) > S::LISTS;
    while (least < most && !has_more_[P]) {
      const uint32_t middle = (least + most) / 2;
      if (lists(middle) <= S::LISTS)
        most = middle;
      else
        least = middle + 1;
    }
    const uint32_t quads = most;
    if (threadIdx.x < Phase::ROWS) {
      uint32_t first = 0, end = 0;
      if (has_more_[P]) {
        // Each row has a list, and the others are shared out in proportion.
        uint64_t sooner = 0, all = 0;
        for (int r = 0; r < Phase::ROWS; ++r) sooner += r < row ? totals[r] : 0, all += totals[r];
        const auto begin_of = [&](int r, uint64_t words) { return r + words * (S::LISTS - Phase::ROWS) / all; };
        first = uint32_t(begin_of(row, sooner));
        end = uint32_t(begin_of(row + 1, sooner + totals[row]));
      } else {
        // Rows with long lists come first. So the lists of a warp are about as long as each other.
        const auto length = [&](int r) { return totals[r] / ::max(lists_of(r, quads), 1u); };
        for (int r = 0; r < Phase::ROWS; ++r) {
          const bool is_longer = length(r) > length(row) || (length(r) == length(row) && r < row);
          first += is_longer ? lists_of(r, quads) : 0;
        }
        end = first + lists_of(row, quads);
      }
      info<P>(row) = first << 16 | (end - first);
#pragma unroll
      for (int wave = 0; wave < Phase::WAVES; ++wave) first_unlisted<P>(wave, row) = Phase::TERMS;
    }
    __syncthreads();

    const uint32_t own = info<P>(row), own_lists = own & 0xffff;
    // Puts the words of quads [from, from + room) of a wave of all lists into shared memory. Neighbours in a row go to
    // different lists. Returns how many words the lists of the warp have there.
    const auto put = [&](auto wave, char* words, int from, int room) {
      constexpr int WAVE = decltype(wave)::value;
      for (int slot = 0; slot < 4 * room; ++slot) set_word(word(words, threadIdx.x, slot), E{}, padding_);
      __syncthreads();
      uint32_t number = before[WAVE];
      for_elements<P>(row, begin_of(WAVE), end_of(WAVE), [&](int term, E x) {
        const uint32_t list = (own >> 16) + number % own_lists, slot = number / own_lists;
        if (4 * from <= int(slot) && int(slot) < 4 * (from + room))
          set_word(word(words, list, slot - 4 * from), x, S::place_of(term - Phase::first_term(WAVE)));
        if (number == 4 * quads * own_lists) first_unlisted<P>(WAVE, row) = term;
        ++number;
      });
      __syncthreads();
      return spread(words, 4 * room);
    };
    int longest = 0;
    for_numbers<Phase::WAVES>([&](auto wave) {
      constexpr int WAVE = decltype(wave)::value, SHARED = ROOM - Phase::held(WAVE);
      if constexpr (SHARED > 0) {
        const int in_lists = put(wave, words_ + Phase::words_begin(WAVE), Phase::held(WAVE), SHARED);
        if (in_lists > 0) longest = ::max(longest, Phase::held(WAVE) + in_lists / 4);
      }
    });
    longest_[P] = longest;
    // Last, since a thread has fewer registers for its work from then on.
    for_numbers<Phase::WAVES>([&](auto wave) {
      constexpr int WAVE = decltype(wave)::value, HELD = Phase::held(WAVE);
      for_numbers<ceil_div(HELD, at_least_one(S::STAGED))>([&](auto round) {
        constexpr int FROM = decltype(round)::value * S::STAGED;
        constexpr int END = FROM + S::STAGED < HELD ? FROM + S::STAGED : HELD;
        put(wave, operands_, FROM, END - FROM);
#pragma unroll
        for (int i = FROM; i < END; ++i)
          held_[Phase::HELD_BEGIN + Phase::held_before(WAVE) + i] = load(operands_ + threadIdx.x * 16, i - FROM);
        __syncthreads();
      });
    });
  }

  // Orders the words of lists, so that lanes which load operands at once mostly find them in different banks. Padding
  // comes among them. Returns how many words the lists of the warp have then: all have equally many.
  RNNCC_DEVICE int spread(char* words, int room) const {
    const auto at = [&](int slot) { return word(words, threadIdx.x, slot); };
    const auto bank_of = [&](int slot) { return place_of_word(at(slot)) % S::TERMS_PER_LINE; };
    WordOrder<S::TERMS_PER_LINE> order;
    int own = 0;  // words of the list; behind them there is padding
    for (; own < room && place_of_word(at(own)) < padding_; ++own) order.add(bank_of(own));
    const int all = ceil_div(__reduce_max_sync(~0u, own), 4) * 4;
    order.begin(all);
    for (int slot = own; !__all_sync(~0u, slot >= all); ++slot) {
      const uint32_t bank = order.pad(slot < all);
      if (slot < all) set_word(at(slot), E{}, padding_ + bank);
    }
    for (int slot = 0; slot < all; ++slot) {
      const uint32_t bank = order.next();
      int from = slot;
      while (bank_of(from) != bank) ++from;
#pragma unroll
      for (int i = 0; i < Quad<E>::PARTS; ++i) {
        const uint32_t moved = at(slot)[i];
        at(slot)[i] = at(from)[i];
        at(from)[i] = moved;
      }
    }
    // From here on a place is that of the load that comes first.
    if constexpr (S::LOADS > 1)
      for (int slot = 0; slot < room; ++slot) at(slot)[1] = at(slot)[1] * S::LOADS + first_load();
    return all;
  }
  // Where a term takes two loads, the lanes of every other group (WordOrder) begin with the second one. So the lanes of
  // two groups, which load at once, find their halves in different banks. They have the sums of these entries first.
  RNNCC_DEVICE int first_load() const { return lane_ / S::TERMS_PER_LINE % S::LOADS; }

  // The first of the places that words without an element name: one in each bank.
  static constexpr uint32_t padding_ = S::ZERO_PLACE;
  const int lane_, warp_;
  char* const partials_;
  Split<S> split_;
  char* const info_;
  char* const operands_;
  char* const words_;
  const FusedCall<Step>* call_ = nullptr;
  const FusedTensors<Step>* own_ = nullptr;
  int head_ = 0, unit0_ = 0;  // the cluster's first unit
  // Per phase: the quads of the warp's longest list in a wave, or 0 where all of them are in registers; and whether
  // some elements have no room in lists.
  int longest_[S::PHASES] = {};
  bool has_more_[S::PHASES] = {};
  Quad<E> held_[at_least_one(S::template Phase<S::LAST>::HELD_END)];
};

}  // namespace rnncc
