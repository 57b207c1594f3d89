// A barrier of all CTAs of a direction, which is a row of the grid. All of them run at once, since the launch is
// cooperative.
#pragma once

#include "spin.cuh"

namespace rnncc {

// A barrier has two halves, `arrive` and `wait`. Between them a thread may do what no other waits for. After both every
// thread sees what any thread of any CTA wrote before it arrived. `arrived` is the counter's value once all CTAs have
// arrived: the number of barriers so far times the number of CTAs, modulo 2^32.
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
