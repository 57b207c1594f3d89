// A fused loop over CTAs of the whole grid, for matrices that are mostly zeros. A CTA keeps the elements of its rows
// that are not zero, each with the place of its operand. All operands of a phase come into shared memory, and each
// thread gathers those of its elements. The idea is that of Zhu, Pool, Andersch, Rennich and Keckler
// (arXiv:1804.10223).
//
// All operands of a head go to each of its CTAs, and for a large batch or head_dim that takes longer than the products.
// So the CTAs of a cluster may *split* the terms among them: each takes its slice of the operands, has the elements of
// the rows of all of them that meet it, and sends the other CTAs what these add to the sums of their rows.
#pragma once

#include "grid_loop.cuh"
#include "sparse_lists.cuh"

namespace rnncc {

// SPLIT is the number of CTAs per cluster.
//
// The operands of a phase come in *waves* of at most WAVE_TERMS terms. Each wave takes the room in shared memory of the
// one before, and threads go on adding to the same sums.
//
// QUADS has two numbers for each phase: how many quads (sparse_lists.cuh) a thread holds in registers, and for how many
// more it has room in shared memory, in all waves together. What threads hold comes into registers through shared
// memory, STAGED quads at a time.
template <class Step_, int H_, int UNIT_BLOCKS_, int WARPS_, int TURNS_, int LANE_ENTRIES_, int SPLIT_, int WAVE_TERMS_,
          int STAGED_, int... QUADS_>
struct SparseShape : GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, 1, TURNS_, LANE_ENTRIES_> {
  using Layout = GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, 1, TURNS_, LANE_ENTRIES_>;
  using Step = Step_;
  using Layout::DEPTH, Layout::LANE_ENTRIES, Layout::LAST, Layout::PHASES, Layout::THREADS, Layout::UNITS;
  using typename Layout::E;
  static constexpr int SPLIT = SPLIT_, STAGED = STAGED_;
  static constexpr int QUADS[] = {QUADS_...};
  static_assert(sizeof...(QUADS_) == 2 * PHASES && (LANE_ENTRIES == 4 || LANE_ENTRIES == 8));
  static_assert(Layout::CTAS % SPLIT == 0 && WAVE_TERMS_ % 32 == 0);

  // In shared memory a term of all batch entries of the group lies side by side. Each phase has LISTS lists.
  static constexpr int TERM_BYTES = LANE_ENTRIES * int(sizeof(E)), LISTS = THREADS,
                       QUAD_BYTES = LISTS * Quad<E>::PARTS * 16;
  // The terms that a warp asks for with one message per lane, of all entries. A lane has AT_ONCE messages on their way.
  static constexpr int POLL_TERMS = 32 * (8 / LANE_ENTRIES), AT_ONCE = 4 / Message<E>::PARTS;

  // The place of a term in shared memory. Terms that come with one message change places among themselves, so that what
  // lanes write at once goes to different banks.
  __host__ __device__ static constexpr uint32_t place_of(uint32_t term) {
    if (sizeof(E) == 4) return term ^ (term >> 3 & (LANE_ENTRIES == 8 ? 3 : 7));
    return term ^ (term >> (LANE_ENTRIES == 8 ? 3 : 4) & 3) << 1;
  }
  // Places lie in the same banks where their numbers are equal modulo this.
  static constexpr int TERMS_PER_LINE = 128 / TERM_BYTES;
  // A thread loads a term at once, or in two halves.
  static constexpr int LOADS = TERM_BYTES > 16 ? 2 : 1, LOAD_BYTES = TERM_BYTES / LOADS;
  // Sums of a pair of entries lie side by side: for a bit more of them than there are. Threads 4 r + q read or write
  // sum r of pair q at once, in different banks.
  __host__ __device__ static constexpr int banked(int sums) { return ceil_div(sums, 16) * 16 + 4; }

  template <int P, class = void>
  struct Phase : Layout::template OfPhase<P> {
    using Of = typename Layout::template OfPhase<P>;
    using Of::OPERANDS, Of::SUMS;
    // OWN_ROWS are those of the CTA's own units. It has elements of the rows of all CTAs of its cluster.
    static constexpr int OWN_ROWS = SUMS * UNITS, ROWS = OWN_ROWS * SPLIT,
                         SEGMENTS = SUMS > 0 ? THREADS / at_least_one(ROWS) : 0;
    static_assert(ROWS <= LISTS, "a row has a thread");
    static_assert(QUADS[2 * P] < 64 && QUADS[2 * P + 1] < 64, "words of a bank are counted in eight bits");
    static constexpr int HELD = QUADS[2 * P], SHARED = QUADS[2 * P + 1];
    // The terms of all operands, and those of the CTA's slice. Terms are counted from the slice's first.
    static constexpr int ALL_TERMS = OPERANDS * DEPTH, TERMS = ceil_div(ALL_TERMS / 32, SPLIT) * 32;
    static constexpr int WAVES = at_least_one(ceil_div(TERMS, WAVE_TERMS_)), ROOM = (HELD + SHARED) / WAVES;
    static_assert(ROOM * WAVES == HELD + SHARED, "all waves have room for equally many quads");
    static constexpr int WAVE_TERMS = WAVES > 1 ? WAVE_TERMS_ : TERMS, POLLS = ceil_div(WAVE_TERMS, POLL_TERMS);
    // Whether some terms that are polled for belong to no operand. Their places are never written.
    static constexpr bool UNEVEN = SPLIT * TERMS > ALL_TERMS;
    static constexpr bool PADDED =
        DEPTH > H_ || UNEVEN || POLLS* POLL_TERMS > WAVE_TERMS || POLLS % WARPS_ != 0 || WAVES* WAVE_TERMS > TERMS;
    // The terms of a wave: from its first, to the one behind its last.
    __host__ __device__ static constexpr int first_term(int wave) { return wave * WAVE_TERMS; }
    __host__ __device__ static constexpr int end_term(int wave) {
      return (wave + 1) * WAVE_TERMS < TERMS ? (wave + 1) * WAVE_TERMS : TERMS;
    }
    // The quads in registers are those of the first waves: of all waves before one, and of one.
    __host__ __device__ static constexpr int held_before(int wave) { return wave * ROOM < HELD ? wave * ROOM : HELD; }
    __host__ __device__ static constexpr int held(int wave) { return held_before(wave + 1) - held_before(wave); }
    static constexpr int MOST_POLLS = POLLS > Phase<P - 1>::MOST_POLLS ? POLLS : Phase<P - 1>::MOST_POLLS,
                         MOST_ROWS = ROWS > Phase<P - 1>::MOST_ROWS ? ROWS : Phase<P - 1>::MOST_ROWS;
    static constexpr int HELD_BEGIN = Phase<P - 1>::HELD_END, HELD_END = HELD_BEGIN + HELD;
    // In shared memory: the phase's words, and what is known of each row (SparseLists::info, first_unlisted).
    static constexpr int WORDS_BEGIN = Phase<P - 1>::WORDS_END, WORDS_END = WORDS_BEGIN + SHARED * QUAD_BYTES;
    static constexpr int INFO_BEGIN = Phase<P - 1>::INFO_END, INFO_END = INFO_BEGIN + ROWS * 4 * (1 + WAVES);
    __host__ __device__ static constexpr int words_begin(int wave) {
      return WORDS_BEGIN + (wave * ROOM - held_before(wave)) * QUAD_BYTES;
    }
    // What another CTA of the cluster adds to the sums of the CTA's rows: of each pair of entries GIVEN numbers side by
    // side. Two times follow each other in two buffers.
    static constexpr int GIVEN = banked(OWN_ROWS), GIVEN_BYTES = GIVEN * LANE_ENTRIES * 4,
                         GIVEN_BEGIN = Phase<P - 1>::GIVEN_END,
                         GIVEN_END = GIVEN_BEGIN + (SUMS > 0 ? 2 * (SPLIT - 1) * GIVEN_BYTES : 0);
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int MOST_POLLS = 0, MOST_ROWS = 0, HELD_END = 0, WORDS_END = 0, INFO_END = 0, GIVEN_END = 0;
  };

  // Each list leaves a partial sum, and so does each row for its elements that have no room in lists.
  static constexpr int PARTIALS = LISTS + Phase<LAST>::MOST_ROWS, PARTIAL_BYTES = PARTIALS * LANE_ENTRIES * 4;
  static constexpr int INFO_BYTES = Phase<LAST>::INFO_END;
  // Two barriers per phase, and what other CTAs of the cluster give.
  static constexpr int BARRIER_BYTES = SPLIT > 1 ? 16 * PHASES : 0,
                       GIVEN_BYTES = BARRIER_BYTES + Phase<LAST>::GIVEN_END;
  // Behind all operands there are terms of zeros, one in each bank.
  static constexpr uint32_t ZERO_PLACE = Phase<LAST>::MOST_POLLS * POLL_TERMS;
  static constexpr int ZERO_BYTES = TERMS_PER_LINE * TERM_BYTES;
  // Before the loop there are no operands, and their room serves to count elements and to stage what threads hold.
  static constexpr int WITH_ZEROS = ZERO_PLACE * TERM_BYTES + ZERO_BYTES, COUNT_BYTES = 2 * THREADS * 4,
                       BEFORE_LOOP = STAGED * QUAD_BYTES > COUNT_BYTES ? STAGED * QUAD_BYTES : COUNT_BYTES,
                       OPERANDS_BYTES = WITH_ZEROS > BEFORE_LOOP ? WITH_ZEROS : BEFORE_LOOP;
  static constexpr int WORD_BYTES = Phase<LAST>::WORDS_END;
  static constexpr int SHARED_BYTES = PARTIAL_BYTES + Layout::RECEIVED_BYTES + GIVEN_BYTES + INFO_BYTES +
                                      OPERANDS_BYTES + WORD_BYTES + Layout::Memory::BYTES;
  static_assert(sizeof(E) == 4 || ZERO_PLACE + TERMS_PER_LINE <= 65536, "a word names a place in 16 bits");
};

// The products of a sparse kernel. Elements that have no room in lists are read from memory at every step: right, but
// slow.
template <class S>
class SparseProducts : public SparseLists<S> {
 public:
  using Lists = SparseLists<S>;
  using Lists::Lists;
  using typename Lists::E;

  // As GridProducts has it.
  template <int P, class Move>
  RNNCC_DEVICE bool multiply(const char* from, const GridTerms<S>& places, const Move& move) {
    using Phase = typename S::template Phase<P>;
    bool in_vain = receive<P, 0>(from, places, move);
    __syncthreads();
    float sums[S::LANE_ENTRIES] = {};
    multiply_wave<P, 0>(sums);
    for_numbers<Phase::WAVES - 1>([&](auto number) {
      constexpr int WAVE = decltype(number)::value + 1;
      in_vain |= receive<P, WAVE>(from, places, move);
      __syncthreads();
      multiply_wave<P, WAVE>(sums);
    });
    if constexpr (S::SPLIT > 1)
      split_.template give<P>([&](int rank, int row, int pair) {
        float2 sum = {};
        for_parts<P, 1>([&](int) { return rank * Phase::OWN_ROWS + row; }, pair,
                        [&](int, float2 part) {
                          sum.x += part.x;
                          sum.y += part.y;
                        });
        return sum;
      });
    return in_vain;
  }

  template <int P, int GIVES>
  RNNCC_DEVICE void sum(int u, int, float (&sum)[2][GIVES]) const {
    using Phase = typename S::template Phase<P>;
    const int unit = u * 8 + lane_ / 4, q = lane_ % 4;
    if (q * 2 >= S::LANE_ENTRIES) return;
    const auto row = [&](int i) { return i * S::UNITS + unit; };
    const auto add = [&](int i, float2 part) {
      sum[0][i] += part.x;
      sum[1][i] += part.y;
    };
    for_parts<P, Phase::SUMS>([&](int i) { return split_.rank() * Phase::OWN_ROWS + row(i); }, q, add);
    if constexpr (S::SPLIT > 1) {
      split_.template wait<P>();
#pragma unroll
      for (int peer = 0; peer + 1 < S::SPLIT; ++peer)
#pragma unroll
        for (int i = 0; i < Phase::SUMS; ++i) add(i, split_.template taken<P>(peer, row(i), q));
    }
  }

 private:
  using Lists::has_more_, Lists::held_, Lists::lane_, Lists::longest_, Lists::partials_, Lists::operands_,
      Lists::split_, Lists::warp_, Lists::words_;

  // The same quad, but the compiler does not know that. Otherwise it would compute addresses and values once, before
  // the loop, and keep them in registers.
  RNNCC_DEVICE static Quad<E> again(Quad<E> quad) {
#pragma unroll
    for (uint4& part : quad.part)
      part = make_uint4(made_again(int(part.x)), made_again(int(part.y)), made_again(int(part.z)),
                        made_again(int(part.w)));
    return quad;
  }

  // A number as it is, or the same number without the compiler's knowing that.
  RNNCC_DEVICE static const int& as_known(const int& v, Number<0>) { return v; }
  RNNCC_DEVICE static int as_known(int v, Number<1>) { return made_again(v); }

  // Multiplies the elements of a wave by its operands. The last wave leaves the sums.
  template <int P, int WAVE>
  RNNCC_DEVICE void multiply_wave(float (&sums)[S::LANE_ENTRIES]) {
    using Phase = typename S::template Phase<P>;
    constexpr int HELD = Phase::held(WAVE), HELD_BEGIN = Phase::HELD_BEGIN + Phase::held_before(WAVE);
#pragma unroll
    for (int i = 0; i < HELD; ++i) add(again(held_[HELD_BEGIN + i]), sums);
    const char* const words = words_ + Phase::words_begin(WAVE) + threadIdx.x * 16;
#pragma unroll 4
    for (int i = 0; i < longest_[P] - HELD; ++i) add(Lists::load(words, i), sums);
    if (WAVE == Phase::WAVES - 1) {
      if constexpr (S::LOADS > 1)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float first = sums[e], second = sums[4 + e];
          sums[e] = Lists::first_load() == 0 ? first : second;
          sums[4 + e] = Lists::first_load() == 0 ? second : first;
        }
      leave(threadIdx.x, sums);
    }
    if (has_more_[P]) multiply_unlisted<P, WAVE>();
  }

  // Adds elements times their operands, for each entry.
  RNNCC_DEVICE void add(const Quad<E>& quad, float (&sums)[S::LANE_ENTRIES]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) add(quad.value(i), quad.place(i), sums);
  }
  RNNCC_DEVICE void add(float value, uint32_t place, float (&sums)[S::LANE_ENTRIES]) const {
    const char* const at = operands_ + place * S::LOAD_BYTES;
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int e = 0; e < S::LANE_ENTRIES; e += 4) {
        const float4 v = *reinterpret_cast<const float4*>(e == 0 ? at : operands_ + (place ^ 1) * S::LOAD_BYTES);
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
  // A term of all entries, in 16 bits.
  struct alignas(2 * S::LANE_ENTRIES) Operands {
    uint32_t words[S::LANE_ENTRIES / 2];
  };

  // Leaves a partial sum for the warps that finish units, or adds it to the one that is there.
  template <bool ADDS = false>
  RNNCC_DEVICE void leave(int number, const float (&sums)[S::LANE_ENTRIES]) const {
#pragma unroll
    for (int e = 0; e < S::LANE_ENTRIES; e += 2) {
      float2* const to = reinterpret_cast<float2*>(partials_ + (e / 2 * S::PARTIALS + number) * 8);
      *to = ADDS ? make_float2(to->x + sums[e], to->y + sums[e + 1]) : make_float2(sums[e], sums[e + 1]);
    }
  }

  // Calls add(i, part) for the partial sums of N rows and a pair of entries: those of the rows' lists, and of their
  // elements that are in no list. A part may be zeros.
  template <int P, int N, class Row, class Add>
  RNNCC_DEVICE void for_parts(const Row& row, int pair, const Add& add) const {
    constexpr int AT_ONCE = N < 4 ? 8 / N : 2;  // parts of a sum that are read at a time
    const char* const from = partials_ + pair * S::PARTIALS * 8;
    const auto part = [&](int number) { return *reinterpret_cast<const float2*>(from + number * 8); };
    uint32_t lists[N];
    int most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      lists[i] = this->template info<P>(row(i));
      most = ::max(most, int(lists[i] & 0xffff));
    }
#pragma unroll 1
    for (int l = 0; l < most; l += AT_ONCE)
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const bool exists = l + k < int(lists[i] & 0xffff);
          add(i, exists ? part((lists[i] >> 16) + l + k) : make_float2(0.0f, 0.0f));
        }
    if (!has_more_[P]) return;
#pragma unroll
    for (int i = 0; i < N; ++i) add(i, part(S::LISTS + row(i)));
  }

  // Brings the operands of a wave of phase P into shared memory.
  template <int P, int WAVE, class Move>
  RNNCC_DEVICE bool receive(const char* from, const GridTerms<S>& places, const Move& move) const {
    using Phase = typename S::template Phase<P>;
    constexpr int OWN = ceil_div(Phase::POLLS, S::K_WARPS), FIRST = Phase::first_term(WAVE),
                  TERMS = Phase::end_term(WAVE) - FIRST;
    const int wave_term = (S::SPLIT > 1 ? split_.rank() * Phase::TERMS : 0) + FIRST;  // among the terms of all operands
    // With several waves, addresses are computed for each: all waves together would keep them in registers.
    auto&& lane = as_known(lane_, Number<(Phase::WAVES > 1)>{});
    auto&& warp = as_known(warp_, Number<(Phase::WAVES > 1)>{});
    const int q = lane % 4, half = lane / 4 / S::LANE_ENTRIES;
    const auto first = [&](int i) { return (warp * OWN + i) * S::POLL_TERMS + half * 32; };
    const auto is_wanted = [&](int i) {
      return i < OWN &&
             (!Phase::PADDED || (first(i) < TERMS && (!Phase::UNEVEN || wave_term + first(i) < Phase::ALL_TERMS) &&
                                 (wave_term + first(i)) % S::DEPTH + q * 8 < S::H));
    };
    bool in_vain = false;
#pragma unroll
    for (int begin = 0; begin < OWN; begin += S::AT_ONCE) {
      Message<E> h[S::AT_ONCE];
      const auto ask = [&](int b) {
        h[b].ask(from + places.terms[0] + S::place_of_chunk(wave_term + first(begin + b)));
      };
#pragma unroll
      for (int b = 0; b < S::AT_ONCE; ++b)
        if (is_wanted(begin + b))
          ask(b);
        else
          h[b] = {};
      if (WAVE == 0 && begin == 0) move();
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
      // All threads are through with the wave before.
      if (WAVE > 0 && begin == 0) __syncthreads();
#pragma unroll
      for (int b = 0; b < S::AT_ONCE; ++b)
        if (begin + b < OWN && (!Phase::PADDED || warp * OWN + begin + b < Phase::POLLS))
          put(h[b], operands_ + (warp * OWN + begin + b) * (S::POLL_TERMS * S::TERM_BYTES), lane);
    }
    return in_vain;
  }

  // Puts the POLL_TERMS terms that the warp has received into their places, the first of which begins at `to`.
  RNNCC_DEVICE void put(const Message<E>& message, char* to, const int& lane) const {
    const int row = lane / 4, q = lane % 4;
    if constexpr (sizeof(E) == 4) {
      const int own = row / S::LANE_ENTRIES * 32 + q * 8, entry = row % S::LANE_ENTRIES;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        *reinterpret_cast<uint32_t*>(to + S::place_of(own + i) * S::TERM_BYTES + entry * 4) =
            Quad<E>::component(message.part[i / 4], i % 4);
    } else {
      // Lanes have exchanged terms and entries: a lane gets one term of two entries.
      constexpr int PAIRS = S::LANE_ENTRIES / 2;
      const int own = q / PAIRS * 32 + row / 2 * 8 + row % 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(to + S::place_of(own + 2 * i) * S::TERM_BYTES + q % PAIRS * 4) =
            transpose8x8(Quad<E>::component(message.part[0], i));
    }
  }

  // Multiplies the elements of a wave that have no room in lists: a warp takes a row.
  template <int P, int WAVE>
  RNNCC_DEVICE void multiply_unlisted() const {
    using Phase = typename S::template Phase<P>;
    for (int row = warp_; row < Phase::ROWS; row += S::K_WARPS) {
      const int from = this->template first_unlisted<P>(WAVE, row);
      float sums[S::LANE_ENTRIES] = {};
      for (int octet = from / 8 + lane_; octet < Phase::end_term(WAVE) / 8; octet += 32)
        this->template for_elements<P>(row, octet, octet + 1, [&](int term, E x) {
          if (term >= from) add(to_float(x), S::place_of(term - Phase::first_term(WAVE)) * S::LOADS, sums);
        });
#pragma unroll
      for (float& sum : sums)
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
      if (lane_ == 0) leave<(WAVE > 0)>(S::LISTS + row, sums);
    }
  }
};

template <class S>
RNNCC_DEVICE void fused_sparse(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  run_grid<S, SparseProducts<S>>(call, own);
  if constexpr (S::SPLIT > 1) cluster_barrier();  // a CTA must not end while others still send to it
}

}  // namespace rnncc
