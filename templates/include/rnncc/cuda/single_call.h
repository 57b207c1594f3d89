// The parameter of a kernel that runs one step: the host writes it (single.h), and the device reads it (single.cuh).
// Sizes of all members are multiples of eight bytes, so that the arrays follow each other without gaps.
#pragma once

#include "arguments.h"

namespace rnncc {

// Where the sums of an accumulator are: floats [parts][B, row], of which its own begin at `base`. What it stands for is
// the sum of the parts.
struct SumPlace {
  const float* base;
  int64_t row, part;  // in floats
  int64_t parts;
};

// The biases that are added to a slot, which is read from a stream; null where there is none.
constexpr int MOST_BIASES = 2;
struct BiasPlace {
  const void* base[MOST_BIASES];
};

// The slots before one that are read from streams.
constexpr int streams_before(const Tables& tables, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += is_stream(tables.slots[s]);
  return count;
}

// The accumulators of all stages before one.
constexpr int accumulators_before(const Tables& tables, int stage) {
  int count = 0;
  for (int s = 0; s < stage; ++s) count += tables.stages[s].accumulators;
  return count;
}

// The number of the launch that runs a stage. A launch ends where a stage waits for other threads, or gives each row to
// a CTA.
constexpr int launch_of(const Tables& tables, int stage) {
  int launch = 0;
  for (int s = 1; s <= stage; ++s)
    launch += tables.stages[s].barrier || tables.stages[s].row != RowOperator::none ||
              tables.stages[s - 1].row != RowOperator::none;
  return launch;
}

constexpr int SINGLE_SHARED_BYTES = WARPS * sizeof(float);  // in which the threads of a row's CTA join their values

struct SingleHeader {
  int64_t batch, heads;
  int64_t image_row;  // bytes
  int32_t launch;     // which launch this is
  int32_t last;       // the launch that writes what remains after the step
};

// P::tables are the program's tables. No step comes before or after this one.
template <class P>
struct SingleCall : SingleHeader {
  SumPlace sums[at_least_one(accumulators_before(P::tables, P::tables.stage_count))];
  ImagePlace image_places[at_least_one(P::tables.image_count)];
  BiasPlace biases[at_least_one(streams_before(P::tables, P::tables.slot_count))];
  int64_t dims[at_least_one(P::tables.dim_count)];
  float constants[(at_least_one(P::tables.constant_count) + 1) / 2 * 2];
  Direction<P> own;
};

}  // namespace rnncc
