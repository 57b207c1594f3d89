// A fused loop over CTAs of the whole grid, for matrices that are mostly zeros. A CTA keeps the elements of its rows that
// are not zero, each with the place of its operand. All operands of a phase come into shared memory, and each thread
// gathers those of its elements. Zhu, Pool, Andersch, Rennich and Keckler (arXiv:1804.10223) have the idea.
#pragma once

#include "grid_loop.cuh"

namespace rnncc {

// Four elements that are not zero, as a thread loads them. A *word* is an element and the row of its operand: in the
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
  RNNCC_DEVICE uint32_t row(int i) const {
    if constexpr (sizeof(E) == 4)
      return component(part[i / 2], i % 2 * 2 + 1);
    else
      return component(part[0], i) & 0xffff;
  }
};

// QUADS has two numbers for each phase: how many quads a thread holds in registers, and for how many more it has room
// in shared memory. What threads hold comes into registers through shared memory, STAGED quads at a time.
template <class Step_, int H_, int UNIT_BLOCKS_, int WARPS_, int TURNS_, int LANE_ENTRIES_, int STAGED_, int... QUADS_>
struct SparseShape : GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, 1, TURNS_, LANE_ENTRIES_> {
  using Layout = GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, 1, TURNS_, LANE_ENTRIES_>;
  using Step = Step_;
  using typename Layout::E;
  using Layout::DEPTH, Layout::LANE_ENTRIES, Layout::LAST, Layout::PHASES, Layout::THREADS, Layout::UNITS;
  static constexpr int STAGED = STAGED_;
  static constexpr int QUADS[] = {QUADS_...};
  static_assert(sizeof...(QUADS_) == 2 * PHASES && (LANE_ENTRIES == 2 || LANE_ENTRIES == 4 || LANE_ENTRIES == 8));

  // A row of the operands in shared memory is a term of all entries of the group.
  static constexpr int ROW_BYTES = LANE_ENTRIES * int(sizeof(E)), LISTS = THREADS,
                       QUAD_BYTES = LISTS * Quad<E>::PARTS * 16;
  // The terms that a warp polls for at a time, with all entries.
  static constexpr int POLLED = 32 * (8 / LANE_ENTRIES), AT_ONCE = 4 / Message<E>::PARTS;

  // Where the operand of a term lies: among POLLED rows that begin at a multiple of POLLED, in another order. So what lanes
  // write at once goes to different banks.
  __host__ __device__ static constexpr uint32_t row_of(uint32_t term) {
    if (sizeof(E) == 4) return term ^ (term >> (LANE_ENTRIES == 2 ? 4 : 3) & (LANE_ENTRIES == 8 ? 3 : 7));
    return term ^ (term >> (LANE_ENTRIES == 8 ? 3 : LANE_ENTRIES == 4 ? 4 : 5) & 3) << 1;
  }
  // The banks of an operand's row are those of all rows with the same number modulo this.
  static constexpr int ROWS_PER_LINE = 128 / ROW_BYTES;

  template <int P, class = void>
  struct Phase : Layout::template OfPhase<P> {
    using Of = typename Layout::template OfPhase<P>;
    using Of::OPERANDS, Of::SUMS;
    static constexpr int ROWS = SUMS * UNITS, SEGMENTS = SUMS > 0 ? THREADS / at_least_one(ROWS) : 0;
    static_assert(ROWS <= LISTS, "a row has a thread");
    static_assert(QUADS[2 * P] < 64 && QUADS[2 * P + 1] < 64, "words of a bank are counted in eight digits");
    static constexpr int HELD = QUADS[2 * P], SHARED = QUADS[2 * P + 1];
    static constexpr int TERMS = OPERANDS * DEPTH, POLLS = ceil_div(TERMS, POLLED);
    // Whether some terms that are polled for belong to no operand. Their places are never written.
    static constexpr bool PADDED = DEPTH > H_ || POLLS * POLLED > TERMS || POLLS % WARPS_ != 0;
    static constexpr int MOST_POLLS = POLLS > Phase<P - 1>::MOST_POLLS ? POLLS : Phase<P - 1>::MOST_POLLS,
                         MOST_ROWS = ROWS > Phase<P - 1>::MOST_ROWS ? ROWS : Phase<P - 1>::MOST_ROWS;
    static constexpr int HELD_BEGIN = Phase<P - 1>::HELD_END, HELD_END = HELD_BEGIN + HELD;
    // In shared memory: the phase's words, and which lists have a row's.
    static constexpr int WORDS_BEGIN = Phase<P - 1>::WORDS_END, WORDS_END = WORDS_BEGIN + SHARED * QUAD_BYTES;
    static constexpr int INFO_BEGIN = Phase<P - 1>::INFO_END, INFO_END = INFO_BEGIN + ROWS * 8;
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int MOST_POLLS = 0, MOST_ROWS = 0, HELD_END = 0, WORDS_END = 0, INFO_END = 0;
  };

  // Each list leaves the sum of its words, and a row whose words have no room in lists leaves the sum of the others.
  static constexpr int PARTIALS = LISTS + Phase<LAST>::MOST_ROWS, PARTIAL_BYTES = PARTIALS * LANE_ENTRIES * 4;
  static constexpr int INFO_BYTES = Phase<LAST>::INFO_END;
  static constexpr uint32_t ZERO_ROW = Phase<LAST>::MOST_POLLS * POLLED;  // behind all operands
  // Before the loop, threads count here what is not zero, and then they stage what they hold.
  static constexpr int WITH_ZERO_ROW = ceil_div((Phase<LAST>::MOST_POLLS * POLLED + 1) * ROW_BYTES, 16) * 16,
                       COUNT_BYTES = 2 * THREADS * 4,
                       BEFORE_LOOP = STAGED * QUAD_BYTES > COUNT_BYTES ? STAGED * QUAD_BYTES : COUNT_BYTES,
                       OPERAND_ROWS_BYTES = WITH_ZERO_ROW > BEFORE_LOOP ? WITH_ZERO_ROW : BEFORE_LOOP;
  static constexpr int WORD_BYTES = Phase<LAST>::WORDS_END;
  static constexpr int SHARED_BYTES = PARTIAL_BYTES + Layout::RECEIVED_BYTES + INFO_BYTES + OPERAND_ROWS_BYTES +
                                      WORD_BYTES + Layout::Memory::BYTES;
  static_assert(sizeof(E) == 4 || Phase<LAST>::MOST_POLLS * POLLED < 65536, "a word names a row in 16 bits");
};

// The products of a sparse kernel. A *list* is what one thread multiplies: words of one row of a matrix. A row has as many
// lists as it needs, and no list of a phase is longer than the others but for a quad. What has no room in lists, because
// a matrix has more elements than the kernel was planned for, is multiplied as it lies in memory: right, but slow.
template <class S>
class SparseProducts {
 public:
  using Step = typename S::Step;
  using E = typename S::E;

  RNNCC_DEVICE SparseProducts(char* shared)
      : lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        partials_(shared),
        info_(shared + S::PARTIAL_BYTES + S::RECEIVED_BYTES),
        rows_(info_ + S::INFO_BYTES),
        words_(rows_ + S::OPERAND_ROWS_BYTES) {}

  RNNCC_DEVICE void fill(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat) {
    call_ = &call;
    own_ = &own;
    head_ = seat.head;
    unit0_ = seat.rank * S::UNITS;
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      if constexpr (S::template Phase<P>::SUMS > 0) fill_phase<P>();
    });
    if (threadIdx.x < S::ROW_BYTES / 4)
      reinterpret_cast<uint32_t*>(rows_ + padding_ * S::ROW_BYTES)[threadIdx.x] = 0;
  }

  // As GridProducts has it.
  template <int P, class Move>
  RNNCC_DEVICE bool multiply(const char* from, const GridTerms<S>& places, int t, const Move& move) {
    using Phase = typename S::template Phase<P>;
    const bool in_vain = receive<P>(from, places, t, move);
    __syncthreads();
    float sums[S::LANE_ENTRIES] = {};
#pragma unroll
    for (int i = 0; i < Phase::HELD; ++i) add(again(held_[Phase::HELD_BEGIN + i]), sums);
    const char* const words = words_ + Phase::WORDS_BEGIN + threadIdx.x * 16;
#pragma unroll 4
    for (int i = 0; i < shared_quads_[P]; ++i) add(load(words, i), sums);
    leave(threadIdx.x, sums);
    if (has_more_[P]) multiply_others<P>();
    return in_vain;
  }

  template <int P, int GIVES>
  RNNCC_DEVICE void sum(int u, int, float (&sum)[2][GIVES]) const {
    using Phase = typename S::template Phase<P>;
    constexpr int AT_ONCE = Phase::SUMS < 4 ? 8 / Phase::SUMS : 2;  // parts of a sum that are on their way
    const int unit = u * 8 + lane_ / 4, q = lane_ % 4;
    if (q * 2 >= S::LANE_ENTRIES) return;
    const char* const from = partials_ + q * S::PARTIALS * 8;
    const auto part = [&](int place) { return *reinterpret_cast<const float2*>(from + place * 8); };
    uint32_t lists[Phase::SUMS];
    int most = 0;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i) {
      lists[i] = info<P>(i * S::UNITS + unit);
      most = ::max(most, int(lists[i] & 0xffff));
    }
#pragma unroll 1
    for (int l = 0; l < most; l += AT_ONCE)
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
        for (int i = 0; i < Phase::SUMS; ++i) {
          const bool exists = l + k < int(lists[i] & 0xffff);
          const float2 p = exists ? part((lists[i] >> 16) + l + k) : make_float2(0.0f, 0.0f);
          sum[0][i] += p.x;
          sum[1][i] += p.y;
        }
    if (!has_more_[P]) return;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i) {
      const float2 p = part(S::LISTS + i * S::UNITS + unit);
      sum[0][i] += p.x;
      sum[1][i] += p.y;
    }
  }

 private:
  // Which lists a row has: the first, and how many.
  template <int P>
  RNNCC_DEVICE uint32_t& info(int row) const {
    return reinterpret_cast<uint32_t*>(info_ + S::template Phase<P>::INFO_BEGIN)[row];
  }
  // The first term of a row whose words have no room in its lists.
  template <int P>
  RNNCC_DEVICE uint32_t& others(int row) const {
    return reinterpret_cast<uint32_t*>(info_ + S::template Phase<P>::INFO_BEGIN)[S::template Phase<P>::ROWS + row];
  }

  // Quad i of a list whose first quad begins at `list`.
  RNNCC_DEVICE static Quad<E> load(const char* list, int i) {
    Quad<E> quad;
#pragma unroll
    for (int p = 0; p < Quad<E>::PARTS; ++p)
      quad.part[p] = *reinterpret_cast<const uint4*>(list + i * S::QUAD_BYTES + p * S::LISTS * 16);
    return quad;
  }

  // A quad in registers. The compiler does not see that it is the same at every step, so it takes no registers for what
  // is made of it.
  RNNCC_DEVICE static Quad<E> again(Quad<E> quad) {
#pragma unroll
    for (uint4& part : quad.part)
      part = make_uint4(made_again(int(part.x)), made_again(int(part.y)), made_again(int(part.z)),
                        made_again(int(part.w)));
    return quad;
  }

  // sums += the element times its operand, for each entry.
  RNNCC_DEVICE void add(const Quad<E>& quad, float (&sums)[S::LANE_ENTRIES]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) add(quad.value(i), quad.row(i), sums);
  }
  RNNCC_DEVICE void add(float value, uint32_t row, float (&sums)[S::LANE_ENTRIES]) const {
    const char* const at = rows_ + row * S::ROW_BYTES;
    if constexpr (sizeof(E) == 4 && S::LANE_ENTRIES == 2) {
      const float2 v = *reinterpret_cast<const float2*>(at);
      sums[0] = fmaf(value, v.x, sums[0]);
      sums[1] = fmaf(value, v.y, sums[1]);
    } else if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int e = 0; e < S::LANE_ENTRIES; e += 4) {
        const float4 v = *reinterpret_cast<const float4*>(at + e * 4);
        sums[e] = fmaf(value, v.x, sums[e]);
        sums[e + 1] = fmaf(value, v.y, sums[e + 1]);
        sums[e + 2] = fmaf(value, v.z, sums[e + 2]);
        sums[e + 3] = fmaf(value, v.w, sums[e + 3]);
      }
    } else {
      const Operands all = *reinterpret_cast<const Operands*>(at);
#pragma unroll
      for (int e = 0; e < S::LANE_ENTRIES; ++e)
        sums[e] = fmaf(value, to_float(E{uint16_t(all.words[e / 2] >> e % 2 * 16)}), sums[e]);
    }
  }
  // A row of operands of 16 bits.
  struct alignas(2 * S::LANE_ENTRIES) Operands {
    uint32_t words[S::LANE_ENTRIES / 2];
  };

  RNNCC_DEVICE void leave(int place, const float (&sums)[S::LANE_ENTRIES]) const {
#pragma unroll
    for (int e = 0; e < S::LANE_ENTRIES; e += 2)
      *reinterpret_cast<float2*>(partials_ + (e / 2 * S::PARTIALS + place) * 8) = make_float2(sums[e], sums[e + 1]);
  }

  // Brings the operands of phase P into shared memory.
  template <int P, class Move>
  RNNCC_DEVICE bool receive(const char* from, const GridTerms<S>& places, int t, const Move& move) const {
    using Phase = typename S::template Phase<P>;
    constexpr int OWN = ceil_div(Phase::POLLS, S::K_WARPS);
    const int q = lane_ % 4, half = lane_ / 4 / S::LANE_ENTRIES;
    const auto first = [&](int i) { return (warp_ * OWN + i) * S::POLLED + half * 32; };
    const auto is_wanted = [&](int i) {
      return i < OWN && places.has_rows(0, t) &&
             (!Phase::PADDED || (first(i) < Phase::TERMS && first(i) % S::DEPTH + q * 8 < S::H));
    };
    bool in_vain = false;
#pragma unroll
    for (int begin = 0; begin < OWN; begin += S::AT_ONCE) {
      Message<E> h[S::AT_ONCE];
      const auto ask = [&](int b) { h[b].ask(from + places.terms[0] + first(begin + b) * sizeof(E)); };
#pragma unroll
      for (int b = 0; b < S::AT_ONCE; ++b)
        if (is_wanted(begin + b))
          ask(b);
        else
          h[b] = {};
      if (begin == 0) move();
      const auto all_have_come = [&] {
        bool all = true;
#pragma unroll
        for (int b = 0; b < S::AT_ONCE; ++b) all &= h[b].has_come();
        return __all_sync(~0u, all);
      };
      for (Spin spin; !all_have_come(); spin.poll()) {
        in_vain = true;
#pragma unroll
        for (int b = 0; b < S::AT_ONCE; ++b)
          if (!h[b].has_come()) ask(b);
      }
#pragma unroll
      for (int b = 0; b < S::AT_ONCE; ++b)
        if (begin + b < OWN && (!Phase::PADDED || warp_ * OWN + begin + b < Phase::POLLS))
          put(h[b], rows_ + (warp_ * OWN + begin + b) * (S::POLLED * S::ROW_BYTES));
    }
    return in_vain;
  }

  // Puts what the warp has received of POLLED terms into their rows, which begin at `rows`.
  RNNCC_DEVICE void put(const Message<E>& message, char* rows) const {
    const int row = lane_ / 4, q = lane_ % 4;
    if constexpr (sizeof(E) == 4) {
      const int own = row / S::LANE_ENTRIES * 32 + q * 8, entry = row % S::LANE_ENTRIES;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        *reinterpret_cast<uint32_t*>(rows + S::row_of(own + i) * S::ROW_BYTES + entry * 4) =
            Quad<E>::component(message.part[i / 4], i % 4);
    } else {
      // Lanes have exchanged terms and entries: a lane gets one term of two entries.
      constexpr int PAIRS = S::LANE_ENTRIES / 2;
      const int own = q / PAIRS * 32 + row / 2 * 8 + row % 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(rows + S::row_of(own + 2 * i) * S::ROW_BYTES + q % PAIRS * 4) =
            transpose8x8(Quad<E>::component(message.part[0], i));
    }
  }

  // Calls f(term, element) for the elements of a row that are not zero, in the order of the terms, from octet `begin` of
  // terms to octet `end`.
  template <int P, class F>
  RNNCC_DEVICE void for_elements(int row, int begin, int end, const F& f) const {
    const int sum = row / S::UNITS, unit = unit0_ + row % S::UNITS;
    constexpr int AHEAD = 4;
    for (int first = begin; first < end; first += AHEAD) {
      Terms<E> terms[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const int term = (first + a) * 8;
        terms[a] = first + a < end
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
  RNNCC_DEVICE static void set_word(uint32_t* to, E x, uint32_t row) {
    if constexpr (sizeof(E) == 4) {
      to[0] = __float_as_uint(x);
      to[1] = row;
    } else {
      to[0] = uint32_t(x.bits) << 16 | row;
    }
  }
  RNNCC_DEVICE static uint32_t row_of_word(const uint32_t* at) {
    return sizeof(E) == 4 ? at[sizeof(E) / 4] : at[0] & 0xffff;
  }

  // Makes the lists of phase P. Several threads go through each row, each through a segment of its terms.
  template <int P>
  RNNCC_DEVICE void fill_phase() {
    using Phase = typename S::template Phase<P>;
    constexpr int OCTETS = ceil_div(Phase::TERMS / 8, Phase::SEGMENTS), ROOM = Phase::HELD + Phase::SHARED;
    const int row = threadIdx.x % Phase::ROWS, segment = threadIdx.x / Phase::ROWS, begin = segment * OCTETS;
    const int end = segment < Phase::SEGMENTS ? ::min(begin + OCTETS, Phase::TERMS / 8) : begin;
    // How many elements are not zero: of each segment of a row, and then of each row.
    uint32_t* const counts = reinterpret_cast<uint32_t*>(rows_);
    uint32_t* const totals = counts + S::THREADS;
    uint32_t count = 0, before = 0;
    for_elements<P>(row, begin, end, [&](int, E) { ++count; });
    counts[threadIdx.x] = count;
    __syncthreads();
    const int segments = Phase::SEGMENTS;
    for (int s = 0; s < ::min(segment, segments); ++s) before += counts[s * Phase::ROWS + row];
    if (segment == segments - 1) totals[row] = before + count;
    __syncthreads();

    // The shortest lists that are enough. All threads find the same.
    const auto lists_of = [&](int r, uint32_t quads) { return (totals[r] + 4 * quads - 1) / (4 * quads); };
    const auto lists = [&](uint32_t quads) {
      uint32_t sum = 0;
      for (int r = 0; r < Phase::ROWS; ++r) sum += lists_of(r, quads);
      return sum;
    };
    uint32_t least = 1, most = ROOM;
    has_more_[P] = lists(ROOM) > S::LISTS;
    while (least < most && !has_more_[P]) {
      const uint32_t middle = (least + most) / 2;
      if (lists(middle) <= S::LISTS)
        most = middle;
      else
        least = middle + 1;
    }
    const uint32_t quads = most;
    shared_quads_[P] = ::max(int(quads) - Phase::HELD, 0);
    if (threadIdx.x < Phase::ROWS) {
      uint32_t first = 0;
      const uint32_t each = S::LISTS / Phase::ROWS;
      for (int r = 0; r < row && !has_more_[P]; ++r) first += lists_of(r, quads);
      info<P>(row) = has_more_[P] ? row * each << 16 | each : first << 16 | lists_of(row, quads);
      others<P>(row) = Phase::TERMS;
    }
    __syncthreads();

    const uint32_t own = info<P>(row), own_lists = own & 0xffff;
    // Puts the words of quads `from` to `from + room` into shared memory.
    const auto place = [&](char* words, int from, int room) {
      for (int slot = 0; slot < 4 * room; ++slot) set_word(word(words, threadIdx.x, slot), E{}, padding_);
      __syncthreads();
      uint32_t number = before;
      for_elements<P>(row, begin, end, [&](int term, E x) {
        const uint32_t list = (own >> 16) + number % own_lists, slot = number / own_lists;
        if (4 * from <= int(slot) && int(slot) < 4 * (from + room))
          set_word(word(words, list, slot - 4 * from), x, S::row_of(term));
        if (number == 4 * quads * own_lists) others<P>(row) = term;
        ++number;
      });
      __syncthreads();
      spread(words, 4 * room);
    };
    place(words_ + Phase::WORDS_BEGIN, Phase::HELD, Phase::SHARED);
    for_numbers<ceil_div(Phase::HELD, at_least_one(S::STAGED))>([&](auto round) {
      constexpr int FROM = decltype(round)::value * S::STAGED;
      constexpr int END = FROM + S::STAGED < Phase::HELD ? FROM + S::STAGED : Phase::HELD;
      place(rows_, FROM, END - FROM);
#pragma unroll
      for (int i = FROM; i < END; ++i)
        held_[Phase::HELD_BEGIN + i] = load(rows_ + threadIdx.x * 16, i - FROM);
      __syncthreads();
    });
  }

  // Orders the words of lists, so that lanes which load operands at once mostly find them in different banks. A lane
  // proposes the free bank in which it has the most words, and of the lanes that propose a bank the first one gets it.
  // Where no lane has a word in a free bank, all banks are free again.
  RNNCC_DEVICE void spread(char* words, int room) const {
    constexpr uint32_t BANKS = S::ROWS_PER_LINE;
    constexpr int AT_ONCE = BANKS > 8 ? BANKS : 8;  // lanes
    const auto at = [&](int slot) { return word(words, threadIdx.x, slot); };
    const int first_bank = lane_ / AT_ONCE * BANKS;  // of the lanes that load at once
    BankCounts left = {};                            // the words that have no slot yet
    int own = 0;                                     // words; those behind them have no element
    for (; own < room && row_of_word(at(own)) != padding_; ++own) left.add(row_of_word(at(own)) % BANKS);
    for (int slot = 0; !__all_sync(~0u, slot >= own); ++slot) {
      uint32_t taken = 0, bank = 0;
      bool waits = slot < own;
      while (!__all_sync(~0u, !waits)) {
        const uint32_t fullest = left.fullest(waits ? ~(taken >> first_bank) : 0);
        // Of banks with as many words, neighbours prefer different ones.
        const uint32_t turn = (lane_ + slot) % BANKS, later = fullest >> turn << turn;
        const uint32_t best = __ffs(later != 0 ? later : fullest) - 1;
        const uint32_t alike = __match_any_sync(~0u, fullest != 0 ? first_bank + best : 32 + lane_);
        const bool wins = fullest != 0 && __ffs(alike) - 1 == lane_;
        const uint32_t now = __reduce_or_sync(~0u, wins ? 1u << (first_bank + best) : 0);
        taken = now != 0 ? taken | now : 0;
        if (wins) {
          waits = false;
          bank = best;
          left.take(bank);
        }
      }
      if (slot >= own) continue;
      int from = slot;
      while (row_of_word(at(from)) % BANKS != bank) ++from;
#pragma unroll
      for (int i = 0; i < Quad<E>::PARTS; ++i) {
        const uint32_t moved = at(slot)[i];
        at(slot)[i] = at(from)[i];
        at(from)[i] = moved;
      }
    }
  }
  // How many words of a list there are in each bank, at most 255: digit i of all counts, a bit per bank.
  struct BankCounts {
    uint32_t digits[8];
    RNNCC_DEVICE void add(uint32_t bank) {
      uint32_t carry = 1u << bank;
#pragma unroll
      for (uint32_t& digit : digits) {
        const uint32_t before = digit;
        digit ^= carry;
        carry &= before;
      }
    }
    RNNCC_DEVICE void take(uint32_t bank) {
      uint32_t borrow = 1u << bank;
#pragma unroll
      for (uint32_t& digit : digits) {
        digit ^= borrow;
        borrow &= digit;
      }
    }
    // Those of `banks` that have the most words; none where they have no word.
    RNNCC_DEVICE uint32_t fullest(uint32_t banks) const {
      uint32_t all = 0;
#pragma unroll
      for (const uint32_t digit : digits) all |= digit;
      banks &= all;
#pragma unroll
      for (int i = 7; i >= 0; --i) banks = (banks & digits[i]) != 0 ? banks & digits[i] : banks;
      return banks;
    }
  };

  // Multiplies what has no room in lists: a warp takes a row.
  template <int P>
  RNNCC_DEVICE void multiply_others() const {
    using Phase = typename S::template Phase<P>;
    for (int row = warp_; row < Phase::ROWS; row += S::K_WARPS) {
      const int from = others<P>(row);
      float sums[S::LANE_ENTRIES] = {};
      for (int octet = from / 8 + lane_; octet < Phase::TERMS / 8; octet += 32)
        for_elements<P>(row, octet, octet + 1, [&](int term, E x) {
          if (term >= from) add(to_float(x), S::row_of(term), sums);
        });
#pragma unroll
      for (float& sum : sums)
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
      if (lane_ == 0) leave(S::LISTS + row, sums);
    }
  }

  static constexpr uint32_t padding_ = S::ZERO_ROW;  // the row of words without an element
  const int lane_, warp_;
  char* const partials_;
  char* const info_;
  char* const rows_;
  char* const words_;
  const FusedCall<Step>* call_ = nullptr;
  const FusedTensors<Step>* own_ = nullptr;
  int head_ = 0, unit0_ = 0;
  int shared_quads_[S::PHASES] = {};
  bool has_more_[S::PHASES] = {};
  Quad<E> held_[at_least_one(S::template Phase<S::LAST>::HELD_END)];
};

template <class S>
RNNCC_DEVICE void fused_sparse(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  run_grid<S, SparseProducts<S>>(call, own);
}

}  // namespace rnncc
