// Asks Python for kernels that the package lacks (rnncc/runtime/kernels/first_use.py). A program without Python has no handler.
#pragma once

#include <csignal>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>

// Kernels that a call needs, or will need. What belongs to another kind is null, 0 or -1.
struct rnncc_wanted_kernels {
  const char* kind;  // "fused", "GPU file", "GPU file soon" (compiled in the background) or "CPU file"
  const char* name;  // the program of fused kernels (lstm_0_masked_inference), or the file (lstm_0_forward_bf16)
  const char* instructions;  // of a CPU file (v4)
  const char* dtype;         // of fused kernels, as all below but the device
  int64_t head_dim, heads;   // of one direction
  int32_t directions;
  int32_t device;    // the GPU's number
  int32_t is_long;   // whether the call is so long that a warning should say if it is slow
  int32_t left_out;  // whether there are fused kernels, but none takes the call's tensors as they lie
};

// Compiles kernels, where they are missing and can be compiled, and adds them to this package's. Returns 0; or -1, with
// the text of the error in `problem` (of `size` bytes); or -2 after Ctrl-C.
typedef int32_t (*rnncc_kernel_handler)(const rnncc_wanted_kernels* wanted, char* problem, int64_t size);

extern "C" {
// Shorter calls do not warn that they are slow. Python reads the number from the library.
inline __attribute__((used, visibility("default"))) const int64_t rnncc_long_call_steps = 32;
}

namespace rnncc {

struct KernelSize {
  std::string dtype;
  int64_t head_dim = 0, heads = 0;
  int32_t directions = 0;
};

class KernelHandler {
 public:
  static KernelHandler& of_package() {
    static KernelHandler only;
    return only;
  }

  void set(rnncc_kernel_handler handler) {
    const std::lock_guard<std::mutex> lock(mutex_);
    handler_ = handler;
    ++changes_;
  }

  // How often the handler was set: what an earlier one was told, the present one was not.
  int64_t changes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return changes_;
  }

  // These call the handler; false where there is none. No lock may be held: other threads go on meanwhile, and the
  // handler may wait for them. Fused kernels are asked for by the first call of a size, and by the first long one.
  bool ask_fused(const std::string& program, const KernelSize& size, int32_t device, bool is_long, bool left_out) {
    return call({"fused", program.c_str(), nullptr, size.dtype.c_str(), size.head_dim, size.heads, size.directions,
                 device, is_long, left_out});
  }

  // A file of kernels that take every size.
  bool ask_file(const std::string& file, int32_t device, bool soon = false) {
    return call({soon ? "GPU file soon" : "GPU file", file.c_str(), nullptr, nullptr, 0, 0, 0, device, 0, 0});
  }

  bool ask_cpu_file(const std::string& instructions, const std::string& file) {
    return call({"CPU file", file.c_str(), instructions.c_str(), nullptr, 0, 0, 0, -1, 0, 0});
  }

 private:
  bool call(const rnncc_wanted_kernels& wanted) {
    rnncc_kernel_handler handler;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      handler = handler_;
    }
    if (!handler) return false;
    char problem[2048] = "";
    const int32_t code = handler(&wanted, problem, sizeof problem);
    // The handler caught Ctrl-C, since no Python exception can pass through C++. Python gets the signal again after the
    // op failed.
    if (code == -2) std::raise(SIGINT);
    if (code != 0) throw std::runtime_error(code == -2 ? "interrupted while kernels were compiled" : problem);
    return true;
  }

  std::mutex mutex_;
  rnncc_kernel_handler handler_ = nullptr;
  int64_t changes_ = 0;
};

}  // namespace rnncc

// Sets the handler that is asked for kernels from now on; null for none.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_set_kernel_handler(
    rnncc_kernel_handler handler) {
  rnncc::KernelHandler::of_package().set(handler);
}
