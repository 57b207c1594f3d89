// Small products on the CPU: every thread of a launch runs (device.h).
#pragma once

#include "rnncc/cuda/step_products.h"
#include "rnncc/cuda/device.h"
#include "rnncc/cuda/scalar.cuh"
#include "rnncc/cuda/small_products.cuh"

namespace emulated {

template <class S>
void launch_small_products(const rnncc::SmallProductsCall& call, int64_t ctas) {
  const auto run = [](const void* given) {
    rnncc::run_small_products<S>(*static_cast<const rnncc::SmallProductsCall*>(given));
  };
  launch({int(ctas), 1, 1, rnncc::SMALL_THREADS, rnncc::SMALL_SHARED_BYTES, 7}, run, &call);
}

// Makes products of this type, and returns how many launches that took.
inline int64_t make_small_products(rnncc::StepProducts& products, rnncc_dtype dtype) {
  int64_t launches = 0;
  products.make({aoti_torch_device_type_cpu(), 0}, [&](rnncc::SmallProductsCall& call, int64_t ctas) {
    ++launches;
    (dtype == RNNCC_FLOAT32    ? launch_small_products<float>
     : dtype == RNNCC_BFLOAT16 ? launch_small_products<rnncc::bfloat16>
                               : launch_small_products<rnncc::float16>)(call, ctas);
  });
  return launches;
}

}  // namespace emulated
