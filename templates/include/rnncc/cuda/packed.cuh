// Where the rows of packed tensors are: column after column, one a step.
#pragma once

#include "scalar.cuh"

namespace rnncc {

// `starts` [columns + 1]: where each column's rows begin, `count` in all; null where tensors are not packed.
struct PackedRows {
  const int64_t* starts;
  int64_t count;
};

// Of a batch column: the row of a tensor at which the loop begins, and how many steps it takes.
struct OwnRows {
  int32_t first, steps;
};

// Rows that there are, one for each of at most `steps` steps, whatever the caller's numbers are.
RNNCC_DEVICE OwnRows packed_rows(const PackedRows& rows, int64_t steps, bool descending, int column) {
  const auto within = [&](int64_t row) { return ::max(int64_t(0), ::min(row, rows.count)); };
  const int64_t begin = within(__ldg(rows.starts + column)), end = within(__ldg(rows.starts + column + 1));
  const int64_t own = ::max(int64_t(0), ::min(end - begin, steps));
  // A column without steps reads nothing, but its address is that of a row.
  const int64_t first = ::min(descending && own > 0 ? begin + own - 1 : begin, rows.count - 1);
  return {int32_t(first), int32_t(own)};
}

}  // namespace rnncc
