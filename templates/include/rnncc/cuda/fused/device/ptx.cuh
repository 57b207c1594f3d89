// Instructions that CUDA C++ has no name for, one wrapper per instruction. Nothing here knows what a cell is. Each GPU
// from compute capability 8.0 on has these; transport.cuh and wgmma.cuh have the later ones.
#pragma once

#include "../../spin.cuh"

namespace rnncc {

// Addresses in shared memory have 32 bits. NVRTC's pointers to it have 64, unlike nvcc's, and a loop that computes with
// such pointers takes more instructions.
RNNCC_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// What lies at an address.
template <class T>
RNNCC_DEVICE T& shared_at(uint32_t address) {
  return *static_cast<T*>(__cvta_shared_to_generic(address));
}

// Returns v. The compiler does not know that. So what is computed from it is computed at each use, and holds no register in
// between.
RNNCC_DEVICE int made_again(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
RNNCC_DEVICE const char* made_again(const char* p) {
  asm volatile("" : "+l"(p));
  return p;
}

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

// Loads four 8x8 matrices of 16-bit elements, transposed: lanes 8 i to 8 i + 7 name the rows of matrix i in shared memory.
// Lane l gets elements 2 (l % 4) and the next of column l / 4 of each.
RNNCC_DEVICE uint4 load_transposed(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

RNNCC_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Copies 16 bytes from global to shared memory, asynchronously.
RNNCC_DEVICE void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
// The same, or zeros where it is not wanted: nothing is read then.
RNNCC_DEVICE void copy16_or_zeros(uint32_t to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
// Makes a group of the thread's copies since the last call.
RNNCC_DEVICE void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all of the thread's groups but the last N have landed.
template <int N>
RNNCC_DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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
RNNCC_DEVICE uint32_t load4_relaxed(const void* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
RNNCC_DEVICE void store4_relaxed(void* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
// The same where it is wanted. There is no branch, so that nvcc makes the address before the value is known.
RNNCC_DEVICE void store4_relaxed_if(bool wanted, void* p, uint32_t v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p st.relaxed.gpu.global.u32 [%0],%1;\n}" ::"l"(p), "r"(v),
               "r"(uint32_t(wanted))
               : "memory");
}

// If a thread sees a store that this thread made after the fence, and then fences, it sees all stores from before the
// fence.
RNNCC_DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Words that follow each other, as one number: whoever loads it has all of it, or nothing.
RNNCC_DEVICE void store_relaxed(void* p, const uint32_t (&v)[2]) {
  asm volatile("{\n.reg .b64 x;\nmov.b64 x,{%1,%2};\nst.relaxed.gpu.global.b64 [%0],x;\n}" ::"l"(p), "r"(v[0]),
               "r"(v[1])
               : "memory");
}
RNNCC_DEVICE void store_relaxed(void* p, const uint32_t (&v)[4]) {
  asm volatile(
      "{\n.reg .b128 x;\n.reg .b64 l,h;\nmov.b64 l,{%1,%2};\nmov.b64 h,{%3,%4};\nmov.b128 x,{l,h};\n"
      "st.relaxed.gpu.global.b128 [%0],x;\n}" ::"l"(p),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
      : "memory");
}

}  // namespace rnncc
