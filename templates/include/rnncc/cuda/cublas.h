// Products by cuBLAS itself: torch's mm takes the host as long as some launches. They use the handle that torch has for the
// thread, so that torch's switch for TF32 holds.
#pragma once

#include "module.h"

// A function of torch with CUDA support since 2.10 (torch/csrc/stable/c/shim.h), and functions of the cuBLAS that comes
// with torch (cublas_api.h).
extern "C" {
__attribute__((weak)) int32_t torch_get_current_cuda_blas_handle(void** handle);
__attribute__((weak)) int cublasSetStream_v2(void* handle, rnncc::CUstream stream);
__attribute__((weak)) int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes);
__attribute__((weak)) int cublasGemmEx(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
                                       const void* alpha, const void* a, int type_a, int lda, const void* b, int type_b,
                                       int ldb, const void* beta, void* c, int type_c, int ldc, int compute,
                                       int algorithm);
}

namespace rnncc {

// The numbers of these in library_types.h and cublas_api.h.
constexpr int CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14;
constexpr int CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1;

inline void check_cublas(int code, const char* what) {
  if (code != 0) fail(std::string(what) + ": cuBLAS says " + std::to_string(code));
}

// cuBLAS for the current device and thread, on the stream that torch uses now. Nothing has to be put back after `use`: torch
// sets the stream anew whenever it takes the handle, and that also ends the use of a workspace.
class Cublas {
 public:
  // NVIDIA recommends so much from Hopper on.
  static constexpr int64_t WORKSPACE_BYTES = 32 << 20;

  // Whether this process has these functions. It does not where torch is linked to cuBLAS statically.
  static bool exists() {
    return torch_get_current_cuda_blas_handle && cublasSetStream_v2 && cublasSetWorkspace_v2 && cublasGemmEx;
  }

  Cublas() { RNNCC_TORCH(torch_get_current_cuda_blas_handle(&handle_)); }

  // From now on products go to this stream, and use WORKSPACE_BYTES at `workspace`. Each stream gets the same number of
  // bytes, since cuBLAS may add up sums in another order where it has fewer.
  void use(CUstream stream, void* workspace) {
    check_cublas(cublasSetStream_v2(handle_, stream), "setting the stream");
    check_cublas(cublasSetWorkspace_v2(handle_, workspace, size_t(WORKSPACE_BYTES)), "setting the workspace");
  }

  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// out [m][n] = a [m][k] b [k][n], of floats from operands of one type.
struct FloatProduct {
  // A matrix as it lies in memory: `row` elements from a row to the next. Where it is `transposed`, memory has the rows of
  // its transpose.
  struct Matrix {
    const void* data;
    int64_t row;
    bool transposed;

    // Whether cuBLAS takes it: rows follow each other, and do not overlap.
    bool fits(int rows, int columns) const {
      const int length = transposed ? rows : columns;
      return has_one_row(rows, columns) || (row >= length && row <= INT32_MAX);
    }
    // What cuBLAS calls the leading dimension.
    int leading_dimension(int rows, int columns) const {
      return has_one_row(rows, columns) ? (transposed ? rows : columns) : int(row);
    }
    // Whether memory has one row; then it does not matter where another one would begin.
    bool has_one_row(int rows, int columns) const { return (transposed ? columns : rows) == 1; }
  };

  bool fits() const { return a.fits(m, k) && b.fits(k, n) && Matrix{out, out_row, false}.fits(m, n); }

  // cuBLAS takes matrices column by column, so it sees all of them transposed.
  void run(const Cublas& cublas) const {
    const int type = dtype == RNNCC_FLOAT32 ? CUDA_R_32F : dtype == RNNCC_FLOAT16 ? CUDA_R_16F : CUDA_R_16BF;
    const float one = 1.0f, zero = 0.0f;
    const auto as = [](const Matrix& matrix) { return matrix.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    check_cublas(
        cublasGemmEx(cublas.handle(), as(b), as(a), n, m, k, &one, b.data, type, b.leading_dimension(k, n), a.data,
                     type, a.leading_dimension(m, k), &zero, out, CUDA_R_32F,
                     Matrix{out, out_row, false}.leading_dimension(m, n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a product");
  }

  int m, n, k;
  Matrix a, b;
  float* out;
  int64_t out_row;
  rnncc_dtype dtype;  // of a and b
};

}  // namespace rnncc
