// Tells a caller of the library which kernel runs a batch.
#pragma once

#include "run.h"

// Finds the kernel that runs a program for a batch of tensors that are not packed and whose rows begin at multiples of
// 16 bytes. `denser`: whether masks are denser than planned. Writes its name to `text` (of `size` bytes), and returns the number of its launches for so many directions;
// where a launch is a step, the number per step. Returns 0 where no fused kernel runs the batch, or -1 with an error in
// `text`.
extern "C" inline __attribute__((used, visibility("default"))) int32_t
rnncc_choose_kernel(const char* program, const char* dtype, int64_t head_dim, int64_t heads, int64_t batch,
                    int32_t directions, int32_t denser, int32_t device, char* text, int64_t size) {
  try {
    const rnncc::OnDevice current(device);
    const auto choices = [&](int64_t side_by_side) {
      return rnncc::fused_choices(program, dtype, head_dim, heads, side_by_side, batch, heads == 1, denser != 0,
                                  device);
    };
    const std::vector<rnncc::FusedChoice> apart = choices(1), together = choices(directions);
    const bool are_apart = rnncc::are_quicker_apart(together, apart);
    const std::vector<rnncc::FusedChoice>& chosen = are_apart ? apart : together;
    std::snprintf(text, size_t(size), "%s", chosen.empty() ? "" : chosen[0].kernel->name.c_str());
    return chosen.empty() ? 0 : int32_t((are_apart ? directions : 1) * chosen[0].share.launches());
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
    return -1;
  }
}
