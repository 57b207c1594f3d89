// wgmma, the products of a warpgroup: four warps side by side, which multiply 64 rows at a time. Compute capability 9.0
// has these instructions, and no other.
#pragma once

#include "ptx.cuh"

namespace rnncc {

// How a product finds its second factor in shared memory. Blocks of 8 rows × 8 terms of 16 bits have 128 bytes, row
// after row. Blocks of the same terms lie side by side, and the next terms `terms_step` bytes further.
RNNCC_DEVICE uint64_t shared_factor(uint32_t address, uint32_t terms_step) {
  constexpr uint64_t ROWS_STEP = 128;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(terms_step >> 4) << 16 | (ROWS_STEP >> 4) << 32;
}

// The same so many bytes further.
RNNCC_DEVICE uint64_t further(uint64_t factor, uint32_t bytes) {
  return factor >> 32 << 32 | uint32_t(uint32_t(factor) + bytes / 16);
}

// What threads wrote to shared memory can be seen by products, after a barrier.
RNNCC_DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products run beside other instructions, in groups. Registers that products use must not change from their group's
// begin on, until the warp has waited for the group.
RNNCC_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
RNNCC_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most LEFT groups run.
template <int LEFT>
RNNCC_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The compiler knows nothing of that: it must not move what makes or uses the sums.
template <int N>
RNNCC_DEVICE void hold_in_place(float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

template <class E>
constexpr bool is_bfloat16 = false;
template <>
constexpr bool is_bfloat16<bfloat16> = true;

#define RNNCC_NAMES_4 "%0,%1,%2,%3"
#define RNNCC_NAMES_8 RNNCC_NAMES_4 ",%4,%5,%6,%7"
#define RNNCC_NAMES_16 RNNCC_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define RNNCC_NAMES_32 RNNCC_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define RNNCC_NAMES_64                                                                       \
  RNNCC_NAMES_32                                                                             \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53" \
  ",%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define RNNCC_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RNNCC_SUMS_8(d, i) RNNCC_SUMS_4(d, i), RNNCC_SUMS_4(d, i + 4)
#define RNNCC_SUMS_16(d, i) RNNCC_SUMS_8(d, i), RNNCC_SUMS_8(d, i + 8)
#define RNNCC_SUMS_32(d, i) RNNCC_SUMS_16(d, i), RNNCC_SUMS_16(d, i + 16)
#define RNNCC_SUMS_64(d, i) RNNCC_SUMS_32(d, i), RNNCC_SUMS_32(d, i + 32)
#define RNNCC_WGMMA(TYPE, COLUMNS, SUMS, A0, A1, A2, A3, B)                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {" RNNCC_NAMES_##SUMS \
               "},{%" A0 ",%" A1 ",%" A2 ",%" A3 "},%" B ",1,1,1,0;"                                        \
               : RNNCC_SUMS_##SUMS(d, FIRST)                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define RNNCC_WGMMA_OF(TYPE)                                   \
  if constexpr (COLUMNS == 8)                                  \
    RNNCC_WGMMA(TYPE, "8", 4, "4", "5", "6", "7", "8");        \
  else if constexpr (COLUMNS == 16)                            \
    RNNCC_WGMMA(TYPE, "16", 8, "8", "9", "10", "11", "12");    \
  else if constexpr (COLUMNS == 32)                            \
    RNNCC_WGMMA(TYPE, "32", 16, "16", "17", "18", "19", "20"); \
  else if constexpr (COLUMNS == 64)                            \
    RNNCC_WGMMA(TYPE, "64", 32, "32", "33", "34", "35", "36"); \
  else                                                         \
    RNNCC_WGMMA(TYPE, "128", 64, "64", "65", "66", "67", "68");

// One instruction: d[FIRST…] += a @ bᵀ, [64, COLUMNS] += [64, 16] @ [16, COLUMNS].
template <class E, int COLUMNS, int FIRST, int N>
RNNCC_DEVICE void wgmma(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
  static_assert(COLUMNS == 8 || COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128);
  if constexpr (is_bfloat16<E>) {
    RNNCC_WGMMA_OF("bf16")
  } else {
    RNNCC_WGMMA_OF("f16")
  }
}

#undef RNNCC_NAMES_4
#undef RNNCC_NAMES_8
#undef RNNCC_NAMES_16
#undef RNNCC_NAMES_32
#undef RNNCC_NAMES_64
#undef RNNCC_SUMS_4
#undef RNNCC_SUMS_8
#undef RNNCC_SUMS_16
#undef RNNCC_SUMS_32
#undef RNNCC_SUMS_64
#undef RNNCC_WGMMA
#undef RNNCC_WGMMA_OF

// The same for any multiple of 8 columns, by as few instructions as there can be.
template <class E, int COLUMNS, int FIRST = 0, int N>
RNNCC_DEVICE void multiply64(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
  constexpr int NOW = COLUMNS >= 128 ? 128 : COLUMNS >= 64 ? 64 : COLUMNS >= 32 ? 32 : COLUMNS >= 16 ? 16 : 8;
  wgmma<E, NOW, FIRST>(d, a, b);
  if constexpr (COLUMNS > NOW) multiply64<E, COLUMNS - NOW, FIRST + NOW / 2>(d, a, further(b, NOW * 16));
}

}  // namespace rnncc
