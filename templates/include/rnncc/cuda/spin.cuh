// Waits that a mistake could make endless. With -DRNNCC_SPIN_BUDGET=N a wait of more than N polls traps, which the next
// CUDA call reports. Without it the wait would hang, and nothing is counted.
#pragma once

#include "scalar.cuh"

namespace rnncc {

// Counts the polls of one wait, which calls `poll` at each of them.
struct Spin {
#ifdef RNNCC_SPIN_BUDGET
  int64_t polls = 0;
  RNNCC_DEVICE void poll() {
    if (++polls > RNNCC_SPIN_BUDGET) asm volatile("trap;");
  }
#else
  RNNCC_DEVICE void poll() {}
#endif
};

}  // namespace rnncc
