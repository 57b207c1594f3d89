// Asks for fused kernels before a loop first runs at a size. Every call comes through here: from Python, from a graph
// that torch compiled, from an exported program or from C++.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>

#include "../../../core/handler.h"

namespace rnncc {

// A program at a size: its name, dtype, head_dim, heads of one direction, number of directions, device.
using FusedSize = std::tuple<std::string, std::string, int64_t, int64_t, int32_t, int32_t>;

class FirstUse {
 public:
  static FirstUse& of_package() {
    static FirstUse only;
    return only;
  }

  // Call it before a call of so many steps. Single steps gain nothing by a fused kernel. `exists` says whether there is
  // one.
  template <class Exists>
  void before(const FusedSize& size, int64_t steps, const Exists& exists) {
    if (steps < 2) return;
    const bool is_long = steps >= rnncc_long_call_steps;
    if (!tell(size, is_long, false) && is_long && !exists())
      say(size, "the package has none of this size: build it with --hidden, --heads and --dtype");
  }

  void left_out(const FusedSize& size, int64_t steps) {
    if (steps >= rnncc_long_call_steps && !tell(size, true, true))
      say(size, "rows of its tensors do not all begin at multiples of 16 bytes");
  }

 private:
  // Tells the handler, the first time alone: of a short call, and of a long one. Returns false once where there is no
  // handler; the caller then prints.
  bool tell(const FusedSize& size, bool is_long, bool left_out) {
    KernelHandler& handler = KernelHandler::of_package();
    const auto key = std::make_tuple(size, is_long, left_out, handler.changes());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (told_.count(key)) return true;
    }
    // The mutex is free here, so that calls of other sizes go on. Threads that ask for the same size wait in the
    // handler.
    const auto& [program, dtype, head_dim, heads, directions, device] = size;
    const bool asked = handler.ask_fused(program, {dtype, head_dim, heads, directions}, device, is_long, left_out);
    const std::lock_guard<std::mutex> lock(mutex_);
    return !told_.insert(key).second || asked;
  }

  // Warns on stderr, in a process without Python.
  static void say(const FusedSize& size, const char* why) {
    const char* level = std::getenv("RNNCC_LOG");
    if (level && std::strcmp(level, "error") == 0) return;
    const auto& [program, dtype, head_dim, heads, directions, device] = size;
    std::fprintf(
        stderr,
        "rnncc: no fused kernel runs %s (%lld heads of %lld, %s): %s; the alternating kernel, which is slower, runs\n",
        program.c_str(), static_cast<long long>(heads), static_cast<long long>(head_dim), dtype.c_str(), why);
  }

  std::mutex mutex_;
  std::set<std::tuple<FusedSize, bool, bool, int64_t>> told_;
};

}  // namespace rnncc
