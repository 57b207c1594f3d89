// What a call need not compute.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// The slot that another one shows, whole or in part, at this step or a neighbour.
template <class T>
static int16_t behind(const Program<T>& program, int16_t slot) {
  while (program.slots[slot].kind == Kind::view || program.slots[slot].kind == Kind::previous ||
         program.slots[slot].kind == Kind::next)
    slot = program.slots[slot].link;
  return slot;
}

// Whether a tensor, or a sum over steps, takes what a stage stores.
template <class T>
static bool is_taken(const Run<T>& run, const StageInfo& stage) {
  const Program<T>& program = run.program;
  for (int16_t i = 0; i < stage.stored; ++i) {
    const int16_t slot = program.stage_slots[stage.first_stored + i];
    const SlotInfo& info = program.slots[slot];
    for (int16_t d = 0; d < info.destinations; ++d) {
      const Destination& to = program.destinations[info.first_destination + d];
      if (run.tensor(to.table, to.index).data) return true;
    }
    for (int16_t o = 0; o < program.outer_count; ++o) {
      const OuterInfo& outer = program.outers[o];
      if (behind(program, outer.cotangent) == slot || behind(program, outer.operand) == slot) return true;
    }
    for (int16_t s = 0; s < program.sum_count; ++s)
      if (behind(program, program.sums[s].slot) == slot) return true;
  }
  return false;
}

// How many stages the last step has. Those at its end are left out whose values only go to a step that follows, or to
// final states that nobody wants: in a backward, the products that make the gradients of initial states.
template <class T>
static int16_t stages_of_last_step(const Run<T>& run) {
  const Program<T>& program = run.program;
  int16_t count = program.stage_count;
  for (int16_t f = 0; f < program.final_count; ++f)
    if (run.tensor(program.finals[f].table, program.finals[f].index).data) return count;
  while (count > 0 && !is_taken(run, program.stages[count - 1])) --count;
  return count;
}

// Whether one product, or several below each other, make all of a weight's gradient at once, so that it need not begin
// with zeros.
template <class T>
static bool is_made_at_once(const Run<T>& run, int16_t w) {
  const Program<T>& program = run.program;
  if (run.call.steps != 1 || run.call.starts || run.call.batch == 0) return false;
  int64_t rows = 0;
  for (int16_t o = 0; o < program.outer_count; ++o) {
    const MatrixInfo& matrix = program.matrices[program.outers[o].matrix];
    if (matrix.index != w) continue;
    if (program.outers[o].parts != 1) return false;
    for (int16_t before = 0; before < o; ++before) {
      const MatrixInfo& other = program.matrices[program.outers[before].matrix];
      if (other.index == w && run.dim(other.row) == run.dim(matrix.row)) return false;
    }
    rows += run.dim(matrix.rows);
  }
  return rows == run.dims[program.weight_rows + w];
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
