// The second factor of a product, packed for the micro kernel (gemm.h).
//
// B is packed once into panels and then used many times: a recurrent weight at every step. A panel holds
// `panel_columns<T>` columns, which are 4 vectors (AVX-512) or 2 vectors (AVX2, SSE2). It is stored as [k][columns] and
// padded with zeros. Where the columns left over fit one vector, the last panel is one vector wide.
//
// A panel of pairs (pairs.h) holds two rows of B in one: its element is two bfloat16 numbers, of rows 2k and 2k + 1. There
// are as many rows of zeros after B's that the matrix unit needs no rest.
#pragma once

#include "amx.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

constexpr int panel_vectors = RNNCC_ISA_LEVEL == 4 ? 4 : 2;

// How many columns a full panel has.
template <class T>
constexpr int64_t panel_columns = panel_vectors * lanes<T>;

// B in panels. `data` is the caller's and has packed_elements of them, best aligned to 64 bytes.
template <class T>
struct Packed {
  T* data;
  int64_t n;  // columns
  int64_t k;  // rows
  bool pairs = false;
};

// How many terms a row has that is read as pairs: zeros follow the row's own.
RNNCC_INLINE int64_t stored_terms(int64_t k) { return (k + amx_terms - 1) / amx_terms * amx_terms; }

// How many rows panels of k rows of B have.
RNNCC_INLINE int64_t stored_rows(int64_t k, bool pairs) { return pairs ? stored_terms(k) / 2 : k; }

// How many panels n columns make.
template <class T>
RNNCC_INLINE int64_t panel_count(int64_t n) {
  return (n + panel_columns<T> - 1) / panel_columns<T>;
}

// How many columns the panels of n columns hold: n, and the padding.
template <class T>
RNNCC_INLINE int64_t padded_columns(int64_t n) {
  const int64_t full = n / panel_columns<T> * panel_columns<T>;
  const int64_t rest = n - full;
  return full + (rest == 0 ? 0 : rest <= lanes<T> ? lanes<T> : panel_columns<T>);
}

// How many elements Packed<T>{data, n, k, pairs}.data must have.
template <class T>
RNNCC_INLINE int64_t packed_elements(int64_t n, int64_t k, bool pairs = false) {
  return padded_columns<T>(n) * stored_rows(k, pairs);
}

// Where panel p starts.
template <class T>
RNNCC_INLINE T* panel_data(const Packed<T>& b, int64_t p) {
  return b.data + p * panel_columns<T> * stored_rows(b.k, b.pairs);
}

// How many columns panel p holds: those of a full panel, or one vector.
template <class T>
RNNCC_INLINE int64_t panel_width(const Packed<T>& b, int64_t p) {
  const int64_t rest = b.n - p * panel_columns<T>;
  return rest <= lanes<T> ? lanes<T> : panel_columns<T>;
}

// Sets dst[j * dst_stride + i] = src[i * src_stride + j] for i < rows, j < columns, in squares of vectors.
template <class T>
static void transpose_into(T* dst, int64_t dst_stride, const T* src, int64_t src_stride, int64_t rows,
                           int64_t columns) {
  constexpr int S = lanes<T>;
  int64_t i = 0;
  for (; i + S <= rows; i += S) {
    int64_t j = 0;
    for (; j + S <= columns; j += S) {
      Vec<T> block[S];
      RNNCC_UNROLL
      for (int r = 0; r < S; ++r) block[r] = load(src + (i + r) * src_stride + j);
      transpose<T>(block);
      RNNCC_UNROLL
      for (int c = 0; c < S; ++c) store(dst + (j + c) * dst_stride + i, block[c]);
    }
    for (; j < columns; ++j) {
      for (int r = 0; r < S; ++r) dst[j * dst_stride + i + r] = src[(i + r) * src_stride + j];
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) dst[j * dst_stride + i] = src[i * src_stride + j];
  }
}

// Sets dst[t * dst_stride + i] = (src[i * src_stride + 2t], src[i * src_stride + 2t + 1]) for i < columns, and for as many t
// as panels of `terms` terms have rows.
static inline void pair_into(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t columns,
                             int64_t terms) {
  constexpr int L = lanes<float>;
  for (int64_t t = 0; t < stored_terms(terms); t += 2 * L) {
    for (int64_t i = 0; i < columns; i += L) {
      Vec<float> block[L];
      for (int r = 0; r < L; ++r)
        block[r] = i + r < columns ? rounded_upto(src + (i + r) * src_stride + t, terms - t) : Vec<float>{};
      transpose<float>(block);
      for (int r = 0; r < L; ++r) store_upto(dst + (t / 2 + r) * dst_stride + i, block[r], columns - i);
    }
  }
}

template <class T>
RNNCC_INLINE void zero_columns(T* panel, int64_t width, int64_t rows, int64_t from) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = from; c < width; ++c) panel[row * width + c] = T(0);
  }
}

// Fills columns [column, column + count) of b from src[count, k], which has contiguous rows, ld elements apart: a torch
// weight [out, in] as the factor of x * W^T. Several calls may fill one b, in any order and at the same time; each gate
// of a tile's units has a call of its own. The call that writes column n - 1 also writes the padding.
template <class T>
static void pack_nk(const Packed<T>& b, const T* src, int64_t ld, int64_t column, int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t p = (column + done) / panel_columns<T>;
    const int64_t offset = (column + done) % panel_columns<T>;
    const int64_t width = panel_width(b, p);
    const int64_t step = count - done < width - offset ? count - done : width - offset;
    T* out = panel_data(b, p) + offset;
    if constexpr (sizeof(T) == 4) {
      if (b.pairs)
        pair_into(out, width, src + done * ld, ld, step, b.k);
      else
        transpose_into(out, width, src + done * ld, ld, step, b.k);
    } else {
      transpose_into(out, width, src + done * ld, ld, step, b.k);
    }
    done += step;
    if (column + done == b.n && offset + step < width)
      zero_columns(panel_data(b, p), width, stored_rows(b.k, b.pairs), offset + step);
  }
}

// The same from src[k, count], which has contiguous rows, ld elements apart: a torch weight as the factor of dG * W, or
// a sequence as the factor of dG^T * X.
template <class T>
static void pack_kn(const Packed<T>& b, const T* src, int64_t ld, int64_t column, int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t p = (column + done) / panel_columns<T>;
    const int64_t offset = (column + done) % panel_columns<T>;
    const int64_t width = panel_width(b, p);
    const int64_t step = count - done < width - offset ? count - done : width - offset;
    T* out = panel_data(b, p) + offset;
    const T* in = src + done;
    if (b.pairs) {
      if constexpr (sizeof(T) == 4) {
        for (int64_t row = 0; row < stored_rows(b.k, true); ++row) {
          for (int64_t c = 0; c < step; c += lanes<T>)
            store_upto(out + row * width + c, pair_of_rows(in + c, ld, 2 * row, b.k, step - c), step - c);
        }
      }
    } else if (step == panel_columns<T>) {
      for (int64_t row = 0; row < b.k; ++row) {
        RNNCC_UNROLL
        for (int v = 0; v < panel_vectors; ++v)
          store(out + row * width + v * lanes<T>, load(in + row * ld + v * lanes<T>));
      }
    } else {
      for (int64_t row = 0; row < b.k; ++row) {
        for (int64_t c = 0; c < step; c += lanes<T>) {
          store_upto(out + row * width + c, load_upto(in + row * ld + c, step - c), step - c);
        }
      }
    }
    done += step;
    if (column + done == b.n && offset + step < width)
      zero_columns(panel_data(b, p), width, stored_rows(b.k, b.pairs), offset + step);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
