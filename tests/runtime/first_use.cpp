// A call of a loop on a GPU, as far as it asks for fused kernels: 0, or -1 and the problem.
#include "rnncc/cuda/fused/first_use.h"

using rnncc::FirstUse;

extern "C" __attribute__((visibility("default"))) int32_t call(const char* loop, const char* dtype, int64_t units, int64_t heads,
                                                               int32_t directions, int64_t steps, int32_t fits, char* text, int64_t size) {
  try {
    const rnncc::FusedSize what = {loop, dtype, units, heads, directions, 0};
    FirstUse::of_package().before(what, steps, [] { return false; });
    if (!fits) FirstUse::of_package().left_out(what, steps);
    return 0;
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
    return -1;
  }
}
