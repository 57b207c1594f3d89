// What a fused kernel is given: the step of its loop, and the tensors of a call.
//
// A step is a chain: start, phase, middle, phase, …, finish. A phase is a product, or reductions over a head, or both;
// all of it waits for the same earlier results. Start, middle and finish are stages: elementwise work. Each takes what
// the phase before it gives, and makes what the phase after it takes. Most steps have one phase, and no
// middle. Forward, `start` mostly passes the previous state on. Backward, `start` makes the gradients of the gates, and
// `finish` makes the gradient of the state before. The loop runs finish(t) and start(t + 1) together, so that CTAs wait
// for each other once per phase.
//
// `Step` is generated for each loop (rnncc/stages/render/cuda/steps.py). It has:
//   Element             the type of streams, matrices and operands: 16-bit or float
//   PHASES              the number of phases
//   WIDTHS              the number of widths that values have, at most four. Where there are several, READ_WIDTH,
//                       WRITE_WIDTH, EDGE_WIDTH and VECTOR_WIDTH say which of them each value has, and SUM_WIDTH,
//                       OPERAND_WIDTH and REDUCTION_WIDTH say so for each phase. A width's number has two bits, so
//                       each constant is two sets: of the values whose low bit is 1, and of those whose high bit is 1
//   CARRIES, EDGES      floats per unit and entry that live from stage to stage or from step to step; the first EDGES
//                       have initial values
//   READS               how many tensors are read at (t, entry, unit)
//   READ_FLOAT          the set of them that are float. The others have Elements.
//   READ_SHIFTED        the set of them that are read one step further in the loop's order; beyond the loop, an edge
//                       tensor is read
//   ROW_READS           how many tensors are read at (t, entry), or at (t, entry, head)
//   ROW_FLOAT           the set of them that are float
//   ROW_PER_HEAD        the set of them that have one number per head
//   ROW_VALUES          ROW_READS, and what kernels know themselves (row_values in tensors.cuh)
//   VECTORS             values per unit
//   CONSTANTS           values of the layer
//   WRITES              how many tensors are written at (t, entry, unit)
//   ROW_WRITES          how many are written at (t, entry, head). They are counted after the WRITES.
//   WRITE_FLOAT         the set of all these that are float
//   WRITES_OF_STAGE     the set that each stage writes
//   MASKED              whether entries have lengths and resets; then the loop takes packed tensors too
//   HAS_RULES           whether some matrices are given by rules; then RULES has one for each matrix of the loop
//   start, middle, finish
//                       the elementwise functions
// It has one entry per phase of each of these:
//   OPERANDS, SUMS      how many there are: sums[i] += matrix[i][j] @ operand[j]
//   TRANSPOSED          whether the matrices are transposed
//   HAS_HOLES           whether a sum may have no matrix for an operand
//   REDUCTIONS          how many numbers reductions give. They take as many, after the operands, and give them after the
//                       sums.
//   LARGEST             the set of those that are the largest of all numbers. The others are sums, or moments.
// Where a phase has holes, the step has one entry per operand of all phases of this:
//   TAKEN_BY            the set of the phase's sums that have a matrix for the operand
// Some phases may be *relayed*: their sums do nothing but go into the next phase, as its operands, and perhaps to a tensor.
// Nothing else is in the stage between. Where there are such phases, the step has
//   RELAYS              the set of them
//   RELAYED_WRITES      how many tensors take their sums. These are the last of the WRITES
// and one entry per sum of all phases of each of these:
//   RELAYED_TO          which operand of the next phase the sum is
//   RELAYED_WRITE       which tensor takes it, or -1
// Where a step has moments, it has one entry per number of all phases' reductions:
//   MEANS               0, or else the number is a mean, and the one after it is the sum of the squares of deviations
//                       from that mean. MEANS says how many numbers of a unit it is the mean of.
//
// In these headers H is the head_dim, the widest where there are several. A kernel lays all values out as if they were as
// wide. Those that are narrower have no units beyond their own head_dim: nothing is read, sent or written there. In the
// shapes of tensors, as [T, B, H], H is the hidden size.
#pragma once

#include "fast.cuh"
#include "tensors.cuh"
#include "transport.cuh"

namespace rnncc {

// A matrix of ones and zeros that has no memory. Its element for a unit and a term is 1 where term / term_times is equal
// to unit / unit_times, at most that, at least that, or anything.
enum class Relation { none, equal, at_most, at_least, any };
struct MatrixRule {
  Relation relation = Relation::none;
  int unit_times = 1, term_times = 1;
  __host__ __device__ constexpr bool has(int unit, int term) const {
    const int difference = term / term_times - unit / unit_times;
    return relation == Relation::equal     ? difference == 0
           : relation == Relation::at_most ? difference <= 0
                                           : relation == Relation::any || difference >= 0;
  }
};

// The number of a stage, as a type: which `middle` is meant.
template <int S>
struct Stage {};

// A step's MEANS.
template <class Step, class = void>
struct Means {
  __host__ __device__ static constexpr int of(int) { return 0; }
};
template <class Step>
struct Means<Step, decltype(void(Step::MEANS))> {
  __host__ __device__ static constexpr int of(int reduction) { return Step::MEANS[reduction]; }
};

// A step whose relayed sums are narrow: they have a head_dim of NARROW_. A kernel deals them out among its CTAs. POLLS_:
// how many pieces of 16 bytes a lane asks for at a time.
template <class Step, int NARROW_, int POLLS_>
struct Relayed : Step {
  static constexpr int NARROW = NARROW_, POLLS = POLLS_;
};
template <class Step, class = void>
struct Relays {
  static constexpr int NARROW = 0, POLLS = 8, WRITES = 0;
  __host__ __device__ static constexpr bool has_phase(int) { return false; }
  __host__ __device__ static constexpr int operand(int) { return 0; }
  __host__ __device__ static constexpr int write(int) { return -1; }
};
template <class Step>
struct Relays<Step, decltype(void(Step::NARROW))> {
  static constexpr int NARROW = Step::NARROW, POLLS = Step::POLLS, WRITES = Step::RELAYED_WRITES;
  __host__ __device__ static constexpr bool has_phase(int phase) { return phase >= 0 && has(Step::RELAYS, phase); }
  // `sum` is counted through all phases.
  __host__ __device__ static constexpr int operand(int sum) { return Step::RELAYED_TO[sum]; }
  __host__ __device__ static constexpr int write(int sum) { return Step::RELAYED_WRITE[sum]; }
};

// A phase of a step.
template <class Step, int P>
struct PhaseOf {
  static constexpr int SUMS = Step::SUMS[P], OPERANDS = Step::OPERANDS[P];
  static constexpr int FIRST_SUM = PhaseOf<Step, P - 1>::FIRST_SUM + PhaseOf<Step, P - 1>::SUMS;
  static constexpr bool TRANSPOSED = Step::TRANSPOSED[P], HAS_HOLES = Step::HAS_HOLES[P];
  // How many matrices and operands the phases before it have.
  static constexpr int FIRST_MATRIX = PhaseOf<Step, P - 1>::FIRST_MATRIX + PhaseOf<Step, P - 1>::MATRICES;
  static constexpr int FIRST_OPERAND = PhaseOf<Step, P - 1>::FIRST_OPERAND + PhaseOf<Step, P - 1>::OPERANDS;
  static constexpr int MATRICES = SUMS * OPERANDS;
  static constexpr int REDUCTIONS = Step::REDUCTIONS[P];
  static constexpr int TAKES = OPERANDS + REDUCTIONS, GIVES = SUMS + REDUCTIONS;
  static constexpr int FIRST_REDUCTION = PhaseOf<Step, P - 1>::FIRST_REDUCTION + PhaseOf<Step, P - 1>::REDUCTIONS;
  static constexpr uint64_t LARGEST = Step::LARGEST[P];
  // The set of the sums that take an operand. It is 0 where all of them take all operands.
  __host__ __device__ static constexpr uint64_t taken_by([[maybe_unused]] int operand) {
    if constexpr (HAS_HOLES)
      return Step::TAKEN_BY[FIRST_OPERAND + operand];
    else
      return 0;
  }
  // How many numbers of a unit a reduction's number is the mean of.
  __host__ __device__ static constexpr int mean_of(int reduction) {
    return 0 <= reduction && reduction < REDUCTIONS ? Means<Step>::of(FIRST_REDUCTION + reduction) : 0;
  }
};
template <class Step>
struct PhaseOf<Step, -1> {
  static constexpr int SUMS = 0, FIRST_SUM = 0, OPERANDS = 0, FIRST_MATRIX = 0, FIRST_OPERAND = 0, MATRICES = 0;
  static constexpr int REDUCTIONS = 0, FIRST_REDUCTION = 0;
};
template <class Step>
using LastPhase = PhaseOf<Step, Step::PHASES - 1>;

// How many tensors a step writes.
template <class Step>
constexpr int written = at_least_one(Step::WRITES + Step::ROW_WRITES);

// What a stage writes.
template <class Step, int S>
constexpr uint64_t writes_of = Step::WRITES_OF_STAGE[S];

// Calls f with Number<0>, Number<1>, …, Number<N - 1>.
template <int I>
struct Number {
  static constexpr int value = I;
};
template <int N, int I = 0, class F>
RNNCC_DEVICE void for_numbers(const F& f) {
  if constexpr (I < N) {
    f(Number<I>{});
    for_numbers<N, I + 1>(f);
  }
}

// What one direction of a layer reads and writes.
template <class Step>
struct FusedTensors {
  // [heads, head_dim of the rows, head_dim of the columns]
  const void* matrices[at_least_one(LastPhase<Step>::FIRST_MATRIX + LastPhase<Step>::MATRICES)];
  int64_t descending;
  Place reads[at_least_one(Step::READS)];
  Edge read_edges[at_least_one(Step::READS)];
  Place row_reads[at_least_one(Step::ROW_READS)];
  Place writes[written<Step>];
  Edge initial[at_least_one(Step::EDGES)];  // null: zeros
  Edge last[at_least_one(Step::EDGES)];     // null: not wanted
  Edge vectors[at_least_one(
      Step::VECTORS)];  // `entry`: elements from a unit to the next, 0 where all units have one number
  Place exchange;       // the memory in which CTAs of the grid send each other operands (grid.cuh, wide.cuh)
};

// The directions of a layer run side by side; blockIdx.y is the direction of a CTA. A kernel has the loop once per
// direction, so that all addresses are constants of its parameter. Addresses that it found by an index would be loaded
// again at every step.
template <class Step>
struct FusedCall {
  int32_t steps, batch, heads, group_batch;
  int32_t head_dims[(Step::WIDTHS + 1) / 2 * 2];
  Extents extents;
  float constants[(at_least_one(Step::CONSTANTS) + 1) / 2 * 2];
  FusedTensors<Step> directions[2];
};

// The kinds of values that have a width.
enum class Value { read, write, edge, vector, sum, operand, reduction };

// The widths of all values of a kind: the sets of those whose width's number has that bit. P: the phase of sums, operands
// and reductions.
struct WidthBits {
  uint64_t low, high;
};
template <class Step, Value VALUE, int P>
__host__ __device__ constexpr WidthBits width_bits() {
  if constexpr (Step::WIDTHS == 1)
    return {};
  else if constexpr (VALUE == Value::read)
    return {Step::READ_WIDTH[0], Step::READ_WIDTH[1]};
  else if constexpr (VALUE == Value::write)
    return {Step::WRITE_WIDTH[0], Step::WRITE_WIDTH[1]};
  else if constexpr (VALUE == Value::edge)
    return {Step::EDGE_WIDTH[0], Step::EDGE_WIDTH[1]};
  else if constexpr (VALUE == Value::vector)
    return {Step::VECTOR_WIDTH[0], Step::VECTOR_WIDTH[1]};
  else if constexpr (VALUE == Value::sum)
    return {Step::SUM_WIDTH[P][0], Step::SUM_WIDTH[P][1]};
  else if constexpr (VALUE == Value::operand)
    return {Step::OPERAND_WIDTH[P][0], Step::OPERAND_WIDTH[P][1]};
  else
    return {Step::REDUCTION_WIDTH[P][0], Step::REDUCTION_WIDTH[P][1]};
}

// Which width a value has.
template <class Step, Value VALUE, int P = 0>
__host__ __device__ constexpr int width_of(int index) {
  constexpr WidthBits bits = width_bits<Step, VALUE, P>();  // a constant: device code has no table
  return has(bits.low, index) + 2 * has(bits.high, index);
}

// The head_dim of a width. Where there is only one, it is known when the kernel is compiled.
template <class Step, int H>
RNNCC_DEVICE int head_dim_of(const FusedCall<Step>& call, int width) {
  return Step::WIDTHS == 1 ? H : call.head_dims[width];
}

// Begins the loop of one direction. The compiler then leaves in each loop what both compute, and does not hold it in
// registers from before the branch on.
RNNCC_DEVICE void part() { asm volatile("" ::: "memory"); }

// Where a CTA works. The CTAs of one head and group of entries follow each other, as the CTAs of a cluster do. `rank`
// counts them. `steps`: the number of steps of the longest entry.
struct Seat {
  int rank, head, first_entry, entries, steps;
};
template <int CTAS, class Step>
RNNCC_DEVICE Seat seat_of(const FusedCall<Step>& call) {
  const int group = blockIdx.x / CTAS / call.heads;
  Seat seat;
  seat.rank = blockIdx.x % CTAS;
  seat.head = blockIdx.x / CTAS % call.heads;
  seat.first_entry = group * call.group_batch;
  seat.entries = ::min(call.group_batch, call.batch - seat.first_entry);
  seat.steps = call.steps;
  if constexpr (Step::MASKED)
    if (call.extents.starts) {
      seat.steps = 0;
      for (int i = 0; i < seat.entries; ++i)
        seat.steps = ::max(seat.steps, own_rows<Step>(call, false, seat.first_entry + i).steps);
    }
  return seat;
}

}  // namespace rnncc
