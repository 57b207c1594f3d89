// C functions over rnncc/cuda/small_products.cuh for tests, on the CPU.
#include "../emulated/small_products.h"

using namespace rnncc;

// `numbers` of each of `count` products: the form, m, n, k, the elements from a row to the next of a, b and out, whether
// out has floats, whether the product is added. `places` of each: a, b, out, and two biases. Returns the number of launches.
extern "C" int64_t small_products(void** places, const int64_t* numbers, int64_t count, int32_t dtype) {
  StepProducts products;
  const rnncc_dtype type = rnncc_dtype(dtype);
  for (int64_t i = 0; i < count; ++i, places += 5, numbers += 9) {
    const rnncc_dtype of_out = numbers[7] ? RNNCC_FLOAT32 : type;
    products.add(SmallForm(numbers[0]), {numbers[1], numbers[2], numbers[3]}, {places[2], 0, numbers[6], of_out},
                 {places[0], 0, numbers[4], type}, {places[1], 0, numbers[5], type},
                 {bool(numbers[8]), {places[3], places[4]}});
  }
  return emulated::make_small_products(products, type);
}

// The products that a loop of a GPU makes first.
extern "C" {
int64_t launches_of_given_products = 0;

void make_given_products(const void* given, int32_t dtype) {
  StepProducts products = *static_cast<const StepProducts*>(given);
  launches_of_given_products += emulated::make_small_products(products, rnncc_dtype(dtype));
}
}
