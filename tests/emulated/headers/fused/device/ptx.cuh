// In place of rnncc/cuda/fused/device/ptx.cuh: what its instructions do, on a CPU.
#pragma once

#include "../../spin.cuh"

namespace rnncc {

inline uint32_t shared_address(const void* p) { return emulated::address_of(p); }
template <class T>
inline T& shared_at(uint32_t address) {
  return *reinterpret_cast<T*>(emulated::at(address, sizeof(T)));
}

template <class V>
inline V made_again(V v) {
  return v;
}

template <class E>
inline void mma(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  multiply_add<E>(d, a.x, a.y, a.z, a.w, b0, b1);
}

template <class E>
inline uint32_t pack(float low, float high) {
  return from_float<E>(low).bits | uint32_t(from_float<E>(high).bits) << 16;
}

// Lane l has elements 2 (l % 4) and the next of row l / 4.
inline uint32_t transpose8x8(uint32_t v) {
  emulated::exchange(v, 0);
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  const auto element = [&](int r, int c) {
    return emulated::of_lane<uint32_t>(r * 4 + c / 2) >> 16 * (c % 2) & 0xffff;
  };
  return element(column, row) | element(column + 1, row) << 16;
}

inline uint4 load_transposed(uint32_t row) {
  emulated::exchange(row, 0);
  const int lane = threadIdx.x % 32;
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    uint16_t elements[2];
    for (int half = 0; half < 2; ++half) {
      const uint32_t from = emulated::of_lane<uint32_t>(8 * i + lane % 4 * 2 + half);
      memcpy(&elements[half], emulated::at(from, 16) + lane / 4 * 2, 2);
    }
    words[i] = elements[0] | uint32_t(elements[1]) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  emulated::barrier_at(barrier) = {int(arrivals), int(arrivals), 0, 0};
}

inline void copy16(uint32_t to, const void* from) { memcpy(emulated::at(to, 16), from, 16); }
// A copy lands at once, or not before the thread waits for its group.
inline void copy16_or_zeros(uint32_t to, const void* from, bool wanted) {
  emulated::Landing landing = {emulated::at(to, 16), {}};
  if (wanted) memcpy(landing.bytes, from, 16);
  if (emulated::device.cycles % 2)
    landing.land();
  else
    emulated::device.current->groups.back().push_back(landing);
}
inline void copies_end_group() { emulated::device.current->groups.emplace_back(); }
template <int N>
inline void copies_wait() {
  auto& groups = emulated::device.current->groups;
  for (; groups.size() > N + 1; groups.pop_front())
    for (const emulated::Landing& landing : groups.front()) landing.land();
}
inline void copy_arrive(uint32_t barrier) {
  emulated::Barrier& counts = emulated::barrier_at(barrier);
  --counts.pending;
  counts.settle();
}

inline uint4 load16_relaxed(const void* p) {
  uint4 v;
  memcpy(&v, p, 16);
  return v;
}
inline uint32_t load4_relaxed(const void* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
inline void store4_relaxed(void* p, uint32_t v) { emulated::send(static_cast<char*>(p), &v, 4); }
inline void store4_relaxed_if(bool wanted, void* p, uint32_t v) {
  if (wanted) store4_relaxed(p, v);
}

inline void fence() { emulated::fence(); }
template <int N>
inline void store_relaxed(void* p, const uint32_t (&v)[N]) {
  emulated::send(static_cast<char*>(p), v, 4 * N);
}

}  // namespace rnncc
