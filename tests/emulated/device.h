// A GPU on one thread of the CPU: enough of CUDA C++ to run the fused kernels in tests, slowly. Each thread of a launch
// is a fiber. Fibers change only where a thread waits for others. The scheduler draws the next one at random, and what
// CTAs send each other arrives late and in any order, so that a missing wait shows. It models no caches: a missing
// fence does not show.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __builtin_assume(...)

struct uint3 {
  unsigned x, y, z;
};
struct float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
// A fiber is not interrupted.
inline uint32_t atomicOr(uint32_t* at, uint32_t bits) {
  const uint32_t before = *at;
  *at |= bits;
  return before;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

namespace emulated {

// An mbarrier: a phase ends when `pending` arrivals and `bytes` are both down to zero.
struct Barrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;

  void settle() {
    if (pending == 0 && bytes == 0) {
      phase ^= 1;
      pending = arrivals;
    }
  }
};

struct Fiber;
// Threads that wait for each other until all have arrived.
struct Meeting {
  std::vector<Fiber*> waiting;
};

struct Cta {
  uint3 index;
  int rank;  // in its cluster
  std::vector<Cta*> cluster;
  std::vector<char> shared;
  std::map<uint32_t, Barrier> barriers;
  Meeting meeting;
  Meeting* cluster_meeting;
  int threads;
};

struct Warp {
  Meeting meeting;
  uint64_t words[2][32][8];  // what lanes exchange, in turns
};

// 16 bytes on their way to shared memory.
struct Landing {
  char* to;
  char bytes[16];

  void land() const { memcpy(to, bytes, 16); }
};

struct Fiber {
  Cta* cta;
  Warp* warp;
  uint3 index;
  uint64_t exchanges = 0;
  std::deque<std::vector<Landing>> groups = std::deque<std::vector<Landing>>(1);  // the last one is not ended yet
  bool done = false;
  bool meets = false;  // it waits for others of a meeting, the last of which wakes it
  bool (*ready)(void*) = nullptr;
  void* waits_for = nullptr;
  std::unique_ptr<char[]> stack;
  ucontext_t context;
  jmp_buf place;
  bool started = false;
};

// What is on its way to another CTA: bytes for an address, and the barrier that counts them, if one does.
struct Delivery {
  char* to;
  char bytes[16];
  int size;
  Barrier* counts;
  const Fiber* sender;

  void arrive() const {
    memcpy(to, bytes, size);
    if (!counts) return;
    counts->bytes -= size;
    counts->settle();
  }
};

struct Device {
  Fiber* current = nullptr;
  const char* problem = nullptr;
  jmp_buf scheduler;
  void (*kernel)(const void*) = nullptr;
  const void* parameter = nullptr;
  uint64_t cycles = 0;
  std::vector<Delivery> deliveries;
  std::vector<Fiber*> runnable;
};
inline Device device;

inline void send(char* to, const void* from, int size, Barrier* counts = nullptr) {
  Delivery delivery = {to, {}, size, counts, device.current};
  memcpy(delivery.bytes, from, size);
  device.deliveries.push_back(delivery);
}

// What the thread has sent arrives now. No later store of it is seen before.
inline void fence() {
  std::vector<Delivery> left;
  for (const Delivery& delivery : device.deliveries)
    if (delivery.sender == device.current)
      delivery.arrive();
    else
      left.push_back(delivery);
  device.deliveries = std::move(left);
}

inline void leave() {
  if (!_setjmp(device.current->place)) _longjmp(device.scheduler, 1);
}

// Ends the launch. An exception could not leave a fiber.
[[noreturn]] inline void fail(const char* problem) {
  device.problem = problem;
  _longjmp(device.scheduler, 1);
}

// Lets others run until a condition holds.
template <class F>
void wait_until(F condition) {
  if (condition()) return;
  Fiber& fiber = *device.current;
  fiber.ready = [](void* given) { return (*static_cast<F*>(given))(); };
  fiber.waits_for = &condition;
  leave();
}

// For a while.
inline void let_others_run() {
  bool was_asked = false;
  wait_until([&] { return std::exchange(was_asked, true); });
}

inline void meet(Meeting& meeting, int members) {
  if (int(meeting.waiting.size()) + 1 < members) {
    meeting.waiting.push_back(device.current);
    device.current->meets = true;
    return leave();
  }
  for (Fiber* fiber : meeting.waiting) {
    fiber->meets = false;
    device.runnable.push_back(fiber);
  }
  meeting.waiting.clear();
}

inline void run_fiber() {
  device.kernel(device.parameter);
  device.current->done = true;
  _longjmp(device.scheduler, 1);
}

inline void resume(Fiber& fiber) {
  device.current = &fiber;
  if (_setjmp(device.scheduler)) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

// Every lane's value of up to 64 bytes, seen by all lanes of the warp.
template <class V>
const V& exchange(const V& own, int lane) {
  static_assert(sizeof(V) <= 64);
  Fiber& fiber = *device.current;
  auto& words = fiber.warp->words[fiber.exchanges++ % 2];
  memcpy(words[fiber.index.x % 32], &own, sizeof(V));
  meet(fiber.warp->meeting, 32);
  return *reinterpret_cast<const V*>(words[lane % 32]);
}
// After `exchange`: the value of another lane. It is valid until the warp's second exchange from now.
template <class V>
const V& of_lane(int lane) {
  Fiber& fiber = *device.current;
  return *reinterpret_cast<const V*>(fiber.warp->words[(fiber.exchanges - 1) % 2][lane]);
}

// Shared memory has addresses of 32 bits, as PTX has them: the CTA's rank in its cluster above 24 bits of offset.
constexpr uint32_t WINDOW = 1u << 24;
inline uint32_t address_of(const void* p) {
  Cta& cta = *device.current->cta;
  const int64_t offset = static_cast<const char*>(p) - cta.shared.data();
  if (offset < 0 || offset > int64_t(cta.shared.size())) fail("no address of shared memory");
  return uint32_t(offset) + (cta.rank + 1) * WINDOW;
}
inline Cta& cta_of(uint32_t address) { return *device.current->cta->cluster.at(address / WINDOW - 1); }
inline char* at(uint32_t address, size_t bytes) {
  Cta& cta = cta_of(address);
  const size_t offset = address % WINDOW;
  if (offset + bytes > cta.shared.size()) fail("beyond the shared memory");
  return cta.shared.data() + offset;
}
inline Barrier& barrier_at(uint32_t address) { return cta_of(address).barriers[address % WINDOW]; }
inline char* shared_memory() { return device.current->cta->shared.data(); }

}  // namespace emulated

#include "launch.h"

#define threadIdx (emulated::device.current->index)
#define blockIdx (emulated::device.current->cta->index)
#define clock emulated_clock
inline uint32_t emulated_clock() { return uint32_t(emulated::device.cycles += 16); }

inline void __syncthreads() {
  emulated::meet(emulated::device.current->cta->meeting, emulated::device.current->cta->threads);
}
inline void __syncwarp() { emulated::meet(emulated::device.current->warp->meeting, 32); }
template <class V>
V __shfl_sync(unsigned, V value, int lane) {
  return emulated::exchange(value, lane);
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int mask) {
  return emulated::exchange(value, int(threadIdx.x % 32) ^ mask);
}
template <class V>
V __shfl_up_sync(unsigned, V value, int distance) {
  const int lane = threadIdx.x % 32;
  return emulated::exchange(value, lane < distance ? lane : lane - distance);
}
inline bool __all_sync(unsigned, bool value) {
  emulated::exchange(value, 0);
  bool all = true;
  for (int lane = 0; lane < 32; ++lane) all &= emulated::of_lane<bool>(lane);
  return all;
}
inline uint32_t __ballot_sync(unsigned, bool value) {
  emulated::exchange(value, 0);
  uint32_t true_of = 0;
  for (int lane = 0; lane < 32; ++lane) true_of |= uint32_t(emulated::of_lane<bool>(lane)) << lane;
  return true_of;
}
inline uint32_t __match_any_sync(unsigned, uint32_t value) {
  emulated::exchange(value, 0);
  uint32_t same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= uint32_t(emulated::of_lane<uint32_t>(lane) == value) << lane;
  return same;
}
inline int __reduce_max_sync(unsigned, int value) {
  emulated::exchange(value, 0);
  int most = value;
  for (int lane = 0; lane < 32; ++lane) most = std::max(most, emulated::of_lane<int>(lane));
  return most;
}
inline uint32_t __reduce_or_sync(unsigned, uint32_t value) {
  emulated::exchange(value, 0);
  uint32_t all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= emulated::of_lane<uint32_t>(lane);
  return all;
}
template <class V>
V __ldg(const V* p) {
  return *p;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline float __int_as_float(int bits) { return __uint_as_float(uint32_t(bits)); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frsqrt_rn(float x) { return float(1 / ::sqrt(double(x))); }
