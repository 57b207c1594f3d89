// The order of the words of a sparse kernel's lists: lanes that load operands at once should find them in different
// banks.
#pragma once

#include "../device/step.cuh"

namespace rnncc {

// A *bank* here is as wide as one operand. BANKS lanes form a *group* and load together; without conflicts each takes
// another bank. A *slot* is one place in every list. Lists and banks form a bipartite graph with an edge for each word,
// padding included. Where each list and each bank has as many words as there are slots, the graph is regular, and by
// Koenig's theorem it splits into perfect matchings. Each slot gets one of them.
//
// Padding makes banks level as far as it goes, since there is padding of every bank. Where a bank still has more words
// than slots are left, a slot takes two words of it, and none of a bank that has too few. That slot takes two accesses,
// and later ones can be free of conflicts. Where a term takes two loads (float32, 8 entries), two groups load together,
// each another half.
//
// Bank b of a group is known to the group's lane b. In masks of the warp each group has as many bits as it has lanes.
template <int BANKS>
class WordOrder {
 public:
  RNNCC_DEVICE WordOrder()
      : lane_(threadIdx.x % 32), first_(lane_ / BANKS * BANKS), group_(((1u << BANKS) - 1) << first_) {}

  // Counts a word of the lane's list.
  RNNCC_DEVICE void add(uint32_t bank) { left_.add(bank); }
  // Ends the counting. All lanes call it, and the functions below. `slots`: the same for all.
  RNNCC_DEVICE void begin(uint32_t slots) {
    slots_ = slots;
    for (uint32_t bank = 0; bank < BANKS; ++bank) {
      uint32_t sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += __popc(__ballot_sync(~0u, left_.digits[i] >> bank & 1) & group_) << i;
      if (first_ + int(bank) == lane_) sum_ = sum;
    }
  }
  // Returns the bank of one more word of the lane's list that is padding, if it wants one. Each list is padded until it has a
  // word for each slot.
  RNNCC_DEVICE uint32_t pad(bool wanted) {
    for (uint32_t bank = BANKS;;) {
      // The first lanes that want a bank get the first ones that have too few words.
      const uint32_t want = __ballot_sync(~0u, wanted) & group_, few = __ballot_sync(~0u, sum_ < slots_) & group_;
      if (__all_sync(~0u, !wanted)) return bank;
      const uint32_t before = (1u << lane_) - 1;
      if (wanted && __popc(want & before) < __popc(few)) {
        uint32_t from = few;
        for (int i = __popc(want & before); i > 0; --i) from &= from - 1;
        bank = __ffs(from) - 1 - first_;
        left_.add(bank);
        wanted = false;
      }
      if ((few >> lane_ & 1) != 0 && __popc(few & before) < __popc(want)) ++sum_;
    }
  }
  // Returns the bank of the lane's next word.
  RNNCC_DEVICE uint32_t next() {
    const uint32_t in_banks = left_.any() << first_;
    uint32_t many = __ballot_sync(~0u, sum_ > slots_) & group_, few = __ballot_sync(~0u, sum_ < slots_) & group_;
    // A bank that has too few words stands for one that has too many. `takes`: how many words this slot takes of the
    // lane's bank: 1, or 2 of a crowded one, or 0 of its stand-in.
    uint32_t allowed = in_banks;
    int stands_for = lane_, takes = 1;
    for (; many != 0 && few != 0; many &= many - 1, few &= few - 1) {
      const int crowded = __ffs(many) - 1, sparse = __ffs(few) - 1;
      allowed = (allowed & ~(1u << sparse)) | (in_banks >> crowded & 1) << sparse;
      if (sparse == lane_) stands_for = crowded, takes = 0;
      if (crowded == lane_) takes = 2;
    }
    const uint32_t own = match(allowed);
    const int bank = __shfl_sync(~0u, stands_for, own != 0 ? __ffs(own) - 1 : lane_);
    // Where lists differ very much, some lane may have no bank for itself.
    const uint32_t taken = (own != 0 ? bank : __ffs(in_banks) - 1) - first_;
    left_.take(taken);
    sum_ -= ::min(sum_, uint32_t(takes));
    --slots_;
    return taken;
  }

 private:
  // Gives lanes banks of their own, of those that are `open` to them: as many lanes of each group as can be. Banks are
  // bits, and no bit means none.
  RNNCC_DEVICE uint32_t match(uint32_t open) const {
    // Lanes propose a free bank. Where several propose the same one, the first lane gets it, and the others propose
    // again. Neighbours prefer different banks.
    const uint32_t preferred = first_ + (lane_ + slots_) % BANKS;
    uint32_t own = 0, taken = 0;
    for (;;) {
      const uint32_t free = own == 0 ? open & ~taken : 0, later = free >> preferred << preferred,
                     all = later != 0 ? later : free;
      if (__all_sync(~0u, free == 0)) break;
      const uint32_t best = all & (0u - all), alike = __match_any_sync(~0u, best);
      if (best != 0 && __ffs(alike) - 1 == lane_) own = best;
      taken = __reduce_or_sync(~0u, own);
    }
    while (!__all_sync(~0u, own != 0) && give_one_more(open, own, taken)) taken = __reduce_or_sync(~0u, own);
    return own;
  }
  // Gives a bank to one more lane of each group, where that can be: others take other banks for it, on a shortest path
  // of banks from a lane that has none to a bank that is free.
  RNNCC_DEVICE bool give_one_more(uint32_t open, uint32_t& own, uint32_t taken) const {
    // Lanes of a depth may get the banks that they reach. Who has one of these is a step deeper.
    constexpr int NEVER = 64;
    int depth_of_lane = own == 0 ? 0 : NEVER, last = 0;
    uint32_t reached = 0, end = 0;
    for (int depth = 0;; ++depth) {
      const uint32_t grown = __reduce_or_sync(~0u, depth_of_lane == depth ? open : 0) & ~reached & group_,
                     free = grown & ~taken;
      if (end == 0 && free != 0) end = free & (0u - free), last = depth;
      reached |= grown;
      if (__all_sync(~0u, end != 0 || grown == 0)) break;
      if (depth_of_lane == NEVER && (own & reached) != 0) depth_of_lane = depth + 1;
    }
    const bool grows = !__all_sync(~0u, end == 0);
    // Back from the free bank: a lane takes it, and gives its own to one that comes before.
    for (int depth = __reduce_max_sync(~0u, last); grows && depth >= 0; --depth) {
      const bool can = depth <= last && depth_of_lane == depth && (open & end) != 0;
      const uint32_t who = __ballot_sync(~0u, can) & group_;
      const int first = who != 0 ? __ffs(who) - 1 : lane_;
      const uint32_t given = __shfl_sync(~0u, own, first);
      if (who == 0) continue;
      if (first == lane_) own = end;
      end = given;
    }
    return grows;
  }

  // How many words of a list there are in each bank, at most 255. digits[i] has bit i of all counts: a bit per bank.
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
    // The banks in which there are any.
    RNNCC_DEVICE uint32_t any() const {
      uint32_t all = 0;
#pragma unroll
      for (const uint32_t digit : digits) all |= digit;
      return all;
    }
  };

  const int lane_, first_;  // the group's first lane, and its first bank
  const uint32_t group_;
  BankCounts left_ = {};  // the words of the lane's list that have no slot yet
  // The words of all lists of the group that are in the lane's bank; about as many, where some lane had no bank for itself.
  uint32_t sum_ = 0;
  uint32_t slots_ = 0;  // that are left
};

}  // namespace rnncc
