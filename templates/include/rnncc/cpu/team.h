// Threads: torch's own parallel_for, and a team that stays together over a whole time loop.
//
// A torch op may only use torch's threads. torch_parallel_for is part of torch's stable C interface
// (torch/csrc/stable/c/shim.h). It is declared here so that no torch header is needed.
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "vec.h"

extern "C" {
int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size, void (*func)(int64_t, int64_t, void*),
                           void* ctx);
int32_t torch_get_num_threads(uint32_t* out_num_threads);
int sched_yield(void) noexcept;
long syscall(long number, ...) noexcept;
}

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// How many threads torch would use now; 1 if torch cannot say.
RNNCC_INLINE int64_t thread_count() {
  uint32_t n = 1;
  return torch_get_num_threads(&n) == 0 && n > 0 ? int64_t(n) : 1;
}

// Calls f(begin, end) on disjoint ranges that cover [0, n). Each but the last is at least `grain` long. Returns 0 if
// all ran, else torch's error code. f must not throw.
template <class F>
RNNCC_INLINE int32_t parallel_ranges(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return 0;
  return torch_parallel_for(
      0, n, grain > 0 ? grain : 1,
      [](int64_t begin, int64_t end, void* ctx) { (*static_cast<const F*>(ctx))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Where threads wait for each other.
class Barrier {
 public:
  // Waits until `count` threads have called it. What each of them wrote before is then visible to all. It takes 0.2 us
  // for two threads of one socket, and 1.3 us for sixteen.
  void wait(int64_t count) {
    if (count == 1) return;
    const uint32_t now = __atomic_load_n(&generation_, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&waiting_, 1, __ATOMIC_ACQ_REL) == count) {
      __atomic_store_n(&waiting_, 0, __ATOMIC_RELAXED);
      change(&generation_, now + 1);
      return;
    }
    wait_while(&generation_, now);
  }

  // Waits until *word is no longer `value`. It spins, because the others are about to come. Where they are not, they wait
  // for a core, and this one is given away: there are more threads than cores, or other programs. Then later waits spin
  // less before they sleep.
  void wait_while(const uint32_t* word, uint32_t value) {
    const int32_t spins = __atomic_load_n(&spins_, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < spins; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
        const int32_t more = 2 * spins < most_spins ? 2 * spins : most_spins;
        if (spins < more) __atomic_store_n(&spins_, more, __ATOMIC_RELAXED);
        return;
      }
      __builtin_ia32_pause();
    }
    __atomic_store_n(&spins_, spins / 2 > least_spins ? spins / 2 : least_spins, __ATOMIC_RELAXED);
    __atomic_add_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
      syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
    }
    __atomic_sub_fetch(&sleepers_, 1, __ATOMIC_RELAXED);
  }

  // Sets a word that threads wait for. One that counts itself after this has looked sees the new value, and does not
  // sleep.
  void change(uint32_t* word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST) > 0) {
      syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
  }

  static constexpr int32_t most_spins = 2000;

 private:
  static constexpr int32_t least_spins = 100;

  alignas(64) uint32_t generation_ = 0;
  alignas(64) int32_t waiting_ = 0;
  alignas(64) int32_t spins_ = most_spins;
  int32_t sleepers_ = 0;
};

// The threads of one team_run. `barrier()` must be called by every member equally often.
class Team {
 public:
  void barrier() { barrier_.wait(count_); }

  // The call whose range starts at 0 runs on the thread that entered the region, and leads. It counts who has arrived,
  // and closes the list. A member that comes later returns without work. So nobody waits for a thread that is not
  // running: a nested region (one call for everything), a thread limit (longer ranges) or a busy pool only make the
  // team smaller.
  int32_t enrol_leader(int64_t wanted, int64_t chunk) {
    const uint32_t expected = uint32_t((wanted + chunk - 1) / chunk);
    // It spins, then lets others run, and then goes without those that have not come: their cores are busy.
    constexpr int32_t most = Barrier::most_spins;
    for (int32_t i = 0; i < 2 * most && __atomic_load_n(&enrolled_, __ATOMIC_ACQUIRE) + 1 < expected; ++i) {
      if (i < most) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
    count_ = int32_t(__atomic_fetch_or(&enrolled_, closed, __ATOMIC_ACQ_REL)) + 1;
    barrier_.change(&started_, 1);
    return 0;
  }

  // Returns the member's index, or -1 if the team left without it.
  int32_t enrol_member() {
    const uint32_t ticket = __atomic_fetch_add(&enrolled_, 1, __ATOMIC_ACQ_REL);
    if (ticket & closed) return -1;
    barrier_.wait_while(&started_, 0);
    return int32_t(ticket) + 1;
  }

  int32_t count() const { return count_; }

 private:
  static constexpr uint32_t closed = uint32_t(1) << 30;

  Barrier barrier_;
  alignas(64) uint32_t enrolled_ = 0;
  uint32_t started_ = 0;
  int32_t count_ = 1;
};

// Runs f(team, index, count) on up to `wanted` of torch's threads, with index in [0, count). All of them run at the
// same time, so that f may call team.barrier(). `count` may be smaller than wanted (1 in a nested region), and is known
// only inside f. f must not throw. Returns 0 if all ran, else torch's error code. Index 0 is the calling thread.
template <class F>
RNNCC_INLINE int32_t team_run(int64_t wanted, const F& f) {
  struct Context {
    const F& f;
    int64_t wanted;
    Team team;
  } context{f, wanted, {}};
  if (wanted <= 1) {
    f(context.team, int32_t(0), int32_t(1));
    return 0;
  }
  return torch_parallel_for(
      0, wanted, 1,
      [](int64_t begin, int64_t end, void* ctx) {
        Context& self = *static_cast<Context*>(ctx);
        const int32_t index = begin == 0 ? self.team.enrol_leader(self.wanted, end) : self.team.enrol_member();
        if (index >= 0) self.f(self.team, index, self.team.count());
      },
      &context);
}

// The range [begin, end), which may be empty.
struct Range {
  int64_t begin, end;
};

// Part `index` of [0, n), where that is divided among `count` in pieces of `piece`.
RNNCC_INLINE Range share(int64_t n, int64_t piece, int64_t index, int64_t count) {
  const int64_t pieces = (n + piece - 1) / piece;
  const int64_t begin = pieces * index / count * piece, end = pieces * (index + 1) / count * piece;
  return {begin < n ? begin : n, end < n ? end : n};
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
