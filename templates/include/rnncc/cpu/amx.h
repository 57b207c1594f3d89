// The matrix unit of an x86 processor (AMX): sums of products of bfloat16 numbers, 16 rows by 16 columns at a time.
//
// It has eight tiles. A tile of sums holds float; a tile of A has rows of 32 bfloat16 numbers; a tile of B has 16 rows of
// pairs, which are two consecutive rows of B beside each other. One instruction adds to a tile of sums the products of
// 32 terms. Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3, 2023.
//
// The instructions stand here as assembly, because compilers' functions for them do not say that they read and write
// memory; and as bytes, because an assembler may be older than they are. With RNNCC_EMULATE_AMX plain code stands for the
// unit, for tests on processors that have none.
#pragma once

#include "convert.h"

#if defined(__x86_64__) && defined(__linux__) && RNNCC_ISA_LEVEL == 4 && defined(__has_include)
#if __has_include(<avx512bf16intrin.h>)  // else an assembler that is as old does not know how to round
#define RNNCC_HAS_AMX 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Sums have so many rows and columns, and one instruction takes so many terms.
constexpr int64_t amx_size = 16, amx_terms = 32;

// How many rows and columns of bytes each tile has.
struct AmxShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t bytes) {
    rows[tile] = uint8_t(tile_rows);
    row_bytes[tile] = uint16_t(bytes);
  }
};

#if defined(RNNCC_EMULATE_AMX)

constexpr bool amx_ready() { return true; }

struct EmulatedAmx {
  AmxShapes shapes;
  uint32_t row[8][amx_size][amx_size] = {};
};
static __thread EmulatedAmx emulated_amx;

RNNCC_INLINE void amx_begin(const AmxShapes& shapes) {
  emulated_amx.shapes = shapes;
  __builtin_memset(emulated_amx.row, 0, sizeof emulated_amx.row);
}
RNNCC_INLINE void amx_end() {}

template <int TILE>
RNNCC_INLINE void amx_zero() {
  __builtin_memset(emulated_amx.row[TILE], 0, sizeof emulated_amx.row[TILE]);
}
template <int TILE>
RNNCC_INLINE void amx_load(const void* p, int64_t row_bytes) {
  amx_zero<TILE>();
  for (int64_t r = 0; r < emulated_amx.shapes.rows[TILE]; ++r)
    __builtin_memcpy(emulated_amx.row[TILE][r], static_cast<const char*>(p) + r * row_bytes,
                     emulated_amx.shapes.row_bytes[TILE]);
}
template <int TILE>
RNNCC_INLINE void amx_store(void* p, int64_t row_bytes) {
  for (int64_t r = 0; r < emulated_amx.shapes.rows[TILE]; ++r)
    __builtin_memcpy(static_cast<char*>(p) + r * row_bytes, emulated_amx.row[TILE][r],
                     emulated_amx.shapes.row_bytes[TILE]);
}

RNNCC_INLINE float amx_half(uint32_t pair, int odd) {
  const uint32_t bits = odd ? pair & 0xffff0000u : pair << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <int SUM, int A, int B>
static void amx_multiply() {
  const AmxShapes& shapes = emulated_amx.shapes;
  for (int64_t i = 0; i < shapes.rows[SUM]; ++i) {
    for (int64_t j = 0; j < shapes.row_bytes[SUM] / 4; ++j) {
      float sum;
      __builtin_memcpy(&sum, &emulated_amx.row[SUM][i][j], sizeof sum);
      for (int64_t k = 0; k < shapes.row_bytes[A] / 4; ++k) {
        const uint32_t a = emulated_amx.row[A][i][k], b = emulated_amx.row[B][k][j];
        sum += amx_half(a, 0) * amx_half(b, 0) + amx_half(a, 1) * amx_half(b, 1);
      }
      __builtin_memcpy(&emulated_amx.row[SUM][i][j], &sum, sizeof sum);
    }
  }
}

#elif defined(RNNCC_HAS_AMX)

// Whether the processor has the unit, and the system lets this process use it.
static inline bool ask_for_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const unsigned bf16_and_tiles = 1u << 22 | 1u << 24;
  if ((d & bf16_and_tiles) != bf16_and_tiles) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) return false;  // AVX512_BF16, to round
  constexpr long request_permission = 0x1023, tile_data = 18;                    // of arch_prctl; since Linux 5.16
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
static inline bool amx_ready() {
  static const bool ready = ask_for_amx();
  return ready;
}

RNNCC_INLINE void amx_begin(const AmxShapes& shapes) {
  asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00  # ldtilecfg (%%rax)" : : "a"(&shapes) : "memory");
}
// A thread that leaves tiles in use would make the system save them whenever it switches to another thread.
RNNCC_INLINE void amx_end() { asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0  # tilerelease" : : : "memory"); }

template <int TILE>
RNNCC_INLINE void amx_zero() {
  asm volatile(".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0 + 8 * %c0  # tilezero %%tmm%c0" : : "i"(TILE));
}
template <int TILE>
RNNCC_INLINE void amx_load(const void* p, int64_t row_bytes) {
  asm volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x04 + 8 * %c0, 0x08  # tileloadd (%%rax, %%rcx), %%tmm%c0"
               :
               : "i"(TILE), "a"(p), "c"(row_bytes)
               : "memory");
}
template <int TILE>
RNNCC_INLINE void amx_store(void* p, int64_t row_bytes) {
  asm volatile(".byte 0xc4, 0xe2, 0x7a, 0x4b, 0x04 + 8 * %c0, 0x08  # tilestored %%tmm%c0, (%%rax, %%rcx)"
               :
               : "i"(TILE), "a"(p), "c"(row_bytes)
               : "memory");
}
template <int SUM, int A, int B>
RNNCC_INLINE void amx_multiply() {
  asm volatile(".byte 0xc4, 0xe2, 0x7a - 8 * %c2, 0x5c, 0xc0 + 8 * %c0 + %c1  # tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(SUM), "i"(A), "i"(B));
}

#else

constexpr bool amx_ready() { return false; }
RNNCC_INLINE void amx_begin(const AmxShapes&) {}
RNNCC_INLINE void amx_end() {}
template <int TILE>
RNNCC_INLINE void amx_zero() {}
template <int TILE>
RNNCC_INLINE void amx_load(const void*, int64_t) {}
template <int TILE>
RNNCC_INLINE void amx_store(void*, int64_t) {}
template <int SUM, int A, int B>
RNNCC_INLINE void amx_multiply() {}

#endif

// ---- rounding

// Two vectors in bfloat16, one after the other.
RNNCC_INLINE Vec<float> rounded(Vec<float> first, Vec<float> second) {
#if defined(RNNCC_HAS_AMX) && !defined(RNNCC_EMULATE_AMX)
  Vec<float> both;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(first), "v"(second));
  return both;
#else
  uint16_t both[2 * lanes<float>];
  narrow(both, float_to_bf16(first));
  narrow(both + lanes<float>, float_to_bf16(second));
  Vec<float> result;
  __builtin_memcpy(&result, both, sizeof result);
  return result;
#endif
}

// The first 2 * lanes of n numbers in bfloat16; zeros follow the last.
RNNCC_INLINE Vec<float> rounded_upto(const float* p, int64_t n) {
  constexpr int64_t L = lanes<float>;
  if (n >= 2 * L) return rounded(load(p), load(p + L));
  if (n <= 0) return Vec<float>{};
  return rounded(load_upto(p, n), n > L ? load_upto(p + L, n - L) : Vec<float>{});
}

// Each lane of two vectors as a pair of bfloat16 numbers.
RNNCC_INLINE Vec<float> paired(Vec<float> even, Vec<float> odd) {
#if defined(RNNCC_HAS_AMX) && !defined(RNNCC_EMULATE_AMX)
  typedef uint16_t Halves __attribute__((vector_size(64)));
  const Vec<float> both = rounded(even, odd);
  const Halves order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  Vec<float> pairs;
  asm("vpermw %1, %2, %0" : "=v"(pairs) : "v"(both), "v"(order));
  return pairs;
#else
  return reinterpret_cast<Vec<float> >(float_to_bf16(even) | float_to_bf16(odd) << 16);
#endif
}

// Up to n elements of rows `row` and `row` + 1 of a matrix as pairs. Rows from `rows` on are zeros.
RNNCC_INLINE Vec<float> pair_of_rows(const float* a, int64_t a_row, int64_t row, int64_t rows, int64_t n) {
  if (row >= rows) return Vec<float>{};
  const float* even = a + row * a_row;
  return paired(load_upto(even, n), row + 1 < rows ? load_upto(even + a_row, n) : Vec<float>{});
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
