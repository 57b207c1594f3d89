// A C function over rnncc/cuda/head_products.cuh for tests, on the CPU: every thread of a launch runs (device.h), in
// place of the kernels of templates/cuda/heads.cu.j2.
#include "rnncc/cuda/heads.h"
#include "rnncc/cuda/device.h"
#include "rnncc/cuda/head_products.cuh"

namespace {

using namespace rnncc;

template <class Call, void (*kernel)(const Call&)>
void launch(const Call& call, int64_t ctas, int threads, int shared, uint64_t seed) {
  const auto run = [](const void* given) { kernel(*static_cast<const Call*>(given)); };
  emulated::launch({int(ctas), 1, 1, threads, shared, seed}, run, &call);
}

template <class S>
HeadProductCall run(const HeadsProduct& p, int64_t ctas_at_once, uint64_t seed) {
  HeadProductCall call = heads::call_of(p, p.pieces[0], ctas_at_once);
  std::vector<float> sums(call.slices * heads::elements(p), NAN);
  call.sums = sums.data();
  const int columns = heads::columns_of_tile(p);
  (columns == 64 ? launch<HeadProductCall, head_products<S, 64>>
                 : launch<HeadProductCall, head_products<S, 128>>)(call, heads::ctas(call), HEAD_PRODUCT_THREADS,
                                                                   head_product_shared(columns), seed);
  const HeadSumCall sum = {call.sums, p.out, heads::elements(p), call.slices};
  launch<HeadSumCall, head_sums<S>>(sum, heads::divide_up(sum.count, 4 * HEAD_SUM_THREADS), HEAD_SUM_THREADS, 16, seed);
  return call;
}

}  // namespace

// `numbers`: elements from a row of a to the next, the same of b, rows, heads, parts, head_dim, terms, depth, CTAs at
// once, and the seed. `shared` gets the number of slices, the rows of each, and whether the kernel takes the operands.
// Returns what went wrong, or null.
extern "C" const char* head_products(void* a, void* b, void* out, const int64_t* numbers, int32_t is_bf16,
                                     int64_t* shared) {
  static std::string problem;
  const rnncc_dtype dtype = is_bf16 ? RNNCC_BFLOAT16 : RNNCC_FLOAT16;
  const HeadsProduct p = {{{{a, 0, numbers[0], dtype}, {b, 0, numbers[1], dtype}, numbers[2]}},
                          out,
                          dtype,
                          numbers[3],
                          numbers[4],
                          numbers[5],
                          numbers[6],
                          numbers[7]};
  try {
    const HeadProductCall call = (is_bf16 ? run<bfloat16> : run<float16>)(p, numbers[8], uint64_t(numbers[9]));
    shared[0] = call.slices;
    shared[1] = call.slice_rows;
    shared[2] = heads::has_kernel(p, {aoti_torch_device_type_cuda(), 0});
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
  return nullptr;
}
