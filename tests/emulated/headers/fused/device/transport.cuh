// In place of rnncc/cuda/fused/device/transport.cuh: what its instructions do, on a CPU. With
// -DEMULATED_CAPABILITY=80 the CPU is a GPU of compute capability 8.0, where the instructions of clusters end the launch.
#pragma once

#include "ptx.cuh"

#ifndef EMULATED_CAPABILITY
#define EMULATED_CAPABILITY 90
#endif

namespace rnncc {

constexpr bool HAS_CLUSTERS = EMULATED_CAPABILITY >= 90;
inline void need_clusters() {
  if (!HAS_CLUSTERS) emulated::fail("this GPU has no clusters");
}

inline uint32_t peer_address(uint32_t address, uint32_t rank) {
  need_clusters();
  return address % emulated::WINDOW + (rank + 1) * emulated::WINDOW;
}
inline void cluster_barrier() {
  need_clusters();
  emulated::Cta& cta = *emulated::device.current->cta;
  emulated::meet(*cta.cluster_meeting, int(cta.cluster.size()) * cta.threads);
}

inline void send16(uint32_t to, uint32_t barrier, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  need_clusters();
  const uint32_t words[] = {a, b, c, d};
  emulated::send(emulated::at(to, 16), words, 16, &emulated::barrier_at(barrier));
}
inline void send8(uint32_t to, uint32_t barrier, float a, float b) {
  need_clusters();
  const float words[] = {a, b};
  emulated::send(emulated::at(to, 8), words, 8, &emulated::barrier_at(barrier));
}
inline void send4(uint32_t to, uint32_t barrier, float value) {
  need_clusters();
  emulated::send(emulated::at(to, 4), &value, 4, &emulated::barrier_at(barrier));
}

inline void barrier_init_visible() { need_clusters(); }
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  need_clusters();
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
// try_wait sleeps until the phase ends. test_wait, which older GPUs have, says whether it has ended: the thread asks
// again when others have run.
inline void barrier_wait([[maybe_unused]] uint32_t barrier, [[maybe_unused]] uint32_t parity) {
#ifndef EMULATED_WITHOUT_WAITS  // a test that the tests can fail
  const emulated::Barrier& counts = emulated::barrier_at(barrier);
  if (HAS_CLUSTERS) return emulated::wait_until([&] { return counts.phase != parity; });
  for (Spin spin; counts.phase == parity;) spin.poll();
#endif
}

}  // namespace rnncc
