// What the CTAs of a cluster of a sparse kernel give each other, where they split the terms among them: what a CTA's
// slice of the terms adds to the sums of another one's rows.
#pragma once

#include "../device/step.cuh"

namespace rnncc {

// `begin`: the address of two barriers for each phase, and of two buffers for what comes. Two are enough: a CTA gives
// for time n + 2 only after its peers have given for time n + 1, and they do that after they have read what came for
// time n.
template <class S>
class Split {
 public:
  RNNCC_DEVICE Split(uint32_t begin) : begin_(begin) {}

  // `rank`: that of the CTA in its cluster. All threads call it.
  RNNCC_DEVICE void begin(int rank) {
    rank_ = rank;
    if constexpr (S::SPLIT > 1)
      for_numbers<S::PHASES>([&](auto phase) {
        constexpr int P = decltype(phase)::value;
        if constexpr (S::template Phase<P>::SUMS > 0) begin_barriers(begin_ + 16 * P, 2, bytes<P>());
      });
  }
  RNNCC_DEVICE int rank() const { return rank_; }

  // Sends the other CTAs of the cluster sum(rank, row, pair): what this one adds to a sum of theirs, of a pair of
  // entries. All threads call it. A peer is counted from the CTA on: peer p of CTA r has rank r + 1 + p, and CTA r is
  // its peer SPLIT - 2 - p.
  template <int P, class Sum>
  RNNCC_DEVICE void give(const Sum& sum) {
    constexpr int ROWS = S::template Phase<P>::OWN_ROWS, OF_PEER = ROWS * S::LANE_ENTRIES / 2;
    const uint32_t time = times_[P]++;
    // The barrier of the time before has done its work, and waits for the time after this one.
    if (threadIdx.x == 0 && time > 0) {
      barrier_wait(barrier<P>(time - 1), parity(time - 1));
      barrier_expect(barrier<P>(time - 1), bytes<P>());
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (S::SPLIT - 1) * OF_PEER; i += S::THREADS) {
      const int peer = i / OF_PEER, pair = i % OF_PEER / ROWS, row = i % ROWS, rank = (rank_ + 1 + peer) % S::SPLIT;
      const float2 given = sum(rank, row, pair);
      send8(peer_address(place<P>(time, S::SPLIT - 2 - peer, pair, row), rank), peer_address(barrier<P>(time), rank),
            given.x, given.y);
    }
  }
  // Waits for what the others have sent.
  template <int P>
  RNNCC_DEVICE void wait() const {
    barrier_wait(barrier<P>(times_[P] - 1), parity(times_[P] - 1));
  }
  // What a peer has sent for a row and a pair of entries.
  template <int P>
  RNNCC_DEVICE float2 taken(int peer, int row, int pair) const {
    return shared_at<const float2>(place<P>(times_[P] - 1, peer, pair, row));
  }

 private:
  template <int P>
  RNNCC_DEVICE static constexpr uint32_t bytes() {
    return (S::SPLIT - 1) * S::template Phase<P>::OWN_ROWS * S::LANE_ENTRIES * 4;
  }
  RNNCC_DEVICE static uint32_t parity(uint32_t time) { return time / 2 % 2; }
  template <int P>
  RNNCC_DEVICE uint32_t barrier(uint32_t time) const {
    return begin_ + (2 * P + time % 2) * 8;
  }
  template <int P>
  RNNCC_DEVICE uint32_t place(uint32_t time, int peer, int pair, int row) const {
    using Phase = typename S::template Phase<P>;
    const uint32_t buffer = Phase::GIVEN_BEGIN + (time % 2 * (S::SPLIT - 1) + peer) * Phase::GIVEN_BYTES;
    return begin_ + S::BARRIER_BYTES + buffer + (pair * Phase::GIVEN + row) * 8;
  }

  const uint32_t begin_;
  int rank_ = 0;
  uint32_t times_[S::PHASES] = {};  // how many times the CTA has given something
};

}  // namespace rnncc
