// What the tests call: the header library behind C functions, once for each level it is compiled for.
#include "rnncc/cpu/convert.h"
#include "rnncc/cpu/gemm.h"
#include "rnncc/cpu/lists.h"
#include "rnncc/cpu/math.h"
#include "rnncc/cpu/team.h"

using namespace rnncc;

namespace {

template <class T, class F>
void map1(T* y, const T* x, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += lanes<T>) store_upto(y + i, f(load_upto(x + i, n - i)), n - i);
}

template <class T, class F>
void map2(T* y, const T* a, const T* b, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += lanes<T>)
    store_upto(y + i, f(load_upto(a + i, n - i), load_upto(b + i, n - i)), n - i);
}

template <class T, class F>
void map3(T* y, const T* a, const T* b, const T* c, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; i += lanes<T>) {
    store_upto(y + i, f(load_upto(a + i, n - i), load_upto(b + i, n - i), load_upto(c + i, n - i)), n - i);
  }
}

}  // namespace

extern "C" {

#define UNARY(name)                                           \
  void name##_float(float* y, const float* x, int64_t n) {    \
    map1(y, x, n, [](auto v) { return rnncc::name(v); });     \
  }                                                           \
  void name##_double(double* y, const double* x, int64_t n) { \
    map1(y, x, n, [](auto v) { return rnncc::name(v); });     \
  }
#define BINARY(name)                                                           \
  void name##_float(float* y, const float* a, const float* b, int64_t n) {     \
    map2(y, a, b, n, [](auto v, auto w) { return rnncc::name(v, w); });        \
  }                                                                            \
  void name##_double(double* y, const double* a, const double* b, int64_t n) { \
    map2(y, a, b, n, [](auto v, auto w) { return rnncc::name(v, w); });        \
  }

#define TERNARY(name)                                                                           \
  void name##_float(float* y, const float* a, const float* b, const float* c, int64_t n) {      \
    map3(y, a, b, c, n, [](auto u, auto v, auto w) { return rnncc::name(u, v, w); });           \
  }                                                                                             \
  void name##_double(double* y, const double* a, const double* b, const double* c, int64_t n) { \
    map3(y, a, b, c, n, [](auto u, auto v, auto w) { return rnncc::name(u, v, w); });           \
  }

// The functions that the operator table names: host.py writes a line for each.
#include "functions.inc"
// Others that the headers have.
UNARY(expm1)

void clamp_numbers_float(float* y, const float* x, int64_t n, float low, float high) {
  map1(y, x, n, [=](auto v) { return clamp(v, low, high); });
}
void where_number_float(float* y, const float* c, const float* a, int64_t n) {
  map2(y, c, a, n, [](auto v, auto w) { return where(v, w, -1.0f); });
}
void cube_float(float* y, const float* x, int64_t n) {
  map1(y, x, n, [](auto v) { return powi<3>(v); });
}
float sum_float(const float* x, int64_t n) { return horizontal_sum(load_partial(x, n)); }
int64_t lanes_float() { return lanes<float>; }
int64_t lanes_double() { return lanes<double>; }

// `x`: four vectors, one after the other.
#define SUMS(T)                                                                                      \
  void sums_##T(T* y, const T* x) {                                                                  \
    horizontal_sums(y, load(x), load(x + lanes<T>), load(x + 2 * lanes<T>), load(x + 3 * lanes<T>)); \
  }
SUMS(float)
SUMS(double)

#define LISTS(T)                                                                                                 \
  uint32_t nonzero_bits_##T(const T* x, int64_t n) { return nonzero_bits(load_partial(x, n)); }                  \
  int64_t list_entries_##T() { return list_entries<T>; }                                                         \
  int64_t spread_width_##T(const T*, int64_t entries) { return spread_width<T>(entries); }                       \
  void lists_##T(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t entries, int64_t* begin, uint16_t* row, \
                 T* value, int64_t k, int64_t first, int64_t last, bool accumulate, T* room) {                   \
    if (entries > 1) spread(room, a, a_row, entries, k);                                                         \
    const ListTerm<T> terms[2] = {{{begin, row, value}, 0, entries > 1 ? room : a},                              \
                                  {{begin, row, value}, 1, entries > 1 ? room : a}};                             \
    multiply_lists(c, c_row, terms, int64_t(2), first, last, entries, accumulate);                               \
  }
LISTS(float)
LISTS(double)

#define PRODUCTS(T)                                                                                                   \
  int64_t packed_elements_##T(int64_t n, int64_t k) { return packed_elements<T>(n, k); }                              \
  int64_t panel_count_##T(int64_t n) { return panel_count<T>(n); }                                                    \
  void pack_nk_##T(T* data, int64_t n, int64_t k, const T* src, int64_t ld, int64_t column, int64_t count) {          \
    pack_nk(Packed<T>{data, n, k}, src, ld, column, count);                                                           \
  }                                                                                                                   \
  void pack_kn_##T(T* data, int64_t n, int64_t k, const T* src, int64_t ld, int64_t column, int64_t count) {          \
    pack_kn(Packed<T>{data, n, k}, src, ld, column, count);                                                           \
  }                                                                                                                   \
  void gemm_##T(T* c, int64_t c_row, const T* a, int64_t a_row, T* data, int64_t n, int64_t k, int64_t row_begin,     \
                int64_t row_end, int64_t panel_begin, int64_t panel_end, const T* bias, bool accumulate) {            \
    gemm(c, c_row, a, a_row, Packed<T>{data, n, k}, row_begin, row_end, panel_begin, panel_end, bias, accumulate);    \
  }                                                                                                                   \
  void gemm_direct_##T(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t rows, const T* w, int64_t ld,          \
                       int64_t n, int64_t k, const T* bias, bool accumulate) {                                        \
    gemm_direct(c, c_row, a, a_row, rows, w, ld, n, k, bias, accumulate);                                             \
  }                                                                                                                   \
  void gemm_once_##T(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t rows, const T* b, int64_t ld, int64_t n, \
                     int64_t k, const T* bias, bool accumulate, T* scratch, bool by_output) {                         \
    by_output ? gemm_once<true>(c, c_row, a, a_row, rows, b, ld, n, k, bias, accumulate, scratch)                     \
              : gemm_once<false>(c, c_row, a, a_row, rows, b, ld, n, k, bias, accumulate, scratch);                   \
  }                                                                                                                   \
  int64_t gemm_tn_scratch_elements_##T(int64_t n) { return gemm_tn_scratch_elements<T>(n); }                          \
  void gemm_tn_##T(T* c, int64_t c_row, const T* a, int64_t a_row, const T* x, int64_t x_row, int64_t n, int64_t k,   \
                   int64_t row_begin, int64_t row_end, bool accumulate, T* scratch) {                                 \
    gemm_tn(c, c_row, a, a_row, x, x_row, n, k, row_begin, row_end, accumulate, scratch, false);                      \
  }
PRODUCTS(float)
PRODUCTS(double)

void load_row_float(float* dst, const void* src, int64_t first, int64_t n, int32_t dtype) {
  load_row(dst, src, first, n, DType(dtype));
}
void store_row_float(void* dst, int64_t first, const float* src, int64_t n, int32_t dtype) {
  store_row(dst, first, src, n, DType(dtype));
}
void load_row_double(double* dst, const void* src, int64_t first, int64_t n, int32_t dtype) {
  load_row(dst, src, first, n, DType(dtype));
}
void store_row_double(void* dst, int64_t first, const double* src, int64_t n, int32_t dtype) {
  store_row(dst, first, src, n, DType(dtype));
}
}
