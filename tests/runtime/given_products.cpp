// The products that a loop of a GPU makes first, on the CPU.
#include "../emulated/small_products.h"

extern "C" {
int64_t launches_of_given_products = 0;

void make_given_products(const void* given, int32_t dtype) {
  rnncc::StepProducts products = *static_cast<const rnncc::StepProducts*>(given);
  launches_of_given_products += emulated::make_small_products(products, rnncc_dtype(dtype));
}
}
