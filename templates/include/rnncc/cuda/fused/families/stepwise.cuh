// A fused loop with one launch per step, for products that occupy the whole GPU by themselves. cuBLAS multiplies
// (../cublas.h). Then each thread does the elementwise part of one unit of one batch entry.
#pragma once

#include "../device/step.cuh"

namespace rnncc {

template <class Step_, int H_>
struct StepwiseShape {
  using Step = Step_;
  static_assert(Step::PHASES == 1 && Step::WIDTHS == 1 && PhaseOf<Step, 0>::REDUCTIONS == 0 && Step::ROW_WRITES == 0 &&
                Step::ROW_FLOAT == 0 && Step::ROW_PER_HEAD == 0);
  static constexpr int SUMS = PhaseOf<Step, 0>::SUMS, OPERANDS = PhaseOf<Step, 0>::OPERANDS;
  static constexpr int H = H_, THREADS = 256, SHARED_BYTES = 0;
};

// Runs `finish` of step t, and then `start` of step t + 1. There is a launch for each t from -1 to the last step.
// Launches leave each other values in the memory at `own.exchange`: the carries, floats [CARRIES][batch][H]; from byte
// `step` on the operands of the product [batch][OPERANDS][H]; and from byte `entry` on its sums, floats
// [batch][SUMS][H]. Transposed matrices stand in memory in the reverse order of the operands, so the operands here are
// reversed too.
template <class S>
RNNCC_DEVICE void fused_stepwise(const FusedCall<typename S::Step>& call, const FusedTensors<typename S::Step>& own,
                                 int t) {
  using Step = typename S::Step;
  using E = typename Step::Element;
  const int64_t all = int64_t(call.batch) * S::H, index = int64_t(blockIdx.x) * S::THREADS + threadIdx.x;
  if (index >= all) return;
  const int entry = int(index / S::H), unit = int(index % S::H);
  const OwnRows rows = own_rows<Step>(call, own.descending, entry);
  float* const carried = reinterpret_cast<float*>(own.exchange.base) + index;
  E* const operands =
      reinterpret_cast<E*>(own.exchange.base + own.exchange.step) + int64_t(entry) * S::OPERANDS * S::H + unit;
  const float* const sums =
      reinterpret_cast<const float*>(own.exchange.base + own.exchange.entry) + int64_t(entry) * S::SUMS * S::H + unit;

  const auto place = [&](const Place& tensor, int step, int bytes) {
    return tensor.base + (step * tensor.step + rows.first * tensor.entry + unit * bytes);
  };
  const auto load = [&](int step, float (&read)[at_least_one(Step::READS)], float (&row)[row_values<Step>]) {
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      const bool is_float = has(float_reads<Step>, r), shifted = has(Step::READ_SHIFTED, r);
      const char* const at = place(own.reads[r], step, is_float ? 4 : sizeof(E));
      read[r] = 0.0f;
      if (shifted && step + 1 == rows.steps)
        read[r] = take<E>(own.read_edges[r], entry, unit);
      else if (own.reads[r].base && step < rows.steps)
        read[r] = is_float ? *reinterpret_cast<const float*>(at) : to_float(*reinterpret_cast<const E*>(at));
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const Place& tensor = own.row_reads[r];
      const bool exists = tensor.base && step < rows.steps;
      row[r] = exists
                   ? to_float(*reinterpret_cast<const E*>(tensor.base + step * tensor.step + rows.first * tensor.entry))
                   : 0.0f;
    }
    if constexpr (Step::MASKED) row[Step::ROW_READS] = rows.is_active(step) ? 1.0f : 0.0f;
    if constexpr (Step::ROW_VALUES > Step::ROW_READS + Step::MASKED) row[Step::ROW_VALUES - 1] = S::H;
  };
  const auto store = [&](int step, bool at_start, const float (&write)[written<Step>]) {
    if (step >= rows.steps) return;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      if (!has(at_start ? writes_of<Step, 0> : writes_of<Step, 1>, w) || !own.writes[w].base) continue;
      const bool is_float = has(float_writes<Step>, w);
      char* const at = place(own.writes[w], step, is_float ? 4 : sizeof(E));
      if (is_float)
        *reinterpret_cast<float*>(at) = write[w];
      else
        *reinterpret_cast<E*>(at) = from_float<E>(write[w]);
    }
  };

  float vector[at_least_one(Step::VECTORS)], carry[at_least_one(Step::CARRIES)];
  float read[at_least_one(Step::READS)], row[row_values<Step>], write[written<Step>];
#pragma unroll
  for (int v = 0; v < Step::VECTORS; ++v) vector[v] = take<E>(own.vectors[v], 0, unit * own.vectors[v].entry);
#pragma unroll
  for (int s = 0; s < Step::CARRIES; ++s) {
    if (t >= 0)
      carry[s] = carried[s * all];
    else
      carry[s] = s < Step::EDGES ? take<E>(own.initial[s < Step::EDGES ? s : 0], entry, unit) : 0.0f;
  }
  if (t >= 0) {
    float sum[S::SUMS], before[at_least_one(Step::EDGES)];
#pragma unroll
    for (int i = 0; i < S::SUMS; ++i) sum[i] = sums[i * S::H];
#pragma unroll
    for (int s = 0; s < Step::EDGES; ++s) before[s] = carry[s];
    load(t, read, row);
    Step::finish(sum, read, row, vector, call.constants, carry, write);
    // The same as in Item::finish.
    if constexpr (Step::MASKED)
#pragma unroll
      for (int s = 0; s < Step::EDGES; ++s) carry[s] = t < rows.steps ? carry[s] : before[s];
    store(t, false, write);
  }
  if (t + 1 < call.steps) {
    float operand[S::OPERANDS];
    load(t + 1, read, row);
    Step::start(read, row, vector, call.constants, carry, operand, write);
#pragma unroll
    for (int p = 0; p < S::OPERANDS; ++p)
      operands[(PhaseOf<Step, 0>::TRANSPOSED ? S::OPERANDS - 1 - p : p) * S::H] = from_float<E>(operand[p]);
    store(t + 1, true, write);
#pragma unroll
    for (int s = 0; s < Step::CARRIES; ++s) carried[s * all] = carry[s];
  } else {
#pragma unroll
    for (int s = 0; s < Step::EDGES; ++s) put<E>(own.last[s], entry, unit, carry[s]);
  }
}

}  // namespace rnncc
