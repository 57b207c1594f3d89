// A C function over rnncc/cuda/heads.h for tests. It takes tensors of the CPU, since torch does all the work.
#include "rnncc/cuda/heads.h"

using namespace rnncc;

// out [heads, head_dim, depth] has rows of `length` elements. Returns 0, or 1 where torch refuses.
extern "C" int sums_of_heads(float* out, int64_t length, float* a, int64_t a_row, float* b, int64_t b_row, int64_t heads, int64_t head_dim,
                     int64_t depth, int64_t rows) try {
  const Device cpu = {aoti_torch_device_type_cpu(), 0};
  multiply_heads(over(out, {heads, head_dim, depth}, {head_dim * length, length, 1}, RNNCC_FLOAT32, cpu), {a, 0, a_row, RNNCC_FLOAT32},
                 {b, 0, b_row, RNNCC_FLOAT32}, heads, head_dim, depth, rows, cpu);
  return 0;
} catch (const std::exception&) {
  return 1;
}
