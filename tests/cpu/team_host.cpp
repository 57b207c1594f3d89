// The team behind C functions. With FAKE_POOL the scheduler is a stand-in whose behaviour the test chooses.
#include "rnncc/cpu/team.h"

using namespace rnncc;

#ifdef FAKE_POOL
static int64_t chunk = 1;
extern "C" {
// Runs the ranges one after the other on one thread, `chunk` long: no two of them ever run at once.
int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t, void (*func)(int64_t, int64_t, void*), void* ctx) {
  for (int64_t i = begin; i < end; i += chunk) func(i, i + chunk < end ? i + chunk : end, ctx);
  return 0;
}
int32_t torch_get_num_threads(uint32_t* n) {
  *n = 4;
  return 0;
}
void set_chunk(int64_t n) { chunk = n; }
}
#endif

extern "C" {

// Every member adds `index + 1` to its own slot of `slots` (at least `wanted`), then after a barrier checks all slots, `steps`
// times. Returns the number of members, or -1 if a member read a slot that was not up to date.
int64_t team_rounds(int64_t wanted, int64_t steps, int64_t* slots) {
  int64_t members = 0, stale = 0;
  team_run(wanted, [&](Team& team, int32_t index, int32_t count) {
    if (index == 0) members = count;
    int64_t wrong = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      slots[index] += index + 1;
      team.barrier();
      for (int32_t other = 0; other < count; ++other) wrong += slots[other] != step * (other + 1);
      team.barrier();
    }
    __atomic_add_fetch(&stale, wrong, __ATOMIC_RELAXED);
  });
  return stale == 0 ? members : -1;
}

// The same from inside a parallel region: the most members that any inner team had, -1 if one read a stale slot.
int64_t nested_rounds(int64_t outer, int64_t wanted, int64_t steps, int64_t* slots) {
  int64_t most = 0;
  const int32_t error = parallel_ranges(outer, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t members = team_rounds(wanted, steps, slots + i * wanted);
      if (members < 0) __atomic_store_n(&most, -1, __ATOMIC_RELAXED);
      if (members > __atomic_load_n(&most, __ATOMIC_RELAXED) && most >= 0)
        __atomic_store_n(&most, members, __ATOMIC_RELAXED);
    }
  });
  return error == 0 ? most : -2;
}

// counts[i] += 1 for i in [0, n), in ranges of at least `grain`.
int32_t count_ranges(int64_t n, int64_t grain, int32_t* counts) {
  return parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) counts[i] += 1;
  });
}

int64_t threads() { return thread_count(); }

void share_of(int64_t n, int64_t unit, int64_t index, int64_t count, int64_t* out) {
  const Range r = share(n, unit, index, count);
  out[0] = r.begin;
  out[1] = r.end;
}
}
