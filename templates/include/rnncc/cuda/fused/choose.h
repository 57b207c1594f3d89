// Which kernel a batch takes, for who asks the library.
#pragma once

#include "run.h"

// What runs the loop of a program for `columns` batch columns, not packed, whose rows lie in pieces of 16 bytes: writes the
// kernel's name to `text` (of `size` bytes) and returns in how many launches (stepwise: of a step) it runs that many directions;
// 0 where no fused kernel runs them, -1 and the problem where that cannot be told.
extern "C" inline __attribute__((used, visibility("default"))) int32_t rnncc_choose_kernel(
    const char* program, const char* dtype, int64_t units, int64_t heads, int64_t columns, int32_t directions, int32_t device,
    char* text, int64_t size) {
  try {
    const rnncc::OnDevice current(device);
    const auto choices = [&](int64_t side_by_side) {
      return rnncc::fused_choices(program, dtype, units, side_by_side * heads, columns, heads == 1, device);
    };
    const std::vector<rnncc::FusedChoice> apart = choices(1);
    const std::vector<rnncc::FusedChoice> together = directions == 1 ? apart : rnncc::no_slower(choices(directions), apart);
    const std::vector<rnncc::FusedChoice>& chosen = together.empty() ? apart : together;
    std::snprintf(text, size_t(size), "%s", chosen.empty() ? "" : chosen[0].kernel->name.c_str());
    return chosen.empty() ? 0 : int32_t((together.empty() ? directions : 1) * chosen[0].share.launches());
  } catch (const std::exception& problem) {
    std::snprintf(text, size_t(size), "%s", problem.what());
    return -1;
  }
}
