// Waits that a mistake could make endless. Compiled with -DRNNCC_SPIN_BUDGET=N a wait of more than N polls is a trap, which
// the next CUDA call reports, and not a hang; without it there is nothing to count.
#pragma once

#include "scalar.cuh"

namespace rnncc {

// Of one wait: called at each of its polls.
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
