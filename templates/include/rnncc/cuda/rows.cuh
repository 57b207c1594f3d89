// Operators across the units of a row (rnncc/ir/cell.py, RowOperator). One CTA works on a row, which is one batch
// entry.
#pragma once

#include "place.cuh"

namespace rnncc {

// Unit (p, n, d) of [parts, heads, depth] is at (p * heads + n) * depth + d; unit j of head n is (j / depth, n, j %
// depth).
struct RowLayout {
  int64_t parts, heads, depth;

  RNNCC_DEVICE int64_t units() const { return parts * depth; }
  RNNCC_DEVICE int64_t width() const { return parts * heads * depth; }
  RNNCC_DEVICE int64_t at(int64_t head, int64_t j) const {
    return heads == 1 ? j : (j / depth * heads + head) * depth + j % depth;
  }
  RNNCC_DEVICE int64_t head_of(int64_t unit) const { return unit / depth % heads; }
  RNNCC_DEVICE int64_t index_in_head(int64_t unit) const {
    return heads == 1 ? unit : unit / (heads * depth) * depth + unit % depth;
  }
};

template <int slot, class R>
RNNCC_DEVICE RowLayout layout_of(const R& run) {
  constexpr SlotInfo info = R::Program::tables.slots[slot];
  const int64_t width = run.plan.dims[info.width], heads = run.plan.heads;
  // A value of width 1 has one head, whatever the loop has.
  if (width == 1) return {1, 1, 1};
  return {info.parts, heads, width / (info.parts * heads)};
}

// The layout by which an operator takes a slot. Within the rows of a matrix, each row is what a head's units are. The
// operand of per_head has groups of units, which heads share: one lies behind the other.
template <int stage, int slot, class R>
RNNCC_DEVICE RowLayout layout_for(const R& run) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  constexpr int target = R::Program::tables.stage_slots[info.first_stored];
  if constexpr (info.row == RowOperator::per_head && slot != target) {
    const int64_t units = layout_of<target>(run).units();
    return {1, run.plan.dims[R::Program::tables.slots[slot].width] / units, units};
  }
  if constexpr (info.matrix_rows == 0) return layout_of<slot>(run);
  return {1, run.plan.dims[info.matrix_rows], run.plan.dims[info.matrix_columns] / run.plan.heads};
}

RNNCC_DEVICE float combine(RowOperator op, float a, float b) {
  if (op == RowOperator::max) return (a > b || a != a) ? a : b;
  return a + b;
}

// Combines the values of all threads, in a fixed order. Every thread gets the result. `scratch`: WARPS floats of shared
// memory.
RNNCC_DEVICE float reduce_threads(RowOperator op, float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(op, value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) value = combine(op, value, scratch[warp]);
  return value;
}

// `means`: the second operand of squares.
template <RowOperator op, int target, int source, int means, class R>
RNNCC_DEVICE void reduce_row(const R& run, int entry, float* scratch) {
  constexpr bool squares = op == RowOperator::squares || op == RowOperator::variance;

  const RowLayout to = layout_of<target>(run), from = layout_of<source>(run);
  const bool whole = to.heads == 1;  // a sum to one value runs over all heads
  const int64_t count = whole ? from.width() : from.units();
  for (int64_t head = 0; head < to.heads; ++head) {
    float total = op == RowOperator::max ? -__int_as_float(0x7f800000) : 0.0f, mean = 0.0f;
    if constexpr (squares) mean = load<means>(run, entry, head);
    for (int64_t j = threadIdx.x; j < count; j += THREADS) {
      const float value = load<source>(run, entry, whole ? j : from.at(head, j)) - mean;
      total = combine(op, total, squares ? value * value : value);
    }
    total = reduce_threads(op, total, scratch);
    if (op == RowOperator::mean || op == RowOperator::variance) total /= float(count);
    if (threadIdx.x == 0) store<target>(run, entry, head, total);
  }
}

template <int target, int source, class R>
RNNCC_DEVICE void scan_row(const R& run, const RowLayout& to, bool reversed, int entry) {
  const int64_t units = to.units();
  const int lane = threadIdx.x % 32;
  for (int64_t head = threadIdx.x / 32; head < to.heads; head += WARPS) {
    float carry = 0.0f;
    for (int64_t first = 0; first < units; first += 32) {
      const int64_t i = first + lane;
      const int64_t at = to.at(head, reversed ? units - 1 - i : i);
      float value = i < units ? load<source>(run, entry, at) : 0.0f;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, value, offset);
        if (lane >= offset) value += before;
      }
      value += carry;
      carry = __shfl_sync(0xffffffffu, value, 31);
      if (i < units) store<target>(run, entry, at, value);
    }
  }
}

// The value that unit j of a head of the target takes from the operand. `offset` counts units within a head.
template <RowOperator op, int source, class R>
RNNCC_DEVICE float moved(const R& run, const RowLayout& from, const RowLayout& to, int entry, int64_t head, int64_t j,
                         int64_t offset, int64_t times) {
  if constexpr (op == RowOperator::spread)
    return load<source>(run, entry, from.heads == 1 ? 0 : head) / float(to.units());
  if constexpr (op == RowOperator::slice) return load<source>(run, entry, from.at(head, offset + j));
  if constexpr (op == RowOperator::repeat) return load<source>(run, entry, from.at(head, j / times));
  if constexpr (op == RowOperator::pad) {
    const bool inside = j >= offset && j - offset < from.units();
    return inside ? load<source>(run, entry, from.at(head, j - offset)) : 0.0f;
  }
  if constexpr (op == RowOperator::roll)
    return load<source>(run, entry, from.at(head, ((j - times) % from.units() + from.units()) % from.units()));
  if constexpr (op == RowOperator::shift) {
    const bool inside = j >= times && j - times < from.units();
    return inside ? load<source>(run, entry, from.at(head, j - times)) : 0.0f;
  }
  if constexpr (op == RowOperator::per_head)
    return load<source>(run, entry, head * from.heads / to.heads * from.depth + j);
  if constexpr (op == RowOperator::segment_sum) {
    float total = 0.0f;
    for (int64_t i = 0; i < times; ++i) total += load<source>(run, entry, from.at(head, j * times + i));
    return total;
  }
  return 0.0f;
}

template <int target, int first, int count, class R>
RNNCC_DEVICE void concatenate(const R& run, int entry, int64_t offset) {
  if constexpr (count > 0) {
    constexpr int source = R::Program::tables.stage_slots[first];
    const RowLayout to = layout_of<target>(run), from = layout_of<source>(run);
    for (int64_t i = threadIdx.x; i < from.width(); i += THREADS) {
      const int64_t at = to.at(from.head_of(i), offset + from.index_in_head(i));
      store<target>(run, entry, at, load<source>(run, entry, i));
    }
    concatenate<target, first + 1, count - 1>(run, entry, offset + from.units());
  }
}

template <int stage, class R>
RNNCC_DEVICE void row_operation(const R& run, int entry, float* scratch) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  constexpr int target = R::Program::tables.stage_slots[info.first_stored],
                source = R::Program::tables.stage_slots[info.first_operand];
  constexpr RowOperator op = info.row;
  constexpr bool moves = op == RowOperator::roll || op == RowOperator::shift;
  const int64_t offset = run.plan.dims[info.offset] / run.plan.heads,
                times = moves ? run.plan.dims[info.offset] : info.times;
  if constexpr (op == RowOperator::sum || op == RowOperator::mean || op == RowOperator::max ||
                op == RowOperator::squares || op == RowOperator::variance) {
    constexpr int last = R::Program::tables.stage_slots[info.first_operand + info.operands - 1];
    reduce_row<op, target, source, last>(run, entry, scratch);
  } else if constexpr (op == RowOperator::cumsum || op == RowOperator::cumsum_reversed) {
    scan_row<target, source>(run, layout_for<stage, target>(run), op == RowOperator::cumsum_reversed, entry);
  } else if constexpr (op == RowOperator::concat) {
    concatenate<target, info.first_operand, info.operands>(run, entry, offset);
  } else {
    const RowLayout to = layout_for<stage, target>(run), from = layout_for<stage, source>(run);
    for (int64_t i = threadIdx.x; i < to.width(); i += THREADS) {
      const float value = moved<op, source>(run, from, to, entry, to.head_of(i), to.index_in_head(i), offset, times);
      store<target>(run, entry, i, value);
    }
  }
}

}  // namespace rnncc
