// Which steps of a call are a batch entry's, and where the rows of packed tensors are: entry after entry, one a step.
#pragma once

#include "scalar.cuh"

namespace rnncc {

// `starts` [entries + 1]: where each entry's rows begin, `count` in all; null where tensors are not packed.
// `lengths` [entries]: of tensors that are not packed, how many steps each entry has; null: all.
struct Extents {
  const int64_t* starts;
  int64_t count;
  const int64_t* lengths;
};

// Of a batch entry: the row of a tensor at which the loop begins, and for how many steps there are rows. Of these, `active`
// from `from` on are the entry's own.
struct OwnRows {
  int32_t first, steps, from, active;

  RNNCC_DEVICE bool is_active(int t) const { return uint32_t(t - from) < uint32_t(active); }
};

// Rows that there are, one for each of at most `steps` steps, whatever the caller's numbers are.
RNNCC_DEVICE OwnRows own_rows(const Extents& extents, int64_t steps, bool descending, int entry) {
  const auto within = [](int64_t number, int64_t most) { return ::max(int64_t(0), ::min(number, most)); };
  if (!extents.starts) {
    const int32_t length = int32_t(extents.lengths ? within(__ldg(extents.lengths + entry), steps) : steps);
    return {entry, int32_t(steps), descending ? int32_t(steps) - length : 0, length};
  }
  const int64_t begin = within(__ldg(extents.starts + entry), extents.count), end = within(__ldg(extents.starts + entry + 1), extents.count);
  const int64_t own = within(end - begin, steps);
  // A entry without steps reads nothing, but its address is that of a row.
  const int64_t first = ::min(descending && own > 0 ? begin + own - 1 : begin, extents.count - 1);
  return {int32_t(first), int32_t(own), 0, int32_t(own)};
}

}  // namespace rnncc
