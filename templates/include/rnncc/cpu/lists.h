// Products with matrices of which most elements are zero: C[entries, units] = A[entries, k] * M[units, k]^T (+ C).
//
// M is kept as a list for each unit: the elements of its row that are not zero, each with the row of its operand. The
// batch entries are the axis of vectors: operands lie as [k, entries]. So one instruction multiplies an element by a
// vector of entries, and nothing is gathered. What a list leaves out is not read: 0 * NaN counts as 0.
//
// A list is summed in four parts, element i in part i % 4, and these parts are added as (0 + 1) + (2 + 3). So results
// do not depend on the number of threads, but they may differ from those of gemm.h in the last bits.
#pragma once

#include "vec.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A list names the rows of operands in 16 bits.
constexpr int64_t most_list_rows = 1 << 16;

// How many vectors of entries are multiplied at a time.
constexpr int64_t list_vectors = 2;

// How many batch entries go through a list at a time.
template <class T>
constexpr int64_t list_entries = list_vectors * lanes<T>;

// Spreading an operand is writing it as [k, entries]. A thread spreads the operands of so many entries and takes them
// through all its lists, before it spreads those of the next.
template <class T>
constexpr int64_t spread_entries = 4 * list_entries<T>;

// Unit u has elements [begin[u], begin[u + 1]).
template <class T>
struct Lists {
  int64_t* begin;
  uint16_t* row;
  T* value;
};

// What a product adds to sums: units [unit, ...) of `lists` times an operand [k, width]. Several such terms are summed
// in one go.
template <class T>
struct ListTerm {
  Lists<T> lists;
  int64_t unit;
  const T* operand;
};

// How many columns an operand of so many entries, list_entries at most, has in memory: 1, or whole vectors. The
// smallest vector has 16 bytes.
template <class T>
RNNCC_INLINE int64_t list_width(int64_t entries) {
  if (entries == 1) return 1;
  int64_t width = 16 / int64_t(sizeof(T));
  while (width < entries) width *= 2;
  return width;
}

// How many elements one row of an operand has in memory, for any number of entries.
template <class T>
RNNCC_INLINE int64_t spread_width(int64_t entries) {
  const int64_t rest = entries % list_entries<T>;
  return entries - rest + (rest ? list_width<T>(rest) : 0);
}

// A vector of WIDTH entries; one entry is a number.
template <class T, int WIDTH>
struct Entries {
  typedef T type __attribute__((vector_size(WIDTH * sizeof(T))));
  typedef T unaligned __attribute__((vector_size(WIDTH * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T>
struct Entries<T, 1> {
  typedef T type;
  typedef T unaligned;
};

// Writes a[entries, k], whose rows are a_row elements apart, as out[k, WIDTH * VECTORS]. Entries that are not there are
// zero.
template <class T, int WIDTH, int VECTORS>
static void spread_operand(T* out, const T* a, int64_t a_row, int64_t entries, int64_t k) {
  constexpr int L = lanes<T>;
  typedef typename Entries<T, WIDTH>::unaligned Out;
  for (int v = 0; v < VECTORS; ++v) {
    const int64_t first = v * WIDTH, count = entries - first < L ? entries - first : L;
    for (int64_t term = 0; term < k; term += L) {
      const int64_t rest = k - term;
      Vec<T> block[L] = {};
      for (int64_t e = 0; e < count; ++e) block[e] = load_upto(a + (first + e) * a_row + term, rest);
      transpose<T>(block);
      T* to = out + term * WIDTH * VECTORS + first;
      for (int64_t t = 0; t < L && t < rest; ++t) {
        *reinterpret_cast<Out*>(to + t * WIDTH * VECTORS) = *reinterpret_cast<const Out*>(&block[t]);
      }
    }
  }
}

// Writes the sums of units [begin, end) of all terms as out[end - begin, WIDTH * VECTORS].
template <class T, int WIDTH, int VECTORS>
static __attribute__((noinline)) void sum_lists(T* out, const ListTerm<T>* terms, int64_t count, int64_t begin,
                                                int64_t end) {
  constexpr int PARTS = 4;
  typedef typename Entries<T, WIDTH>::type V;
  typedef typename Entries<T, WIDTH>::unaligned Unaligned;
  for (int64_t unit = begin; unit < end; ++unit) {
    V sum[PARTS][VECTORS] = {};
    for (int64_t i = 0; i < count; ++i) {
      const ListTerm<T>& term = terms[i];
      const int64_t last = term.lists.begin[term.unit + unit + 1];
      const uint16_t* row = term.lists.row;
      const T* value = term.lists.value;
      const T* operand = term.operand;
      int64_t at = term.lists.begin[term.unit + unit];
      for (; at + PARTS <= last; at += PARTS) {
        RNNCC_UNROLL
        for (int p = 0; p < PARTS; ++p) {
          const T* x = operand + int64_t(row[at + p]) * (WIDTH * VECTORS);
          RNNCC_UNROLL
          for (int v = 0; v < VECTORS; ++v)
            sum[p][v] += value[at + p] * *reinterpret_cast<const Unaligned*>(x + v * WIDTH);
        }
      }
      RNNCC_UNROLL
      for (int p = 0; p < PARTS - 1; ++p) {
        if (at + p >= last) break;
        const T* x = operand + int64_t(row[at + p]) * (WIDTH * VECTORS);
        RNNCC_UNROLL
        for (int v = 0; v < VECTORS; ++v)
          sum[p][v] += value[at + p] * *reinterpret_cast<const Unaligned*>(x + v * WIDTH);
      }
    }
    RNNCC_UNROLL
    for (int v = 0; v < VECTORS; ++v) {
      *reinterpret_cast<Unaligned*>(out + ((unit - begin) * VECTORS + v) * WIDTH) =
          (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
    }
  }
}

// Writes units [begin, end) of the sum of terms for batch entries [0, entries), list_entries at most, to
// out[entries, units] (+ out if accumulate), whose rows are out_row elements apart.
template <class T, int WIDTH, int VECTORS>
static void multiply_lists_of(T* out, int64_t out_row, const ListTerm<T>* terms, int64_t count, int64_t begin,
                              int64_t end, int64_t entries, bool accumulate) {
  constexpr int L = lanes<T>;
  // Blocks of L units, which are then transposed. The last rows are read as whole vectors.
  T sums[L * WIDTH * VECTORS + L] = {};
  for (int64_t unit = begin; unit < end; unit += L) {
    const int64_t units = end - unit < L ? end - unit : L;
    sum_lists<T, WIDTH, VECTORS>(sums, terms, count, unit, unit + units);
    T* to = out + unit - begin;
    if constexpr (WIDTH == 1) {
      const Vec<T> r = load(sums);
      store_upto(to, accumulate ? r + load_upto(to, units) : r, units);
      continue;
    }
    for (int64_t v = 0; v < VECTORS; ++v) {
      Vec<T> block[L];
      RNNCC_UNROLL
      for (int u = 0; u < L; ++u) block[u] = load(sums + (u * VECTORS + v) * WIDTH);
      transpose<T>(block);
      for (int64_t e = 0; e < WIDTH && v * WIDTH + e < entries; ++e) {
        T* row = to + (v * WIDTH + e) * out_row;
        store_upto(row, accumulate ? block[e] + load_upto(row, units) : block[e], units);
      }
    }
  }
}

template <int VALUE>
struct Number {
  static constexpr int value = VALUE;
};

// Calls f(width, vectors), two Numbers, for an operand of so many entries, list_entries at most.
template <class T, class F>
RNNCC_INLINE void with_list_width(int64_t entries, const F& f) {
  constexpr int L = lanes<T>;
  constexpr int least = 16 / int(sizeof(T));
  const int64_t width = list_width<T>(entries);
  if (width == 1) return f(Number<1>(), Number<1>());
  if (width > L) return f(Number<L>(), Number<list_vectors>());
  if constexpr (least < L) {
    if (width == least) return f(Number<least>(), Number<1>());
  }
  if constexpr (2 * least < L) {
    if (width == 2 * least) return f(Number<2 * least>(), Number<1>());
  }
  return f(Number<L>(), Number<1>());
}

// Spreads `entries` rows of k elements, list_entries at most.
template <class T>
static void spread(T* out, const T* a, int64_t a_row, int64_t entries, int64_t k) {
  with_list_width<T>(entries, [&](auto width, auto vectors) {
    spread_operand<T, decltype(width)::value, decltype(vectors)::value>(out, a, a_row, entries, k);
  });
}

// multiply_lists_of, for as many entries as there are, list_entries at most.
template <class T>
static void multiply_lists(T* out, int64_t out_row, const ListTerm<T>* terms, int64_t count, int64_t begin, int64_t end,
                           int64_t entries, bool accumulate) {
  with_list_width<T>(entries, [&](auto width, auto vectors) {
    multiply_lists_of<T, decltype(width)::value, decltype(vectors)::value>(out, out_row, terms, count, begin, end,
                                                                           entries, accumulate);
  });
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
