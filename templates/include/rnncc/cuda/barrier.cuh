// A barrier of all CTAs of a direction, a row of the grid, which are resident at once (the launch is cooperative).
#pragma once

#include "spin.cuh"

namespace rnncc {

// In two halves: after `arrive` a thread may do what others do not wait for. `arrived` counts this CTA's barriers times the
// CTAs, modulo 2^32. Everything written before by any thread of any CTA is seen after by every thread.
RNNCC_DEVICE void arrive(uint32_t* counter, uint32_t& arrived) {
  __syncthreads();
  arrived += gridDim.x;
  if (threadIdx.x == 0 && gridDim.x > 1) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  }
}

RNNCC_DEVICE void wait(uint32_t* counter, uint32_t arrived) {
  if (threadIdx.x == 0 && gridDim.x > 1) {
    uint32_t seen;
    Spin spin;
    do {
      spin.poll();
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (int32_t(seen - arrived) < 0);
  }
  __syncthreads();
}

RNNCC_DEVICE void grid_barrier(uint32_t* counter, uint32_t& arrived) {
  arrive(counter, arrived);
  wait(counter, arrived);
}

}  // namespace rnncc
