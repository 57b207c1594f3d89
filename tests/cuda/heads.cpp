// A C function over rnncc/cuda/heads.h for tests: on the CPU's tensors, since all that it does is torch's.
#include "rnncc/cuda/heads.h"

using namespace rnncc;

// out [blocks, units, depth] with rows of `length`. 0, or 1 where torch refuses.
extern "C" int heads(float* out, int64_t length, float* a, int64_t a_column, float* b, int64_t b_column, int64_t blocks, int64_t units,
                     int64_t depth, int64_t rows) try {
  const Device cpu = {aoti_torch_device_type_cpu(), 0};
  multiply_heads(over(out, {blocks, units, depth}, {units * length, length, 1}, RNNCC_FLOAT32, cpu), {a, 0, a_column, RNNCC_FLOAT32},
                 {b, 0, b_column, RNNCC_FLOAT32}, blocks, units, depth, rows, cpu);
  return 0;
} catch (const std::exception&) {
  return 1;
}
