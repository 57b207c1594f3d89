// Which steps of a call belong to a batch entry, and where its rows are. In packed tensors each entry has one row per
// step, and its rows follow each other.
#pragma once

#include "scalar.cuh"

namespace rnncc {

// `starts` [B + 1]: where each entry's rows begin, and where the last ones end; null where tensors are not packed.
// `count`: the number of all rows. `lengths` [B]: how many steps each entry has, where tensors are not packed; null:
// all steps.
struct Extents {
  const int64_t* starts;
  int64_t count;
  const int64_t* lengths;
};

// The rows of a batch entry. The loop begins at row `first` of a tensor, and there are rows for `steps` steps. The
// entry's own steps are the `active` ones from step `from` on.
struct OwnRows {
  int32_t first, steps, from, active;

  RNNCC_DEVICE bool is_active(int t) const { return uint32_t(t - from) < uint32_t(active); }
};

// The rows of an entry, at most `steps`. They exist, whatever numbers the caller gave.
RNNCC_DEVICE OwnRows own_rows(const Extents& extents, int64_t steps, bool descending, int entry) {
  const auto within = [](int64_t number, int64_t most) { return ::max(int64_t(0), ::min(number, most)); };
  if (!extents.starts) {
    const int32_t length = int32_t(extents.lengths ? within(__ldg(extents.lengths + entry), steps) : steps);
    return {entry, int32_t(steps), descending ? int32_t(steps) - length : 0, length};
  }
  const int64_t begin = within(__ldg(extents.starts + entry), extents.count),
                end = within(__ldg(extents.starts + entry + 1), extents.count);
  const int64_t own = within(end - begin, steps);
  // An entry without steps reads nothing, but its address must be the address of a row.
  const int64_t first = ::min(descending && own > 0 ? begin + own - 1 : begin, extents.count - 1);
  return {int32_t(first), int32_t(own), 0, int32_t(own)};
}

}  // namespace rnncc
