// Asks for fused kernels before a loop first runs at a size. Every call comes through here: from Python, from a graph
// that torch compiled, from an exported program or from C++.
#pragma once

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <tuple>

#include "index.h"

// Compiles the fused kernels of a loop, where they are missing and can be compiled, and adds them to this package's
// (rnncc/runtime/first_use.py). `loop` is the segment's name, `heads` the heads of one direction, `event` a
// rnncc::FusedEvent. Returns 0; or -1, with the text of the error in `problem` (of `size` bytes); or -2 after Ctrl-C.
typedef int32_t (*rnncc_fused_handler)(const char* loop, const char* dtype, int64_t head_dim, int64_t heads,
                                       int32_t directions, int32_t device, int32_t event, char* problem, int64_t size);

namespace rnncc {

// A size of a loop: the loop's name, dtype, head_dim, heads of one direction, number of directions, device.
using FusedSize = std::tuple<std::string, std::string, int64_t, int64_t, int32_t, int32_t>;

// What happens to a size for the first time. FIRST_CALL: a call of several steps. FIRST_LONG_CALL: a call that is long
// enough for a warning that it is slow. LEFT_OUT: such a long call where there are fused kernels, but none takes its
// tensors as they lie.
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

  // Call it before a call of so many steps. Single steps gain nothing by a fused kernel. `exists` says whether there is
  // one.
  template <class Exists>
  void before(const FusedSize& size, int64_t steps, const Exists& exists) {
    if (steps < 2) return;
    const FusedEvent event = steps < LONG_CALL_STEPS ? FIRST_CALL : FIRST_LONG_CALL;
    if (!tell(size, event) && event == FIRST_LONG_CALL && !exists())
      say(size, "the package has none of this size: build it with --hidden, --heads and --dtype");
  }

  void left_out(const FusedSize& size, int64_t steps) {
    if (steps >= LONG_CALL_STEPS && !tell(size, LEFT_OUT))
      say(size, "rows of its tensors do not all begin at multiples of 16 bytes");
  }

 private:
  // Calls the handler, the first time alone. Returns false once where there is no handler; the caller then prints.
  bool tell(const FusedSize& size, FusedEvent event) {
    rnncc_fused_handler handler;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (told_.count({size, event})) return true;
      handler = handler_;
      if (!handler) told_.insert({size, event});
    }
    if (!handler) return false;
    const auto& [loop, dtype, head_dim, heads, directions, device] = size;
    // The mutex is free here, so that calls of other sizes go on. Threads that ask for the same size wait in the
    // handler.
    char problem[2048] = "";
    const int32_t code =
        handler(loop.c_str(), dtype.c_str(), head_dim, heads, directions, device, event, problem, sizeof problem);
    // The handler caught Ctrl-C, since no Python exception can pass through C++. Python gets the signal again after the
    // op failed.
    if (code == -2) std::raise(SIGINT);
    if (code != 0) throw std::runtime_error(code == -2 ? "interrupted while kernels were compiled" : problem);
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.insert({size, event});
    return true;
  }

  // Warns on stderr, in a process without Python.
  static void say(const FusedSize& size, const char* why) {
    const char* level = std::getenv("RNNCC_LOG");
    if (level && std::strcmp(level, "error") == 0) return;
    const auto& [loop, dtype, head_dim, heads, directions, device] = size;
    std::fprintf(
        stderr,
        "rnncc: no fused kernel runs %s (%lld heads of %lld, %s): %s; the alternating kernel, which is slower, runs\n",
        loop.c_str(), static_cast<long long>(heads), static_cast<long long>(head_dim), dtype.c_str(), why);
  }

  std::mutex mutex_;
  std::set<std::pair<FusedSize, FusedEvent>> told_;
  rnncc_fused_handler handler_ = nullptr;
};

}  // namespace rnncc

// Sets the handler that is asked for kernels from now on; null for none.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_set_fused_handler(
    rnncc_fused_handler handler) {
  rnncc::FirstUse::of_package().set_handler(handler);
}
