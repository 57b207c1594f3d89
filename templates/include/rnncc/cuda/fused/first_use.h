// Asks for fused kernels before a loop first runs at a size: here every call arrives, whether Python makes it, a graph that torch
// compiled, an exported program or C++.
#pragma once

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <tuple>

#include "index.h"

// Compiles the fused kernels of a loop, where they are missing and can be compiled, and adds them to this package's
// (rnncc/runtime/fused.py). `loop` is the segment's name; `heads` those of one direction; `event` a rnncc::FusedEvent. Returns 0,
// or -1 and writes what is to be raised to `problem` (of `size` bytes), or -2 where an interrupt (Ctrl-C) ended it.
typedef int32_t (*rnncc_fused_handler)(const char* loop, const char* dtype, int64_t units, int64_t heads, int32_t directions,
                                       int32_t device, int32_t event, char* problem, int64_t size);

namespace rnncc {

// A loop at a size, in a dtype, on a device.
using FusedSize = std::tuple<std::string, std::string, int64_t, int64_t, int32_t, int32_t>;

// What happens to one, each for the first time: a call of several steps; one that is long enough to be told that it is slow; and
// one of those whose tensors lie in a way that the fused kernels, which there are, do not take.
enum FusedEvent : int32_t { FIRST_CALL = 0, FIRST_LONG_CALL = 1, LEFT_OUT = 2 };

class FirstUse {
 public:
  static constexpr int64_t LONG_CALL_STEPS = 32;

  static FirstUse& of_package() {
    static FirstUse only;
    return only;
  }

  void set_handler(rnncc_fused_handler handler) {
    const std::lock_guard<std::mutex> lock(mutex_);
    handler_ = handler;
    told_.clear();
  }

  // Before a call of so many steps. Single steps gain nothing by a fused kernel. `exists` says whether there is one.
  template <class Exists>
  void before(const FusedSize& size, int64_t steps, const Exists& exists) {
    if (steps < 2) return;
    const FusedEvent event = steps < LONG_CALL_STEPS ? FIRST_CALL : FIRST_LONG_CALL;
    if (!tell(size, event) && event == FIRST_LONG_CALL && !exists())
      say(size, "the package has none of this size: build it with --hidden, --heads and --dtype");
  }

  void left_out(const FusedSize& size, int64_t steps) {
    if (steps >= LONG_CALL_STEPS && !tell(size, LEFT_OUT)) say(size, "rows of its tensors do not all begin at multiples of 16 bytes");
  }

 private:
  // The first time alone. False where nobody is there to be told, now for the first time.
  bool tell(const FusedSize& size, FusedEvent event) {
    rnncc_fused_handler handler;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (told_.count({size, event})) return true;
      handler = handler_;
      if (!handler) told_.insert({size, event});
    }
    if (!handler) return false;
    const auto& [loop, dtype, units, heads, directions, device] = size;
    // Not locked: calls of other sizes go on, and who asks for the same one waits for the handler.
    char problem[2048] = "";
    const int32_t code = handler(loop.c_str(), dtype.c_str(), units, heads, directions, device, event, problem, sizeof problem);
    // Again, for Python to see once the op has failed: an exception cannot pass through C++.
    if (code == -2) std::raise(SIGINT);
    if (code != 0) throw std::runtime_error(code == -2 ? "interrupted while kernels were compiled" : problem);
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.insert({size, event});
    return true;
  }

  // Without Python, in a process of C++ alone.
  static void say(const FusedSize& size, const char* why) {
    const char* level = std::getenv("RNNCC_LOG");
    if (level && std::strcmp(level, "error") == 0) return;
    const auto& [loop, dtype, units, heads, directions, device] = size;
    std::fprintf(stderr, "rnncc: no fused kernel runs %s (%lld heads of %lld, %s): %s; the alternating kernel, which is slower, runs\n",
                 loop.c_str(), static_cast<long long>(heads), static_cast<long long>(units), dtype.c_str(), why);
  }

  std::mutex mutex_;
  std::set<std::pair<FusedSize, FusedEvent>> told_;
  rnncc_fused_handler handler_ = nullptr;
};

}  // namespace rnncc

// Who is asked for kernels from now on; null: nobody.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_set_fused_handler(rnncc_fused_handler handler) {
  rnncc::FirstUse::of_package().set_handler(handler);
}
