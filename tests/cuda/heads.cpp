// A C function over rnncc/cuda/heads.h for tests. It takes tensors of the CPU, since torch does all the work.
#include "rnncc/cuda/heads.h"

using namespace rnncc;

// out [parts, heads, head_dim, terms, depth]. Returns 0, or 1 where torch refuses.
extern "C" int sums_of_heads(float* out, float* a, int64_t a_row, float* b, int64_t b_row, int64_t rows, int64_t heads,
                             int64_t parts, int64_t head_dim, int64_t terms, int64_t depth) try {
  const Device cpu = {aoti_torch_device_type_cpu(), 0};
  multiply_heads({{{{a, 0, a_row, RNNCC_FLOAT32}, {b, 0, b_row, RNNCC_FLOAT32}, rows}},
                  out,
                  RNNCC_FLOAT32,
                  heads,
                  parts,
                  head_dim,
                  terms,
                  depth},
                 cpu);
  return 0;
} catch (const std::exception&) {
  return 1;
}
