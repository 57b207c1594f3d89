// A fused loop over CTAs of the whole grid, for matrices of which whole blocks are zero. A CTA keeps the blocks of its
// rows that are not zero, and tensor cores multiply them. It asks for those operands alone that these blocks take.
#pragma once

#include "blocks_lists.cuh"
#include "grid_loop.cuh"

namespace rnncc {

// SQUARES has three numbers for each phase: how many squares a warp holds in registers, for how many more it has room
// in shared memory, and for how many strips of operands the CTA has room there (blocks_lists.cuh has these words).
template <class Step_, int H_, int UNIT_BLOCKS_, int WARPS_, int ENTRY_TILES_, int TURNS_, int... SQUARES_>
struct BlocksShape : GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, ENTRY_TILES_, TURNS_> {
  using Layout = GridLayout<Step_, H_, UNIT_BLOCKS_, WARPS_, ENTRY_TILES_, TURNS_>;
  using Step = Step_;
  using Layout::DEPTH, Layout::ENTRY_TILES, Layout::LAST, Layout::PHASES, Layout::UNITS;
  using typename Layout::E;
  // A CTA asks for some operands alone, so it does not know how far all others are. Every FENCE steps it waits until
  // they have sent what the first turn takes in its step. By then they may still have to read the step before in the
  // second turn, but nothing older.
  static constexpr int FENCE = 20, LAG = FENCE + 1;
  static constexpr int SQUARES[] = {SQUARES_...};
  static_assert(sizeof...(SQUARES_) == 3 * PHASES && UNIT_BLOCKS_ % 2 == 0 && sizeof(E) == 2);

  template <int P, class = void>
  struct Phase : Layout::template OfPhase<P> {
    using Of = typename Layout::template OfPhase<P>;
    using Of::OPERANDS, Of::SUMS;
    static constexpr int BANDS = SUMS * UNITS / 16, STRIPS = OPERANDS * DEPTH / 16, BIT_WORDS = ceil_div(STRIPS, 32);
    static_assert(BANDS <= WARPS_ && BANDS <= 16, "a band has a warp, and a number of four bits");
    static constexpr int HELD = SQUARES[3 * P], SHARED = SQUARES[3 * P + 1], ROOM = SQUARES[3 * P + 2];
    static_assert(HELD % 4 == 0 && SHARED % 4 == 0, "squares are multiplied four at a time");
    static_assert(HELD + SHARED <= 60 && ROOM < 4096, "the first squares of bands are bits, and places have twelve");
    static constexpr int MOST_BANDS = BANDS > Phase<P - 1>::MOST_BANDS ? BANDS : Phase<P - 1>::MOST_BANDS;
    static constexpr int MOST_ROOM = ROOM > Phase<P - 1>::MOST_ROOM ? ROOM : Phase<P - 1>::MOST_ROOM;
    static constexpr int HELD_BEGIN = Phase<P - 1>::HELD_END, HELD_END = HELD_BEGIN + HELD;
    static constexpr int SQUARES_BEGIN = Phase<P - 1>::SQUARES_END, SQUARES_END = SQUARES_BEGIN + WARPS_ * SHARED * 512;
    // In shared memory: which squares there are, which parts a band has, the strips that the CTA asks for, and for each
    // square of each warp the place of its strip.
    static constexpr int BITS_BEGIN = Phase<P - 1>::INFO_END, PARTS_BEGIN = BITS_BEGIN + BANDS * BIT_WORDS * 4,
                         STRIPS_BEGIN = PARTS_BEGIN + BANDS * 4, PLACES = BANDS > 0 ? HELD + SHARED + 4 : 0,
                         PLACES_BEGIN = ceil_div(STRIPS_BEGIN + ROOM * 2, 8) * 8,
                         INFO_END = PLACES_BEGIN + WARPS_ * PLACES * 2;
  };
  template <class V>
  struct Phase<-1, V> {
    static constexpr int MOST_BANDS = 0, MOST_ROOM = 0, HELD_END = 0, SQUARES_END = 0, INFO_END = 0;
  };

  static constexpr int PARTS = WARPS_ + Phase<LAST>::MOST_BANDS, PART_BYTES = 512 * ENTRY_TILES,
                       PARTIAL_BYTES = PARTS * PART_BYTES;
  // The strips, and behind them one of zeros.
  static constexpr int STRIP_BYTES = 256 * ENTRY_TILES, ZERO_STRIP = Phase<LAST>::MOST_ROOM;
  static constexpr int STRIPS_BYTES = (ZERO_STRIP + 1) * STRIP_BYTES;
  static constexpr int SQUARES_BYTES = Phase<LAST>::SQUARES_END;
  static constexpr int INFO_BYTES = ceil_div(Phase<LAST>::INFO_END, 16) * 16;
  static constexpr int SHARED_BYTES =
      PARTIAL_BYTES + Layout::RECEIVED_BYTES + STRIPS_BYTES + SQUARES_BYTES + INFO_BYTES + Layout::Memory::BYTES;
};

// The products of a kernel of blocks. Where a CTA has more squares or strips than there is room for, all its squares
// are read from memory at every step: right, but slow.
template <class S>
class BlockProducts : public BlockLists<S> {
 public:
  using Lists = BlockLists<S>;
  using Lists::Lists;
  using typename Lists::E;

  // As GridProducts has it.
  template <int P, class Move>
  RNNCC_DEVICE bool multiply(const char* from, const GridTerms<S>& places, const Move& move) {
    using Phase = typename S::template Phase<P>;
    float sums[2][S::ENTRY_TILES][4] = {};  // two, so that products do not wait for each other
    bool in_vain = false;
    // All strips that are needed come at once. Where there is no room for them, they come by rounds.
    for (int first = 0; first < strips_needed_[P]; first += Phase::ROOM) {
      if (has_more_[P]) this->template take_strips<P>(first);
      const int count = ::min(strips_needed_[P] - first, Phase::ROOM);
      in_vain |= receive<P>(from, places, count, [&] {
        if (first == 0) move();
      });
      __syncthreads();
      if (has_more_[P]) multiply_from_memory<P>(first, count, sums[0]);
    }
    if (strips_needed_[P] == 0) move();
    // Four squares at a time: the operands of the next four are on their way while these are multiplied.
    char* to = part(first_part_[P]);
    const uint64_t begins = begins_[P];
    const auto multiply_four = [&](const uint4* squares, const Operands& operands, int i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (begins >> (i + k) & 1) {
          leave(to, sums);
          to += S::PART_BYTES;
        }
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          mma<E>(sums[k % 2][n], squares[k], operands.b[k][n].x, operands.b[k][n].y);
      }
    };
    const int own = own_squares_[P];
    Operands now, next = operands_of<P>(0);
#pragma unroll
    for (int i = 0; i < Phase::HELD; i += 4) {
      now = next;
      next = operands_of<P>(i + 4);
      multiply_four(held_ + Phase::HELD_BEGIN + i, now, i);
    }
    const char* squares = this->template squares<P>();
#pragma unroll 1
    for (int i = Phase::HELD; i < own; i += 4, squares += 4 * 512) {
      uint4 four[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) four[k] = *reinterpret_cast<const uint4*>(squares + k * 512);
      now = next;
      next = operands_of<P>(i + 4);
      multiply_four(four, now, i);
    }
    leave(to, sums);
    return in_vain;
  }

  template <int P, int GIVES>
  RNNCC_DEVICE void sum(int u, int n, float (&sum)[2][GIVES]) const {
    using Phase = typename S::template Phase<P>;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i) {
      const uint32_t parts = this->template parts<P>(i * (S::UNITS / 16) + u / 2);
      const char* from = part(parts >> 16) + (u % 2 * S::ENTRY_TILES + n) * 256;
      for (int left = parts & 0xffff; left > 0; --left, from += S::PART_BYTES) {
        const float2 part = *reinterpret_cast<const float2*>(from);
        sum[0][i] += part.x;
        sum[1][i] += part.y;
      }
    }
  }

 private:
  using Lists::begins_, Lists::first_part_, Lists::has_more_, Lists::held_, Lists::lane_, Lists::own_squares_,
      Lists::parts_, Lists::operands_, Lists::strips_needed_, Lists::warp_;
  // How many strips a lane asks for, eight terms of each, before it waits.
  static constexpr int AT_ONCE = 128 / S::K_WARPS / S::ENTRY_TILES;

  // Where the lane's numbers of a part begin: for each tile of entries two of the upper 8 rows, then two of the lower.
  RNNCC_DEVICE char* part(int number) const { return parts_ + number * S::PART_BYTES + lane_ * 8; }
  // Leaves sums as a part, and begins others.
  RNNCC_DEVICE static void leave(char* to, float (&sums)[2][S::ENTRY_TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n)
        *reinterpret_cast<float2*>(to + (half * S::ENTRY_TILES + n) * 256) = make_float2(
            sums[0][n][2 * half] + sums[1][n][2 * half], sums[0][n][2 * half + 1] + sums[1][n][2 * half + 1]);
#pragma unroll
    for (auto& of_tiles : sums)
#pragma unroll
      for (auto& of_tile : of_tiles)
#pragma unroll
        for (float& sum : of_tile) sum = 0.0f;
  }

  // Where an entry of a strip lies. Every other strip has its entries in another order, so that what lanes write at
  // once goes to different banks.
  RNNCC_DEVICE char* entry_of(int place, int n, int entry) const {
    return operands_ + place * S::STRIP_BYTES + n * 256 + (entry ^ (place & 1) << 1) * 32;
  }

  // What four squares are multiplied by.
  struct Operands {
    uint2 b[4][S::ENTRY_TILES];
  };
  RNNCC_DEVICE uint2 operand(int place, int n) const {
    return *reinterpret_cast<const uint2*>(entry_of(place, n, lane_ / 4) + lane_ % 4 * 8);
  }
  // The operands of the warp's squares i to i + 3. Behind its last square they are zeros.
  template <int P>
  RNNCC_DEVICE Operands operands_of(int i) const {
    const uint2 places = *reinterpret_cast<const uint2*>(this->template places<P>() + i);
    Operands four;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int n = 0; n < S::ENTRY_TILES; ++n)
        four.b[k][n] = operand((k < 2 ? places.x : places.y) >> k % 2 * 16 & 0xfff, n);
    return four;
  }

  // Brings the first `count` of the strips that the CTA asks for into shared memory. A lane polls for eight terms of an
  // entry.
  template <int P, class Move>
  RNNCC_DEVICE bool receive(const char* from, const GridTerms<S>& places, int count, const Move& move) const {
    using Phase = typename S::template Phase<P>;
    constexpr int OWN = ceil_div(ceil_div(Phase::ROOM, 2), S::K_WARPS);
    const int q = lane_ % 4, octet = q % 2 * 8;
    const auto place = [&](int i) { return 2 * (warp_ + i * S::K_WARPS) + q / 2; };
    const uint16_t* const strips = this->template strips<P>();
    const auto term = [&](int i) { return strips[place(i)] * 16 + octet; };
    const auto is_wanted = [&](int i) {
      return i < OWN && place(i) < count &&
             (S::DEPTH == S::H || term(i) % S::DEPTH < S::H);  // nobody writes the others
    };
    bool in_vain = false;
#pragma unroll
    for (int begin = 0; begin < OWN; begin += AT_ONCE) {
      Message<E> h[AT_ONCE][S::ENTRY_TILES];
      const auto ask = [&](int b, int n) {
        h[b][n].ask(from + (places.terms[n] - S::place_of_octet(q * 8) + S::place_of_octet(term(begin + b))));
      };
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b)
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          if (is_wanted(begin + b))
            ask(b, n);
          else
            h[b][n] = {};
      if (begin == 0) move();
      const auto all_have_come = [&] {
        bool all = true;
#pragma unroll
        for (int b = 0; b < AT_ONCE; ++b)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n) all &= h[b][n].has_come();
        return __all_sync(~0u, all);
      };
      for (Spin spin; !all_have_come(); spin.poll()) {
        in_vain = true;
#pragma unroll
        for (int b = 0; b < AT_ONCE; ++b)
#pragma unroll
          for (int n = 0; n < S::ENTRY_TILES; ++n)
            if (!h[b][n].has_come()) ask(b, n);
      }
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b)
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n)
          if (begin + b < OWN && place(begin + b) < count)
            *reinterpret_cast<uint4*>(entry_of(place(begin + b), n, lane_ / 4) + octet * 2) = h[b][n].part[0];
    }
    return in_vain;
  }

  // Multiplies the squares of `count` strips from `first` on, which it reads from memory. The warps of a band share
  // them.
  template <int P>
  RNNCC_DEVICE void multiply_from_memory(int first, int count, float (&sums)[S::ENTRY_TILES][4]) const {
    using Phase = typename S::template Phase<P>;
    constexpr int WARPS = S::K_WARPS / at_least_one(Phase::BANDS);  // of a band
    const int band = warp_ / WARPS;
#pragma unroll 1
    for (int place = warp_ % WARPS; place < count && band < Phase::BANDS; place += WARPS)
      if (this->template exists<P>(band, first + place)) {
        const uint4 square = this->template square<P>(band, first + place);
#pragma unroll
        for (int n = 0; n < S::ENTRY_TILES; ++n) {
          const uint2 b = operand(place, n);
          mma<E>(sums[n], square, b.x, b.y);
        }
      }
    __syncthreads();  // before other strips come
  }
};

template <class S>
RNNCC_DEVICE void fused_blocks(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own) {
  run_grid<S, BlockProducts<S>>(call, own);
}

}  // namespace rnncc
