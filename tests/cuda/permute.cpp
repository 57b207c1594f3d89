// A C function over rnncc/cuda/permute.cuh for tests, on the CPU: lanes of a warp take turns, from one exchange of numbers to the
// next.
#include <ucontext.h>

#include "rnncc/cuda/permute_op.h"

#define __device__
#define __forceinline__ inline

namespace {

struct Index {
  unsigned x;
} threadIdx, blockIdx;
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

// Of a lane: its stack, where it goes on, how many numbers it has exchanged.
struct Lane {
  ucontext_t context;
  char stack[1 << 16];
  int turns;
  bool done;
};
Lane lanes[32];
ucontext_t all;
int64_t numbers[2][32];  // a lane is at most one exchange ahead of another

// What every lane of the warp gives.
const int64_t* exchange(int64_t number) {
  const int lane = threadIdx.x % 32, turn = lanes[lane].turns++ % 2;
  numbers[turn][lane] = number;
  swapcontext(&lanes[lane].context, &all);
  return numbers[turn];
}

unsigned __ballot_sync(unsigned, bool given) {
  const int64_t* const found = exchange(given);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(found[lane] != 0) << lane;
  return bits;
}
int64_t __shfl_sync(unsigned, int64_t number, int lane) { return exchange(number)[lane]; }
int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace

#include "rnncc/cuda/permute.cuh"

static rnncc::PermuteCall call;

static void run_lane() {
  rnncc::permute_rows(call);
  lanes[threadIdx.x % 32].done = true;
}

static void run_warp(int64_t block, int warp) {
  for (Lane& lane : lanes) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack;
    lane.context.uc_stack.ss_size = sizeof lane.stack;
    lane.context.uc_link = &all;
    lane.turns = 0;
    lane.done = false;
    makecontext(&lane.context, run_lane, 0);
  }
  blockIdx.x = unsigned(block);
  for (bool left = true; left;) {
    left = false;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i].done) continue;
      threadIdx.x = unsigned(warp * 32 + i);
      swapcontext(&all, &lanes[i].context);
      left = true;
    }
  }
}

// Rows of row_bytes bytes. Returns how many bytes a load takes.
extern "C" int permute(const char* from, int64_t from_row, char* to, int64_t row_bytes, const int64_t* firsts,
                       const int64_t* starts, int64_t steps, int64_t columns, int64_t rows, bool to_steps) {
  call = {from, to, firsts, starts, steps, columns, rows, from_row, row_bytes, 0, 0, 0, 0, to_steps};
  const int64_t blocks = rnncc::share_rows(call);
  for (int64_t block = 0; block < blocks; ++block)
    for (int warp = 0; warp < rnncc::PERMUTE_WARPS; ++warp) run_warp(block, warp);
  return call.piece_bytes;
}
