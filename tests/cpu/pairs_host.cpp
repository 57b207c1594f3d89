// rnncc/cpu/pairs.h for tests: products of a few threads' parts, of factors packed from either side.

#include "rnncc/cpu/gemm.h"

using namespace rnncc;

extern "C" {

bool ready() { return amx_ready(); }
int64_t panels(int64_t n) { return panel_count<float>(n); }
int64_t elements(int64_t n, int64_t k) { return packed_elements<float>(n, k, true); }
void pack(float* data, int64_t n, int64_t k, const float* src, int64_t ld, int64_t column, int64_t count,
          bool by_output) {
  const Packed<float> b = {data, n, k, true};
  by_output ? pack_nk(b, src, ld, column, count) : pack_kn(b, src, ld, column, count);
}
void multiply(float* c, int64_t c_row, const float* a, int64_t a_row, float* data, int64_t n, int64_t k,
              int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end, const float* bias,
              bool accumulate) {
  gemm(c, c_row, a, a_row, Packed<float>{data, n, k, true}, row_begin, row_end, panel_begin, panel_end, bias,
       accumulate);
}
void multiply_as_they_lie(float* c, int64_t c_row, const uint16_t* a, int64_t a_row, float* data, int64_t n, int64_t k,
                          int64_t rows, int64_t panel_begin, int64_t panel_end, const float* bias) {
  gemm_of_pairs(c, c_row, a, a_row, Packed<float>{data, n, k, true}, rows, panel_begin, panel_end, bias);
}
// Both products one after the other, with shapes kept in between, and then none.
bool multiply_twice(float* c, const float* a, float* data, int64_t n, int64_t k, int64_t rows, float* other_c,
                    float* other_data, int64_t other_n) {
  {
    const KeepsShapes kept;
    gemm(c, n, a, k, Packed<float>{data, n, k, true}, int64_t(0), rows, int64_t(0), panel_count<float>(n),
         static_cast<const float*>(nullptr), false);
    gemm(other_c, other_n, a, k, Packed<float>{other_data, other_n, k, true}, int64_t(0), rows, int64_t(0),
         panel_count<float>(other_n), static_cast<const float*>(nullptr), false);
  }
  return set_shapes.shape == 0 && !set_shapes.are_kept;
}
int64_t scratch_elements(int64_t n) { return gemm_tn_scratch_elements<float>(n); }
void outer(float* c, int64_t c_row, const float* a, int64_t a_row, const float* x, int64_t x_row, int64_t n, int64_t k,
           int64_t row_begin, int64_t row_end, bool accumulate, float* scratch) {
  gemm_tn(c, c_row, a, a_row, x, x_row, n, k, row_begin, row_end, accumulate, scratch, true);
}

}  // extern "C"
