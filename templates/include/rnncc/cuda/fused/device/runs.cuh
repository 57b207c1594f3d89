// Which matrices a phase has. A sum need not take every operand. A *run* is operands that stand side by side and are
// taken by the same sums. Where each sum takes each operand, there is one run.
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

// Run R of phase P. `sum` counts the sums of the phase, and `place` those of the run.
template <class Step, int P, int R>
struct RunOf {
  using Phase = PhaseOf<Step, P>;
  static constexpr int FIRST_OPERAND = first_of_run<Step, P>(R),
                       OPERANDS = first_of_run<Step, P>(R + 1) - FIRST_OPERAND;
  static constexpr uint64_t TAKEN_BY = OPERANDS > 0 ? Phase::taken_by(FIRST_OPERAND) : 0;

  __host__ __device__ static constexpr bool has_sum(int sum) { return !Phase::HAS_HOLES || has(TAKEN_BY, sum); }
  // How many sums of the run come before a sum of the phase.
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

// How many sums a run of phase P has.
template <class Step, int P>
__host__ __device__ constexpr int sums_of_run(int run) {
  using Phase = PhaseOf<Step, P>;
  int count = 0;
  for (int i = 0; i < Phase::SUMS; ++i)
    count += !Phase::HAS_HOLES || has(Phase::taken_by(first_of_run<Step, P>(run)), i);
  return count;
}
// How many sums the first `runs` runs of phase P have together.
template <class Step, int P>
__host__ __device__ constexpr int sums_of_runs(int runs) {
  int count = 0;
  for (int run = 0; run < runs; ++run) count += sums_of_run<Step, P>(run);
  return count;
}
// RunOf::sum_at, where the run is known at run time only.
template <class Step, int P>
RNNCC_DEVICE int sum_of_run(int run, int place) {
  int sum = 0;
  for_numbers<runs_of<Step, P>()>([&](auto number) {
    constexpr int R = decltype(number)::value;
    if (run == R) sum = RunOf<Step, P, R>::sum_at(place);
  });
  return sum;
}

// Whether each sum of phase P is in one run, and all runs have equally many operands; `same_sums`: and equally many
// sums.
template <class Step, int P>
__host__ __device__ constexpr bool has_runs_apart(bool same_sums) {
  int sums = 0;
  for (int r = 0; r < runs_of<Step, P>(); ++r) {
    const int operands = first_of_run<Step, P>(r + 1) - first_of_run<Step, P>(r);
    if (operands != first_of_run<Step, P>(1) - first_of_run<Step, P>(0)) return false;
    if (same_sums && sums_of_run<Step, P>(r) != sums_of_run<Step, P>(0)) return false;
    sums += sums_of_run<Step, P>(r);
  }
  return sums == PhaseOf<Step, P>::SUMS;
}

// The run that a sum of such a phase is in, and its place among the sums of that run.
template <class Step, int P>
__host__ __device__ constexpr int run_with_sum(int sum) {
  int run = 0;
  while (PhaseOf<Step, P>::HAS_HOLES && !has(PhaseOf<Step, P>::taken_by(first_of_run<Step, P>(run)), sum)) ++run;
  return run;
}
template <class Step, int P>
__host__ __device__ constexpr int place_in_run(int sum) {
  int place = 0;
  for (int i = 0; i < sum; ++i) place += run_with_sum<Step, P>(i) == run_with_sum<Step, P>(sum);
  return place;
}

// Whether each warp multiplies one run alone: each run has as many warps. Otherwise all warps multiply all runs.
template <class Step, int P>
__host__ __device__ constexpr bool shares_warps(int warps) {
  return runs_of<Step, P>() > 1 && runs_of<Step, P>() <= warps && has_runs_apart<Step, P>(true);
}

// The rows of a relayed phase are dealt out among the CTAs of a head in half-tiles: 8 units of a sum. A CTA has
// half-tiles of one run alone, so it takes no operands of other runs. How many CTAs have half-tiles, where each has up
// to `halves`:
template <class Step, int P>
__host__ __device__ constexpr int relayed_ctas(int halves) {
  int ctas = 0;
  for (int r = 0; r < runs_of<Step, P>(); ++r)
    ctas += ceil_div(sums_of_run<Step, P>(r) * (Relays<Step>::NARROW / 8), halves);
  return ctas;
}
// The fewest half-tiles per CTA with which so many CTAs are enough.
template <class Step, int P>
__host__ __device__ constexpr int relayed_halves(int ctas) {
  int halves = 1;
  while (relayed_ctas<Step, P>(halves) > ctas) ++halves;
  return halves;
}

template <class Step, int P>
__host__ __device__ constexpr int relayed_halves_of(int ctas) {
  if constexpr (Relays<Step>::has_phase(P)) {
    static_assert(has_runs_apart<Step, P>(false), "a CTA takes the operands of one run");
    return relayed_halves<Step, P>(ctas);
  }
  return 0;
}

// An Of<Run> for each run of a phase of a shape.
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
