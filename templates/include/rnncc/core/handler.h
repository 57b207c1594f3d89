// Asks Python for kernels that the package lacks (rnncc/runtime/kernels/first_use.py). A program without Python has no handler.
#pragma once

#include <csignal>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>

// Compiles kernels, where they are missing and can be compiled, and adds them to this package's.
//
// name        a program (lstm_0_masked_inference); for 0 heads a file of kernels (lstm_0_forward_bf16) or, for the CPU,
//             an instruction set (v4)
// dtype, head_dim, heads, directions
//             the size; `heads` are those of one direction. Where a call needs a file of kernels that take every size,
//             these are empty and 0. Where it needs kernels for the CPU, the dtype names their file (f64_masked).
// device      the GPU's number, or -1 for the CPU
// is_long     of a program: whether the call is so long that a warning should say if it is slow. The first call of a
//             size asks, and the first long one. Of a file of kernels: whether it is needed soon and not now; then it
//             is compiled in the background.
// left_out    whether there are fused kernels, but none takes the call's tensors as they lie
//
// Returns 0; or -1, with the text of the error in `problem` (of `size` bytes); or -2 after Ctrl-C.
typedef int32_t (*rnncc_kernel_handler)(const char* name, const char* dtype, int64_t head_dim, int64_t heads,
                                        int32_t directions, int32_t device, int32_t is_long, int32_t left_out,
                                        char* problem, int64_t size);

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

  // Calls the handler; false where there is none. No lock may be held: other threads go on meanwhile, and the handler
  // may wait for them.
  bool ask(const std::string& name, const KernelSize& size, int32_t device, bool is_long = false,
           bool left_out = false) {
    rnncc_kernel_handler handler;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      handler = handler_;
    }
    if (!handler) return false;
    char problem[2048] = "";
    const int32_t code = handler(name.c_str(), size.dtype.c_str(), size.head_dim, size.heads, size.directions, device,
                                 is_long, left_out, problem, sizeof problem);
    // The handler caught Ctrl-C, since no Python exception can pass through C++. Python gets the signal again after the
    // op failed.
    if (code == -2) std::raise(SIGINT);
    if (code != 0) throw std::runtime_error(code == -2 ? "interrupted while kernels were compiled" : problem);
    return true;
  }

 private:
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
