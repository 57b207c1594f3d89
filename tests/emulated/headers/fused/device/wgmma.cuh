// In place of rnncc/cuda/fused/device/wgmma.cuh: what its instructions do, on a CPU. Products are made at once.
#pragma once

#include "ptx.cuh"

namespace rnncc {

struct SharedFactor {
  uint32_t address, terms_step;
};
inline SharedFactor shared_factor(uint32_t address, uint32_t terms_step) { return {address, terms_step}; }
inline SharedFactor further(SharedFactor factor, uint32_t bytes) { return {factor.address + bytes, factor.terms_step}; }
inline void show_to_products() {}
inline void begin_products() {}
inline void commit_products() {}
template <int LEFT>
inline void wait_for_products() {}
template <int N>
inline void hold_in_place(float (&)[N]) {}

template <class E, int COLUMNS, int N>
inline void multiply64(float (&d)[N], const uint32_t (&a)[4], SharedFactor b) {
  static_assert(COLUMNS % 8 == 0 && N == COLUMNS / 2);
  struct Factors {
    uint32_t words[4];
  };
  Factors own;
  for (int i = 0; i < 4; ++i) own.words[i] = a[i];
  emulated::exchange(own, 0);
  const int row = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const auto element = [](uint32_t word, int half) { return to_float(E{uint16_t(word >> 16 * half)}); };
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 16; ++k) {
      const float x = element(emulated::of_lane<Factors>(row * 4 + k % 8 / 2).words[k / 8 * 2 + r], k % 2);
      for (int c = 0; c < COLUMNS / 8 * 2; ++c) {
        const int column = c / 2 * 8 + q * 2 + c % 2;
        const uint32_t at = b.address + k / 8 * b.terms_step + column / 8 * 128 + column % 8 * 16 + k % 8 * 2;
        E y;
        memcpy(&y, emulated::at(at, 2), 2);
        d[c / 2 * 4 + r * 2 + c % 2] += x * to_float(y);
      }
    }
}

}  // namespace rnncc
