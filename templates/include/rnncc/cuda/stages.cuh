// The stages of a generated program, as a driver reads them: sequence.cuh runs a whole sequence, single.cuh one step.
#pragma once

#include "math.cuh"
#include "rows.cuh"

namespace rnncc {

// The structs of a program's stages, in their order. A row stage has none: RowStage stands for it.
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
