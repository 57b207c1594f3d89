// Which of a folder's fused kernels a GPU runs, as the driver describes it.
#include "rnncc/cuda/fused/host/run.h"

// The file of the kernel that runs a batch of one head, or "", or the problem.
extern "C" __attribute__((visibility("default"))) void choose(const char* program, int64_t head_dim, int64_t heads,
                                                              int64_t directions, int64_t batch, char* text,
                                                              int64_t size) {
  try {
    const auto found = rnncc::fused_choices(program, "bf16", head_dim, heads, directions, batch, false, false, 0);
    // The driver of the test gives the file's name in place of a function.
    std::snprintf(text, size_t(size), "%s", found.empty() ? "" : reinterpret_cast<const char*>(found[0].function));
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
  }
}

// Into how many groups that kernel divides the batch.
extern "C" __attribute__((visibility("default"))) int64_t groups(const char* program, int64_t head_dim, int64_t heads,
                                                                 int64_t batch) {
  return rnncc::fused_choices(program, "bf16", head_dim, heads, 1, batch, false, false, 0).at(0).share.groups;
}
