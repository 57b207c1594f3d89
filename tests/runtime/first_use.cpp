// Calls on a GPU, as far as they ask for kernels: 0, or -1 and the problem.
#include "rnncc/cuda/fused/host/first_use.h"
#include "rnncc/cuda/module.h"

using rnncc::FirstUse;

extern "C" __attribute__((visibility("default"))) int32_t call(const char* program, const char* dtype, int64_t units,
                                                               int64_t heads, int32_t directions, int64_t steps,
                                                               int32_t fits, char* text, int64_t size) {
  try {
    const rnncc::FusedSize what = {program, dtype, units, heads, directions, 0};
    FirstUse::of_package().before(what, steps, [] { return false; });
    if (!fits) FirstUse::of_package().left_out(what, steps);
    return 0;
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
    return -1;
  }
}

// A call that needs a file of kernels that take every size, on a GPU of compute capability 9.0: the file's path.
extern "C" __attribute__((visibility("default"))) int32_t need(const char* file, char* text, int64_t size) {
  try {
    rnncc::Gpu on;
    on.major = 9;
    std::snprintf(text, size_t(size), "%s", rnncc::kernel_path(file, 0, on).c_str());
    return 0;
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
    return -1;
  }
}

// A call that will need a file soon, on such a GPU.
extern "C" __attribute__((visibility("default"))) void announce(const char* file) {
  rnncc::Gpu on;
  on.major = 9;
  rnncc::announce(file, 0, on);
}
