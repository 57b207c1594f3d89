// A launch in the emulator (device.h): which thread runs next, and when what is on its way arrives.
#pragma once

#include "device.h"

namespace emulated {

struct Launch {
  int ctas, directions, cluster, threads;
  int64_t shared_bytes;
  uint64_t seed;
};

// Runs a kernel. All CTAs of the launch run side by side. Throws where threads wait for what never comes. With
// -DEMULATED_SLOW_CTA=n that CTA runs once in SLOWNESS times.
inline void launch(const Launch& wanted, void (*kernel)(const void*), const void* parameter) {
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Meeting>> clusters;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::mt19937_64 random(wanted.seed);
  device.deliveries.clear();
  device.kernel = kernel;
  device.parameter = parameter;
  for (int y = 0; y < wanted.directions; ++y)
    for (int x = 0; x < wanted.ctas; ++x) {
      ctas.push_back(std::make_unique<Cta>());
      Cta& cta = *ctas.back();
      cta.index = {unsigned(x), unsigned(y), 0};
      cta.rank = x % wanted.cluster;
      cta.threads = wanted.threads;
      // What a kernel reads before anybody wrote it is a NaN.
      cta.shared.assign(wanted.shared_bytes, char(0xff));
      if (cta.rank == 0) clusters.push_back(std::make_unique<Meeting>());
      cta.cluster_meeting = clusters.back().get();
      for (int t = 0; t < wanted.threads; ++t) {
        if (t % 32 == 0) warps.push_back(std::make_unique<Warp>());
        auto fiber = std::make_unique<Fiber>();
        // Stacks that all began at the same place of a page would take each other's places in the caches.
        constexpr size_t STACK = 128 << 10;
        const size_t shift = fibers.size() % 64 * 64;
        fiber->cta = &cta;
        fiber->warp = warps.back().get();
        fiber->index = {unsigned(t), 0, 0};
        fiber->stack.reset(new char[STACK + shift]);
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack.get();
        fiber->context.uc_stack.ss_size = STACK + shift;
        makecontext(&fiber->context, run_fiber, 0);
        fibers.push_back(std::move(fiber));
      }
    }
  for (size_t first = 0; first < ctas.size(); first += wanted.cluster)
    for (int i = 0; i < wanted.cluster; ++i)
      for (int j = 0; j < wanted.cluster; ++j) ctas[first + i]->cluster.push_back(ctas[first + j].get());
  std::vector<Fiber*>& runnable = device.runnable;
  runnable.clear();
  for (auto& fiber : fibers) runnable.push_back(fiber.get());
  // Mostly one of those that came last: else each switch would be to a stack that no cache holds.
  const auto draw = [&random](auto& from) {
    const uint64_t number = random(), among = number % 8 ? std::min<size_t>(from.size(), 32) : from.size();
    std::swap(from[from.size() - 1 - (number >> 8) % among], from.back());
    const auto drawn = from.back();
    from.pop_back();
    return drawn;
  };
  // Those whose condition did not hold are asked again after a while: at the latest when all others wait.
  std::vector<Fiber*> asked;
  bool moved = true;
  for (size_t left = fibers.size(); left > 0;) {
    if (runnable.empty()) {
      if (asked.empty() || (!moved && device.deliveries.empty())) throw std::runtime_error("all threads wait");
      runnable.swap(asked);
      moved = false;
    }
    ++device.cycles;
    if (!device.deliveries.empty() && random() % 4 == 0) {
      draw(device.deliveries).arrive();
      moved = true;  // a thread that was asked before may wait for just this
    }
    if (!asked.empty() && random() % 4 == 0) runnable.push_back(draw(asked));
    Fiber* fiber = draw(runnable);
#ifdef EMULATED_SLOW_CTA
    if (fiber->cta->index.x == EMULATED_SLOW_CTA && !runnable.empty() && random() % EMULATED_SLOWNESS) {
      asked.push_back(fiber);
      continue;
    }
#endif
    if (fiber->ready && !fiber->ready(fiber->waits_for)) {
      asked.push_back(fiber);
      continue;
    }
    fiber->ready = nullptr;
    resume(*fiber);
    if (device.problem) throw std::runtime_error(std::exchange(device.problem, nullptr));
    moved = true;
    if (fiber->done)
      --left;
    else if (fiber->ready)
      asked.push_back(fiber);
    else if (!fiber->meets)
      runnable.push_back(fiber);
  }
}

}  // namespace emulated
