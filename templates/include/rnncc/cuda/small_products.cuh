// Makes small products (small_products_call.h) on the plain cores, with sums in float. A lane has a column of up to 16
// rows of `out`. Where few rows have many terms, the warps of a CTA divide the terms, and add up their sums at the end:
// the order of all sums is fixed.
#pragma once

#include "scalar.cuh"
#include "small_products_call.h"

namespace rnncc {

// The four elements from p on; zeros stand for those beyond `left`.
template <bool IN_FOURS>
RNNCC_DEVICE float4 load_four(const float* p, int left) {
  if constexpr (IN_FOURS) return *reinterpret_cast<const float4*>(p);
  return {p[0], left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f};
}
template <bool IN_FOURS, class S>
RNNCC_DEVICE float4 load_four(const S* p, int left) {
  if constexpr (IN_FOURS) {
    const uint2 bits = *reinterpret_cast<const uint2*>(p);
    const auto low = [](uint32_t pair) { return to_float(S{uint16_t(pair)}); };
    return {low(bits.x), low(bits.x >> 16), low(bits.y), low(bits.y >> 16)};
  }
  return {to_float(p[0]), left > 1 ? to_float(p[1]) : 0.0f, left > 2 ? to_float(p[2]) : 0.0f,
          left > 3 ? to_float(p[3]) : 0.0f};
}

// Writes an element of the product.
template <class S>
RNNCC_DEVICE void store_product(const SmallProduct& p, int64_t at, float sum) {
  if (p.is_float) {
    float* const to = static_cast<float*>(p.out) + at;
    *to = p.adds ? *to + sum : sum;
  } else {
    S* const to = static_cast<S*>(p.out) + at;
    *to = from_float<S>(p.adds ? to_float(*to) + sum : sum);
  }
}

// A tile of ROWS rows and 32 columns, of which each warp adds up some of the terms, 32 of them at a time.
template <class S, int ROWS, bool ACROSS, bool IN_FOURS>
RNNCC_DEVICE void few_rows(const SmallProduct& p, int first_row, int first_column, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = ::min(first_column + lane, p.n - 1), rows = p.m - first_row;
  const int each = (p.k + 4 * SMALL_WARPS - 1) / (4 * SMALL_WARPS) * 4;
  const int begin = ::min(warp * each, p.k), end = ::min(begin + each, p.k);
  const S* const a = static_cast<const S*>(p.a) + first_row * p.a_row;
  const S* const b = static_cast<const S*>(p.b) + (ACROSS ? column : column * p.b_row);
  float* const own = shared + warp * ROWS * 32;  // the warp's terms of a
  float sums[ROWS] = {};
  for (int first = begin; first < end; first += 32) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const bool exists = r < rows && first + lane < end;
      own[r * 32 + lane] = !exists ? 0.0f : ACROSS && !p.a ? 1.0f : to_float(a[r * p.a_row + first + lane]);
    }
    __syncwarp();
    const int terms = ::min(end - first, 32);
#pragma unroll 2
    for (int i = 0; i < terms; i += 4) {
      float4 y;
      if constexpr (ACROSS) {
        const auto term = [&](int j) { return i + j < terms ? to_float(b[(first + i + j) * p.b_row]) : 0.0f; };
        y = {term(0), term(1), term(2), term(3)};
      } else {
        y = load_four<IN_FOURS>(b + first + i, terms - i);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(own + r * 32 + i);
        sums[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) own[r * 32 + lane] = sums[r];
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * 32; i += SMALL_THREADS) {
    const int row = first_row + i / 32, own = first_column + i % 32;
    if (row >= p.m || own >= p.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < MOST_ADDED; ++b)
      if (p.biases[b]) sum += to_float(static_cast<const S*>(p.biases[b])[own]);
#pragma unroll
    for (int w = 0; w < SMALL_WARPS; ++w) sum += shared[w * ROWS * 32 + i];
    store_product<S>(p, row * p.out_row + own, sum);
  }
}

template <class S, int ROWS, bool IN_FOURS>
RNNCC_DEVICE void few_rows_of_form(const SmallProduct& p, int first_row, int first_column, float* shared) {
  if (p.form == SmallForm::across) return few_rows<S, ROWS, true, false>(p, first_row, first_column, shared);
  few_rows<S, ROWS, false, IN_FOURS>(p, first_row, first_column, shared);
}

// A warp's tile of 16 rows and 32 columns, with all terms.
template <class S, bool IN_FOURS>
RNNCC_DEVICE void few_terms(const SmallProduct& p, int first_row, int first_column) {
  if (first_row >= p.m) return;
  const int own = first_column + threadIdx.x % 32, column = ::min(own, p.n - 1);
  const S* a = static_cast<const S*>(p.a) + first_row;
  const S* b = static_cast<const S*>(p.b) + column;
  float4 sums[SMALL_ROWS / 4] = {};
  for (int k = 0; k < p.k; ++k, a += p.a_row, b += p.b_row) {
    const float y = to_float(*b);
#pragma unroll
    for (int r = 0; r < SMALL_ROWS / 4; ++r) {
      const int left = p.m - first_row - 4 * r;
      if (left <= 0) continue;
      const float4 x = load_four<IN_FOURS>(a + 4 * r, left);
      sums[r].x += x.x * y;
      sums[r].y += x.y * y;
      sums[r].z += x.z * y;
      sums[r].w += x.w * y;
    }
  }
  if (own >= p.n) return;
  const auto store = [&](int row, float sum) {
    if (row < p.m) store_product<S>(p, row * p.out_row + own, sum);
  };
#pragma unroll
  for (int r = 0; r < SMALL_ROWS / 4; ++r) {
    const int row = first_row + 4 * r;
    store(row, sums[r].x);
    store(row + 1, sums[r].y);
    store(row + 2, sums[r].z);
    store(row + 3, sums[r].w);
  }
}

template <class S, bool IN_FOURS>
RNNCC_DEVICE void small_product(const SmallProduct& p, int cta, float* shared) {
  if (p.form == SmallForm::outer) {
    const int tiles = (p.n + SMALL_COLUMNS - 1) / SMALL_COLUMNS;
    return few_terms<S, IN_FOURS>(p, (cta / tiles * SMALL_WARPS + threadIdx.x / 32) * SMALL_ROWS,
                                  cta % tiles * SMALL_COLUMNS);
  }
  // CTAs beside each other read the same weights.
  const int rows = rows_of_tile(p), tiles = (p.m + rows - 1) / rows;
  const int row = cta % tiles * rows, column = cta / tiles * SMALL_COLUMNS;
  if (rows == SMALL_ROWS) return few_rows_of_form<S, SMALL_ROWS, IN_FOURS>(p, row, column, shared);
  few_rows_of_form<S, SMALL_FEW_ROWS, IN_FOURS>(p, row, column, shared);
}

template <class S>
RNNCC_DEVICE void run_small_products(const SmallProductsCall& call) {
  extern __shared__ __align__(128) char shared[];
  int i = 0, cta = blockIdx.x;
  while (cta >= call.products[i].ctas) cta -= call.products[i++].ctas;
  const SmallProduct& p = call.products[i];
  if (p.in_fours) return small_product<S, true>(p, cta, reinterpret_cast<float*>(shared));
  small_product<S, false>(p, cta, reinterpret_cast<float*>(shared));
}

}  // namespace rnncc
