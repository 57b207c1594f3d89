// Which matrices a phase has. A sum need not take every operand. Operands that stand side by side and that the same sums
// take are a *run*. Where each sum takes each operand, there is one run.
#pragma once

#include "call.cuh"

namespace rnncc {

// The first operand of a run of phase P, or the number of operands behind the last run.
template <class Step, int P>
__host__ __device__ constexpr int first_of_run(int run) {
  using Phase = PhaseOf<Step, P>;
  int operand = 0;
  for (; run > 0 && operand < Phase::OPERANDS; --run)
    for (++operand; operand < Phase::OPERANDS && Phase::taken_by(operand) == Phase::taken_by(operand - 1);) ++operand;
  return operand;
}

// How many runs phase P has. Without a product it has one, which has no operand.
template <class Step, int P>
__host__ __device__ constexpr int runs_of() {
  int runs = 1;
  while (first_of_run<Step, P>(runs) < PhaseOf<Step, P>::OPERANDS) ++runs;
  return runs;
}

// A run of phase P. `place` counts the sums of a run.
template <class Step, int P, int R>
struct RunOf {
  using Phase = PhaseOf<Step, P>;
  static constexpr int FIRST_OPERAND = first_of_run<Step, P>(R),
                       OPERANDS = first_of_run<Step, P>(R + 1) - FIRST_OPERAND;
  static constexpr uint64_t TAKEN_BY = OPERANDS > 0 ? Phase::taken_by(FIRST_OPERAND) : 0;

  __host__ __device__ static constexpr bool has_sum(int sum) { return !Phase::HAS_HOLES || has(TAKEN_BY, sum); }
  // How many of the phase's first sums the run has.
  __host__ __device__ static constexpr int sums_before(int sum) {
    if (!Phase::HAS_HOLES) return sum;
    int count = 0;
    for (int i = 0; i < sum; ++i) count += has_sum(i);
    return count;
  }
  // The number that the run's sum has in the phase.
  RNNCC_DEVICE static int sum_at(int place) {
    if (!Phase::HAS_HOLES) return place;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i)
      if (has_sum(i) && place-- == 0) sum = i;
    return sum;
  }
};

// Something of each run of a phase of a shape.
template <class Phase, template <class> class Of, int R, bool EXISTS>
struct FromRun {
  Of<typename Phase::template Run<R>> own;
  FromRun<Phase, Of, R + 1, (R + 1 < Phase::RUNS)> later;
  template <int Q>
  RNNCC_DEVICE auto& of() {
    if constexpr (Q == R)
      return own;
    else
      return later.template of<Q>();
  }
};
template <class Phase, template <class> class Of, int R>
struct FromRun<Phase, Of, R, false> {};
template <class Phase, template <class> class Of>
struct PerRun : FromRun<Phase, Of, 0, true> {};

}  // namespace rnncc
