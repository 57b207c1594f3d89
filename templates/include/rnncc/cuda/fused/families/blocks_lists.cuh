// What a CTA of a kernel of blocks keeps of its matrices, and how it makes that before the first step.
#pragma once

#include "../device/step.cuh"

namespace rnncc {

// A *band* is 16 rows of one sum, a *strip* is 16 terms of an operand, and a *square* is the 16 x 16 elements by which
// a band multiplies a strip. A square is kept where one of its elements is not zero. A *list* is what one warp
// multiplies. The CTA's squares, band after band, are cut into lists of equal length; the last lists may be shorter.
// For each band of its list a warp leaves a *part* of the band's sums. Parts are in the order of warps, and those of a
// warp in the order of bands.
template <class S>
class BlockLists {
 public:
  using Step = typename S::Step;
  using E = typename S::E;

  // The CTA's shared memory, but for what it receives of reductions.
  RNNCC_DEVICE BlockLists(char* shared)
      : lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        parts_(shared),
        operands_(shared + S::PARTIAL_BYTES + S::RECEIVED_BYTES),
        squares_(operands_ + S::STRIPS_BYTES),
        info_(squares_ + S::SQUARES_BYTES) {}

  // Makes the lists of all phases. All threads call it.
  RNNCC_DEVICE void fill(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat) {
    call_ = &call;
    own_ = &own;
    head_ = seat.head;
    unit0_ = seat.rank * S::UNITS;
    for_numbers<S::PHASES>([&](auto phase) {
      constexpr int P = decltype(phase)::value;
      if constexpr (S::template Phase<P>::SUMS > 0) fill_phase<P>();
    });
    if (threadIdx.x < S::STRIP_BYTES / 16)
      reinterpret_cast<uint4*>(operands_ + S::ZERO_STRIP * S::STRIP_BYTES)[threadIdx.x] = uint4{};
  }

 protected:
  // The strips that the CTA asks for.
  template <int P>
  RNNCC_DEVICE uint16_t* strips() const {
    return reinterpret_cast<uint16_t*>(info_ + S::template Phase<P>::STRIPS_BEGIN);
  }
  // For each square of the warp's list: its strip's place among the strips that the CTA asks for, and its band in the
  // upper four bits. Behind the last square: the place of zeros.
  template <int P>
  RNNCC_DEVICE uint16_t* places() const {
    using Phase = typename S::template Phase<P>;
    return reinterpret_cast<uint16_t*>(info_ + Phase::PLACES_BEGIN) + warp_ * Phase::PLACES;
  }
  // Which parts there are of a band's sums: the first, and how many.
  template <int P>
  RNNCC_DEVICE uint32_t& parts(int band) const {
    return reinterpret_cast<uint32_t*>(info_ + S::template Phase<P>::PARTS_BEGIN)[band];
  }
  // The lane's elements of the warp's squares in shared memory.
  template <int P>
  RNNCC_DEVICE char* squares() const {
    using Phase = typename S::template Phase<P>;
    return squares_ + Phase::SQUARES_BEGIN + warp_ * Phase::SHARED * 512 + lane_ * 16;
  }
  // Makes the strips from `first` on, as many as there is room for, those that the CTA asks for. All threads call it.
  template <int P>
  RNNCC_DEVICE void take_strips(int first) const {
    for (int place = threadIdx.x; place < S::template Phase<P>::ROOM; place += S::THREADS)
      strips<P>()[place] = uint16_t(first + place);
    __syncthreads();
  }
  template <int P>
  RNNCC_DEVICE bool exists(int band, int strip) const {
    return (bits<P>(band)[strip / 32] >> strip % 32 & 1) != 0;
  }

  // A square from memory, as operand A of mma. Lane 4 r + q of an mma has terms 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. Here
  // it has terms 4 q to 4 q + 3 in their place, of both factors, so that it loads its operands at once. The square goes
  // through shared memory, where a part will lie later.
  template <int P>
  RNNCC_DEVICE uint4 square(int band, int strip) const {
    char* const room = parts_ + warp_ * S::PART_BYTES;
    const int row = lane_ % 16, octet = lane_ / 16;
    const Terms<E> terms = octet_of<P>(band * 16 + row, strip * 2 + octet);
    __syncwarp();
    *reinterpret_cast<Terms<E>*>(room + row * 32 + octet * 16) = terms;
    __syncwarp();
    const auto part = [&](int r) { return *reinterpret_cast<const uint2*>(room + r * 32 + lane_ % 4 * 8); };
    const uint2 upper = part(lane_ / 4), lower = part(lane_ / 4 + 8);
    __syncwarp();
    return make_uint4(upper.x, lower.x, upper.y, lower.y);
  }

 private:
  // Which squares of a band exist: a bit for each strip.
  template <int P>
  RNNCC_DEVICE uint32_t* bits(int band) const {
    using Phase = typename S::template Phase<P>;
    return reinterpret_cast<uint32_t*>(info_ + Phase::BITS_BEGIN) + band * Phase::BIT_WORDS;
  }
  // Eight terms of a row of phase P.
  template <int P>
  RNNCC_DEVICE Terms<E> octet_of(int row, int octet) const {
    const int term = octet * 8;
    return matrix8<Step, P, S::H>(*call_, *own_, row / S::UNITS, term / S::DEPTH, head_, unit0_ + row % S::UNITS,
                                  term % S::DEPTH);
  }
  // Whether an element is not zero.
  RNNCC_DEVICE static bool has_any(const Terms<E>& terms) {
    return ((terms.x | terms.y | terms.z | terms.w) & 0x7fff7fff) != 0;
  }

  template <int P>
  RNNCC_DEVICE void fill_phase() {
    using Phase = typename S::template Phase<P>;
    constexpr int ROWS = Phase::BANDS * 16, OCTETS = Phase::STRIPS * 2, WORDS = Phase::BIT_WORDS,
                  MOST = Phase::HELD + Phase::SHARED;
    for (int i = threadIdx.x; i < Phase::BANDS * WORDS; i += S::THREADS) bits<P>(0)[i] = 0;
    __syncthreads();
    // Neighbours read what lies side by side.
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * OCTETS; i += S::THREADS) {
      const int row = Phase::TRANSPOSED ? i % ROWS : i / OCTETS, octet = Phase::TRANSPOSED ? i / ROWS : i % OCTETS;
      if (has_any(octet_of<P>(row, octet))) atomicOr(bits<P>(row / 16) + octet / 64, 1u << octet / 2 % 32);
    }
    __syncthreads();

    // The strips that some band takes, how many of them come before each word of bits, and how many squares each band
    // has. The room of operands is free before the loop.
    uint32_t* const taken = reinterpret_cast<uint32_t*>(operands_);
    uint32_t* const before = taken + WORDS;
    uint32_t* const counts = before + WORDS;
    for (int word = threadIdx.x; word < WORDS; word += S::THREADS) {
      uint32_t any = 0;
      for (int band = 0; band < Phase::BANDS; ++band) any |= bits<P>(band)[word];
      taken[word] = any;
    }
    if (threadIdx.x < Phase::BANDS) {
      uint32_t own = 0;
      for (int word = 0; word < WORDS; ++word) own += __popc(bits<P>(threadIdx.x)[word]);
      counts[threadIdx.x] = own;
    }
    __syncthreads();
    int needed = 0, total = 0;
    for (int word = 0; word < WORDS; ++word) {
      if (int(threadIdx.x) == word) before[word] = uint32_t(needed);
      needed += __popc(taken[word]);
    }
    for (int band = 0; band < Phase::BANDS; ++band) total += int(counts[band]);
    // All threads find the same.
    const int length = ::max((total + S::K_WARPS - 1) / S::K_WARPS, 1);
    has_more_[P] = length > MOST || needed > Phase::ROOM;
    strips_needed_[P] = has_more_[P] ? Phase::STRIPS : needed;
    if (threadIdx.x < Phase::BANDS) parts<P>(threadIdx.x) = parts_of<P>(counts, threadIdx.x, length);
    first_part_[P] = has_more_[P] ? warp_ : S::PARTS - 1;  // the last one is nobody's
    own_squares_[P] = 0;
    for (int i = lane_; i < Phase::PLACES; i += 32) places<P>()[i] = uint16_t(S::ZERO_STRIP);
#pragma unroll
    for (int i = 0; i < Phase::HELD; ++i) held_[Phase::HELD_BEGIN + i] = {};
    __syncthreads();
    if (has_more_[P]) return;
    for (int strip = threadIdx.x; strip < Phase::STRIPS; strip += S::THREADS)
      if (taken[strip / 32] >> strip % 32 & 1) strips<P>()[place_of(taken, before, strip)] = uint16_t(strip);
    __syncthreads();

    // The warp's list: `own` squares of the CTA from square `first` on.
    const int first = warp_ * length, own = ::min(::max(total - first, 0), length);
    own_squares_[P] = own;
    uint64_t begins = 0;
    for (int band = 0, number = -first, rank = 0; band < Phase::BANDS; ++band) {
      const int end = number + int(counts[band]);
      if (number <= 0 && 0 < end) first_part_[P] = warp_ + rank;
      if (0 < number && number < own && number < end) begins |= uint64_t(1) << number;
      rank += number < end;
      int i = number;
      for (int word = 0; word < WORDS && i < own && 0 < end; ++word)
        for (uint32_t set = bits<P>(band)[word]; set != 0; set &= set - 1, ++i)
          if (0 <= i && i < own && lane_ == 0)
            places<P>()[i] = uint16_t(band << 12 | place_of(taken, before, word * 32 + __ffs(set) - 1));
      number = end;
    }
    begins_[P] = begins;
    __syncwarp();
    const auto own_square = [&](int i) {
      const int place = places<P>()[i];
      return square<P>(place >> 12, strips<P>()[place & 0xfff]);
    };
#pragma unroll
    for (int i = 0; i < Phase::HELD; ++i)
      if (i < own) held_[Phase::HELD_BEGIN + i] = own_square(i);
    for (int i = Phase::HELD; i < MOST; ++i)
      *reinterpret_cast<uint4*>(squares<P>() + (i - Phase::HELD) * 512) = i < own ? own_square(i) : uint4{};
    __syncthreads();  // before the next phase uses the room of operands
  }
  // The parts of a band's sums (as `parts` has them), where each warp has a list of `length` squares.
  template <int P>
  RNNCC_DEVICE uint32_t parts_of(const uint32_t* counts, int band, int length) const {
    constexpr uint32_t EACH = S::K_WARPS / at_least_one(S::template Phase<P>::BANDS);
    if (has_more_[P]) return uint32_t(band) * EACH << 16 | EACH;
    if (counts[band] == 0) return 0;
    int first = 0, rank = 0;  // among the bands that have squares
    for (int other = 0; other < band; ++other) first += int(counts[other]), rank += counts[other] != 0;
    const int first_warp = first / length, last_warp = (first + int(counts[band]) - 1) / length;
    return uint32_t(first_warp + rank) << 16 | uint32_t(last_warp - first_warp + 1);
  }
  RNNCC_DEVICE static uint32_t place_of(const uint32_t* taken, const uint32_t* before, int strip) {
    return before[strip / 32] + __popc(taken[strip / 32] & ((1u << strip % 32) - 1));
  }

 protected:
  const int lane_, warp_;
  char* const parts_;
  char* const operands_;
  char* const squares_;
  char* const info_;
  const FusedCall<Step>* call_ = nullptr;
  const FusedTensors<Step>* own_ = nullptr;
  int head_ = 0, unit0_ = 0;
  // Per phase: whether the CTA has more squares, or takes more strips, than there is room for; and how many strips
  // come.
  bool has_more_[S::PHASES] = {};
  int strips_needed_[S::PHASES] = {};
  // Per phase: how many squares the warp has; the number of its first part; and a bit for each square with which
  // another band begins in the list.
  int own_squares_[S::PHASES] = {}, first_part_[S::PHASES] = {};
  uint64_t begins_[S::PHASES] = {};
  uint4 held_[at_least_one(S::template Phase<S::LAST>::HELD_END)];
};

}  // namespace rnncc
