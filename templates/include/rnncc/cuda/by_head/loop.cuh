// The driver of a loop whose step works on matrices: a CTA has one head of a batch entry, for the whole sequence. What
// the step makes stays on chip: nothing of it but what a call wants goes through memory. Heads share nothing that they
// write, so no CTA waits for another.
#pragma once

#include "ahead.cuh"
#include "elements.cuh"

namespace rnncc {

struct NoSums {
  RNNCC_DEVICE float operator[](int) const { return 0.0f; }
};

template <int stage, class R>
RNNCC_DEVICE void head_stages(const R& run, HeldMatrices<typename R::Program, typename R::Shape>& held, int entry,
                              float* scratch) {
  using P = typename R::Program;
  if constexpr (stage < P::tables.stage_count) {
    constexpr StageInfo info = P::tables.stages[stage];
    constexpr bool follows =
        stage > 0 && (info.row != RowOperator::none || P::tables.stages[stage - (stage > 0)].row != RowOperator::none);
    if constexpr (stage > 0 && (info.barrier || follows)) __syncthreads();
    if constexpr (info.row == RowOperator::elements) {
      head_elements<stage, stage_of<P, stage>>(run, held, entry, scratch);
    } else if constexpr (info.row != RowOperator::none) {
      constexpr int source = P::tables.stage_slots[info.first_operand];
      if constexpr (P::matrices[source]) {
        constexpr StageInfo shape = stage_of_elements<P>();
        reduce_held<P::tables.stage_slots[info.first_stored], source, info.row, stage>(
            run, held, entry, run.plan.dims[shape.matrix_rows], run.plan.dims[shape.matrix_columns], scratch);
      } else {
        row_operation<stage>(run, entry, scratch);
      }
    } else {
      using F = stage_of<P, stage>;
      const int width = run.plan.dims[info.width];
      for (int unit = threadIdx.x; unit < width; unit += THREADS) {
        const Element at = {entry, unit, 0, true};
        const auto early = F::early(run, at);
        const auto late = F::late(run, at);
        F::store_rest(run, at, F::compute(run, at, early, late, NoSums{}));
      }
    }
    head_stages<stage + 1>(run, held, entry, scratch);
  }
}

template <int f, class R>
RNNCC_DEVICE void head_finals(const R& run, const HeldMatrices<typename R::Program, typename R::Shape>& held, int entry,
                              int rows, int columns) {
  using P = typename R::Program;
  using Shape = typename R::Shape;
  if constexpr (f < P::tables.final_count) {
    constexpr int slot = P::tables.finals[f].slot;
    const OutputPlace& place = run.memory.own.finals[f];
    if (place.base) {
      float* const to = global<float>(place.base) + entry * place.row;
      if constexpr (P::matrices[slot]) {
#pragma unroll
        for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
          for (int c = 0; c < Shape::COLUMNS; ++c) {
            const int i = Shape::row(r), j = Shape::column(c);
            if (i < rows && j < columns)
              to[run.template in_tensor<slot>(i * columns + j)] =
                  held.of[held_before<P, typename R::Shape>(slot)][r][c];
          }
      } else {
        for (int unit = threadIdx.x; unit < run.plan.dims[P::tables.slots[slot].width]; unit += THREADS)
          to[run.template in_tensor<slot>(unit)] = load<slot>(run, entry, unit);
      }
    }
    head_finals<f + 1>(run, held, entry, rows, columns);
  }
}

template <class P, class S, class Shape>
RNNCC_DEVICE void run_by_head(const HeadCall<P>& call) {
  extern __shared__ __align__(128) char shared[];
  float* const head_memory = reinterpret_cast<float*>(shared);
  const int entry = int(blockIdx.x / call.heads);
  HeadRun<P, S, Shape> run = {call,
                              {call.own, call.constants},
                              {call, call.direction, nullptr, 0, 0, 0},
                              head_memory,
                              int(blockIdx.x % call.heads)};
  float* const scratch = head_memory;
  HeldMatrices<P, Shape> held = {};
  constexpr StageInfo shape = stage_of_elements<P>();
  const int rows = call.own[shape.matrix_rows], columns = call.own[shape.matrix_columns];
  const int64_t steps = run.memory.steps_of(entry);
  Ahead<HeadRun<P, S, Shape>> ahead;
  begin(run, held, entry, rows, columns);
  if (steps > 0) {
    ahead.fetch(run, 0, entry, rows, columns);
    ahead.put(run, 0, held, true);
  }
  __syncthreads();
  for (int64_t n = 0; n < steps; ++n) {
    run.memory.n = n;
    run.memory.t = run.memory.time(n);
    const bool goes_on = n + 1 < steps;
    if (goes_on) ahead.fetch(run, n + 1, entry, rows, columns);
    head_stages<0>(run, held, entry, scratch);
    turn<HeadRun<P, S, Shape>>(held);
    if (goes_on) ahead.put(run, n + 1, held);
    __syncthreads();
  }
  run.memory.n = steps;
  head_finals<0>(run, held, entry, rows, columns);
}

}  // namespace rnncc
