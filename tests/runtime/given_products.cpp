// The products that a loop of a GPU makes first, on the CPU: every thread of a launch runs (device.h).
#include "rnncc/cuda/step_products.h"
#include "rnncc/cuda/device.h"
#include "rnncc/cuda/scalar.cuh"
#include "rnncc/cuda/small_products.cuh"

namespace {

using namespace rnncc;

template <class S>
void launch(const SmallProductsCall& call, int64_t ctas) {
  const auto run = [](const void* given) { run_small_products<S>(*static_cast<const SmallProductsCall*>(given)); };
  emulated::launch({int(ctas), 1, 1, SMALL_THREADS, SMALL_SHARED_BYTES, 7}, run, &call);
}

}  // namespace

extern "C" {
int64_t launches_of_given_products = 0;

void make_given_products(const void* given, int32_t dtype) {
  StepProducts products = *static_cast<const StepProducts*>(given);
  products.make({aoti_torch_device_type_cpu(), 0}, [&](SmallProductsCall& call, int64_t ctas) {
    ++launches_of_given_products;
    (dtype == RNNCC_FLOAT32    ? launch<float>
     : dtype == RNNCC_BFLOAT16 ? launch<bfloat16>
                               : launch<float16>)(call, ctas);
  });
}
}
