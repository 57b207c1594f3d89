// The stages of a generated program, as a driver reads them: sequence.cuh runs a whole sequence, single.cuh one step.
#pragma once

#include "math.cuh"
#include "rows.cuh"

namespace rnncc {

// An element of a matrix: (i, j) of a head's block of rows x columns.
struct Place {
  int entry;
  int64_t head, i, j, rows, columns;

  RNNCC_DEVICE Place column(int64_t at) const { return {entry, head, i, at, rows, columns}; }
  RNNCC_DEVICE int64_t unit() const { return (head * rows + i) * columns + j; }
  RNNCC_DEVICE int64_t row() const { return head * rows + i; }
  RNNCC_DEVICE int64_t in_row() const { return head * columns + j; }
};

// The structs of a program's stages, in their order. A row operator has none: RowStage stands for it.
struct RowStage {};
template <class... Stages>
struct StageList {};

template <int index, class List>
struct StageOf;
template <class First, class... Rest>
struct StageOf<0, StageList<First, Rest...>> {
  using type = First;
};
template <int index, class First, class... Rest>
struct StageOf<index, StageList<First, Rest...>> : StageOf<index - 1, StageList<Rest...>> {};

template <class P, int stage>
using stage_of = typename StageOf<stage, typename P::Stages>::type;

}  // namespace rnncc
