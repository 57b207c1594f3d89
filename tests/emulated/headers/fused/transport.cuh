// In place of rnncc/cuda/fused/transport.cuh: what its instructions do, on a CPU.
#pragma once

#include "ptx.cuh"

namespace rnncc {

inline uint32_t peer_address(uint32_t address, uint32_t rank) {
  return address % emulated::WINDOW + (rank + 1) * emulated::WINDOW;
}
inline void cluster_barrier() {
  emulated::Cta& cta = *emulated::device.current->cta;
  emulated::meet(*cta.cluster_meeting, int(cta.cluster.size()) * cta.threads);
}

inline void send16(uint32_t to, uint32_t barrier, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[] = {a, b, c, d};
  emulated::send(emulated::at(to, 16), words, 16, &emulated::barrier_at(barrier));
}
inline void send8(uint32_t to, uint32_t barrier, float a, float b) {
  const float words[] = {a, b};
  emulated::send(emulated::at(to, 8), words, 8, &emulated::barrier_at(barrier));
}
inline void send4(uint32_t to, uint32_t barrier, float value) {
  emulated::send(emulated::at(to, 4), &value, 4, &emulated::barrier_at(barrier));
}

inline void barrier_init_visible() {}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  emulated::Barrier& counts = emulated::barrier_at(barrier);
  counts.bytes += bytes;
  --counts.pending;
  counts.settle();
}
inline void begin_barriers(uint32_t first, int count, uint32_t bytes) {
  if (threadIdx.x == 0)
    for (int i = 0; i < count; ++i) barrier_init(first + 8 * i, 1);
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < count; ++i) barrier_expect(first + 8 * i, bytes);
  cluster_barrier();
}
inline void barrier_wait([[maybe_unused]] uint32_t barrier, [[maybe_unused]] uint32_t parity) {
#ifndef EMULATED_WITHOUT_WAITS  // a test that the tests can fail
  const emulated::Barrier& counts = emulated::barrier_at(barrier);
  emulated::wait_until([&] { return counts.phase != parity; });
#endif
}

inline void prefetch_l2(const void*, uint32_t) {}

}  // namespace rnncc
