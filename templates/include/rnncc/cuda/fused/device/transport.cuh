// How values reach other CTAs of a cluster, and how threads wait for what is on its way. All instructions that began
// with compute capability 9.0 are here, but for the products of wgmma.cuh. Kernels of one CTA and of a grid use only
// `cluster_ctas` and `barrier_wait`, which have another form for older GPUs.
#pragma once

#include "ptx.cuh"

namespace rnncc {

// Whether the GPU has the instructions of compute capability 9.0. Without them a CTA is a cluster by itself.
#if __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
#else
constexpr bool HAS_CLUSTERS = false;
#endif

// The number of CTAs in the cluster.
RNNCC_DEVICE uint32_t cluster_ctas() {
  uint32_t n = 1;
  if constexpr (HAS_CLUSTERS) asm("mov.u32 %0, %cluster_nctaid.x;" : "=r"(n));
  return n;
}
// The address of the same place in the shared memory of CTA `rank` of the cluster.
RNNCC_DEVICE uint32_t peer_address(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
// It costs a fence of the whole GPU, so it is used only before the first step and after the last one, or where slices
// take turns.
RNNCC_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// send16, send8 and send4 send so many bytes into a peer's shared memory. The peer's barrier counts them when they have
// landed.
RNNCC_DEVICE void send16(uint32_t to, uint32_t barrier, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier)
               : "memory");
}
RNNCC_DEVICE void send8(uint32_t to, uint32_t barrier, float a, float b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];" ::"r"(to), "f"(a),
               "f"(b), "r"(barrier)
               : "memory");
}
RNNCC_DEVICE void send4(uint32_t to, uint32_t barrier, float value) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0],%1,[%2];" ::"r"(to), "f"(value),
               "r"(barrier)
               : "memory");
}
// The same where no barrier counts.
RNNCC_DEVICE void store4(uint32_t to, float value) {
  asm volatile("st.shared::cluster.f32 [%0],%1;" ::"r"(to), "f"(value) : "memory");
}

RNNCC_DEVICE void barrier_init_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
RNNCC_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Begins `count` barriers side by side in the CTA's shared memory, each for `bytes` that CTAs of the cluster send. All
// threads of the cluster call it before anything is sent.
RNNCC_DEVICE void begin_barriers(uint32_t first, int count, uint32_t bytes) {
  if (threadIdx.x == 0)
    for (int i = 0; i < count; ++i) barrier_init(first + 8 * i, 1);
  barrier_init_visible();
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < count; ++i) barrier_expect(first + 8 * i, bytes);
  cluster_barrier();
}

// try_wait sleeps for a time that the hardware chooses. Older GPUs have test_wait alone, which does not sleep. Polls
// that are counted are test_waits too.
#if __CUDA_ARCH__ >= 900 && !defined(RNNCC_SPIN_BUDGET)
#define RNNCC_BARRIER_POLL "try_wait"
#else
#define RNNCC_BARRIER_POLL "test_wait"
#endif
RNNCC_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  for (Spin spin; !done; spin.poll())
    asm volatile("{\n.reg .pred p;\nmbarrier." RNNCC_BARRIER_POLL
                 ".parity.shared::cta.b64 p,[%1],%2;\nselp.u32 %0,1,0,p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
}

}  // namespace rnncc
