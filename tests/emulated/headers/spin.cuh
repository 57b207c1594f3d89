// In place of rnncc/cuda/spin.cuh: a wait that polls for too long ends the launch.
#pragma once

#include "scalar.cuh"

namespace rnncc {

struct Spin {
  int polls = 0;
  void poll() {
    if (++polls > 300000) emulated::fail("a poll finds nothing");
    emulated::let_others_run();
  }
};

}  // namespace rnncc
