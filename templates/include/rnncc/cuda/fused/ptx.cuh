// Instructions that CUDA C++ has no name for, one wrapper per instruction. Nothing here knows what a cell is.
#pragma once

#include "../spin.cuh"

namespace rnncc {

RNNCC_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// d += a @ b, [16, 8] += [16, 16] @ [16, 8], accumulated in float.
template <class E>
RNNCC_DEVICE void mma(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  multiply_add<E>(d, a.x, a.y, a.z, a.w, b0, b1);
}

// Two floats as two 16-bit elements, `low` in the lower half. The result is never 0xffffffff, since a NaN becomes
// 0x7fff.
template <class E>
RNNCC_DEVICE uint32_t pack(float low, float high);
template <>
RNNCC_DEVICE uint32_t pack<bfloat16>(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
template <>
RNNCC_DEVICE uint32_t pack<float16>(float low, float high) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

// Transposes an 8x8 matrix of 16-bit elements, of which each lane has two.
RNNCC_DEVICE uint32_t transpose8x8(uint32_t v) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(d) : "r"(v));
  return d;
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
// 16 bytes into a peer's shared memory; the peer's barrier counts them when they have landed.
RNNCC_DEVICE void send16(uint32_t to, uint32_t barrier, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier)
               : "memory");
}

RNNCC_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
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
// try_wait sleeps for a time that the hardware chooses. Polls that are counted are test_waits, which do not sleep.
#ifdef RNNCC_SPIN_BUDGET
#define RNNCC_BARRIER_POLL "test_wait"
#else
#define RNNCC_BARRIER_POLL "try_wait"
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

// Copies 16 bytes from global to shared memory, asynchronously.
RNNCC_DEVICE void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
// The thread arrives at the barrier once all its copies so far have landed.
RNNCC_DEVICE void copy_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Loads 16 bytes of global memory as other CTAs see them: past the cache of this SM, in no order with other accesses.
RNNCC_DEVICE uint4 load16_relaxed(const void* p) {
  uint4 v;
  asm volatile(
      "{\n.reg .b128 x;\n.reg .b64 l,h;\nld.relaxed.gpu.global.b128 x,[%4];\nmov.b128 {l,h},x;\nmov.b64 {%0,%1},l;\n"
      "mov.b64 {%2,%3},h;\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p)
      : "memory");
  return v;
}
RNNCC_DEVICE void store4_relaxed(void* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
RNNCC_DEVICE void prefetch_l2(const void* p, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(p), "r"(bytes) : "memory");
}

RNNCC_DEVICE void send8(uint32_t to, uint32_t barrier, float a, float b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];" ::"r"(to), "f"(a),
               "f"(b), "r"(barrier)
               : "memory");
}
}  // namespace rnncc
