// What the functions of a matrix's elements are made of: a few rows side by side, and what rows and columns add up to.
#pragma once

#include "program.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// What the elements of a matrix's row add up to, lane by lane, before the first: 0, or what is less than any element.
template <class T, bool LARGEST>
RNNCC_INLINE Vec<T> nothing() {
  return broadcast(LARGEST ? -T(__builtin_inf()) : T(0));
}

template <bool LARGEST, class V>
RNNCC_INLINE V joined(V all, V value) {
  if constexpr (LARGEST) {
    return select((all > value) | (all != all), all, value);
  } else {
    return all + value;
  }
}

// Takes n elements of a row into `all`.
template <bool WHOLE, bool LARGEST, class V>
RNNCC_INLINE void join(V& all, V value, int64_t n) {
  using T = element<V>;
  if constexpr (!WHOLE) {
    T some[lanes<T>];
    store(some, nothing<T, LARGEST>());
    store_partial(some, value, n);
    value = load(some);
  }
  all = joined<LARGEST>(all, value);
}

// A number as a type, and a call with each number below one.
template <int VALUE>
struct Count {
  static constexpr int value = VALUE;
  constexpr operator int() const { return VALUE; }
};

template <int COUNT, class F>
RNNCC_INLINE void each(const F& f) {
  if constexpr (COUNT > 0) {
    each<COUNT - 1>(f);
    f(Count<COUNT - 1>());
  }
}

// Calls f for each row below ROWS: with a type for each where vectors are whole, else with a number. The end of a row
// would take as long to compile as all before it, and few matrices have one.
template <int ROWS, bool WHOLE, class F>
RNNCC_INLINE void each_row(const F& f) {
  if constexpr (WHOLE || ROWS == 1) {
    each<ROWS>(f);
  } else {
    for (int row = 0; row < ROWS; ++row) f(row);
  }
}

// The index of an element, as a number of its own. Else a compiler keeps a pointer for each row of each matrix, and has
// too few registers for them.
RNNCC_INLINE int64_t index_of(int64_t index) {
  asm("" : "+r"(index));
  return index;
}

// So many rows of a matrix are worked on side by side: what they read by columns is loaded once, and the sums of one do
// not wait for those of another.
constexpr int rows_at_once = 4;

// Calls f(Whole, u, n) for the elements u to u + n - 1 of a row, vector by vector.
template <class T, class F>
RNNCC_INLINE void each_vector(int64_t columns, const F& f) {
  int64_t u = 0;
  for (; u + lanes<T> <= columns; u += lanes<T>) f(Whole<true>(), u, lanes<T>);
  if (u < columns) f(Whole<false>(), u, columns - u);
}

// Calls f(Count<R>, i) for rows i to i + R - 1, until rows [begin, end) had their turn.
template <class F>
RNNCC_INLINE void each_few_rows(int64_t begin, int64_t end, const F& f) {
  int64_t i = begin;
  for (; i + rows_at_once <= end; i += rows_at_once) f(Count<rows_at_once>(), i);
  for (; i < end; ++i) f(Count<1>(), i);
}

// A vector for each of a few rows.
template <class T, int ROWS>
struct Rows {
  Vec<T> row[ROWS];
};

template <int ROWS, class T>
RNNCC_INLINE Rows<T, ROWS> broadcast_rows(const T* p) {
  Rows<T, ROWS> rows;
  each<ROWS>([&](auto r)
                 __attribute__((always_inline)) { rows.row[decltype(r)::value] = broadcast(p[decltype(r)::value]); });
  return rows;
}

template <class T, int ROWS, bool LARGEST>
RNNCC_INLINE Rows<T, ROWS> no_rows() {
  Rows<T, ROWS> rows;
  each<ROWS>([&](auto r) __attribute__((always_inline)) { rows.row[decltype(r)::value] = nothing<T, LARGEST>(); });
  return rows;
}

template <bool LARGEST, class V>
RNNCC_INLINE element<V> whole(V all) {
  if constexpr (!LARGEST) return horizontal_sum(all);
  element<V> result = all[0];
  for (int i = 1; i < lanes<element<V>>; ++i) result = (result > all[i] || result != result) ? result : all[i];
  return result;
}

// What a row adds up to does not depend on how many rows are beside it.
template <bool LARGEST, class T, int ROWS>
RNNCC_INLINE void put_rows(T* to, const Rows<T, ROWS>& rows) {
  if constexpr (!LARGEST) {
    T sums[rows_at_once];
    const Vec<T>* row = rows.row;
    static_assert(ROWS == 1 || ROWS == rows_at_once);
    horizontal_sums(sums, row[0], row[ROWS > 1 ? 1 : 0], row[ROWS > 1 ? 2 : 0], row[ROWS > 1 ? 3 : 0]);
    each<ROWS>([&](auto r) __attribute__((always_inline)) { to[decltype(r)::value] = sums[decltype(r)::value]; });
    return;
  }
  each<ROWS>([&](auto r) __attribute__((always_inline)) {
    to[decltype(r)::value] = whole<LARGEST>(rows.row[decltype(r)::value]);
  });
}

// Takes n elements of a row into what their columns add up to so far. `first`: there is no row before.
template <bool WHOLE, bool LARGEST, class V>
RNNCC_INLINE void join_row(element<V>* columns, int64_t u, V value, int64_t n, bool first) {
  put<WHOLE>(columns, u, first ? value : joined<LARGEST>(take<WHOLE>(columns, u, n), value), n);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
