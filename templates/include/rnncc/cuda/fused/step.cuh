// The parts of a fused loop that all families share.
//
// A step is a chain: start (elementwise), product, middle (elementwise), product, …, finish (elementwise). Each product with the
// elementwise work before it is a phase. Most steps have one phase, and no middle. `start` makes the first product's operands, and
// `finish` takes the last one's sums. Forward, `start` mostly passes the previous state on. Backward, `start` makes the gradients of the gates, and `finish`
// makes the gradient of the state before. The loop runs finish(t) and start(t + 1) together, so that CTAs wait for one exchange
// per phase.
//
// `Step` is generated for each loop. It has:
//   PHASES              the number of products that wait for each other; the next four have an entry for each
//   OPERANDS, SUMS      how many there are: sums[i] += matrix[i][j] @ operand[j]
//   TRANSPOSED          whether the matrices are transposed in this product
//   HAS_HOLES           whether a sum may have no matrix for an operand
//   CARRIES, EDGES      floats per unit and entry that live from step to step; the first EDGES of them have initial values
//   Element             the type of streams, matrices and operands: 16-bit or float
//   READS               how many tensors are read at (t, entry, unit)
//   READ_FLOAT          the set of them that are float. The others have Elements.
//   READ_SHIFTED        the set of them that are read one step further in the loop's order, and beyond the loop from an edge
//                       tensor
//   ROW_READS           how many tensors are read at (t, entry); row_values (tensors.cuh) has them
//   VECTORS             values per unit
//   WRITES              how many tensors are written; WRITE_FLOAT is a set of them
//   WRITES_OF_STAGE     the sets that start, each middle and finish write
//   MASKED              whether entries have lengths and resets; then the loop takes packed tensors too
//   start, middle, finish  the elementwise functions
#pragma once

#include "fast.cuh"
#include "ptx.cuh"
#include "tensors.cuh"

namespace rnncc {

// The number of a stage, as a type: which `middle` is meant.
template <int S>
struct Stage {};

// A phase of a step.
template <class Step, int P>
struct PhaseOf {
  static constexpr int SUMS = Step::SUMS[P], OPERANDS = Step::OPERANDS[P];
  static constexpr bool TRANSPOSED = Step::TRANSPOSED[P], HAS_HOLES = Step::HAS_HOLES[P];
  // How many matrices and operands the phases before it have.
  static constexpr int FIRST_MATRIX = PhaseOf<Step, P - 1>::FIRST_MATRIX + PhaseOf<Step, P - 1>::MATRICES;
  static constexpr int FIRST_OPERAND = PhaseOf<Step, P - 1>::FIRST_OPERAND + PhaseOf<Step, P - 1>::OPERANDS;
  static constexpr int MATRICES = SUMS * OPERANDS;
};
template <class Step>
struct PhaseOf<Step, -1> {
  static constexpr int OPERANDS = 0, FIRST_MATRIX = 0, FIRST_OPERAND = 0, MATRICES = 0;
};
template <class Step>
using LastPhase = PhaseOf<Step, Step::PHASES - 1>;

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
  const void* matrices[LastPhase<Step>::FIRST_MATRIX + LastPhase<Step>::MATRICES];  // element (u, k) of head n at ((n * H + u) * H + k)
  int64_t descending;
  Place reads[at_least_one(Step::READS)];
  Edge read_edges[at_least_one(Step::READS)];
  Place row_reads[at_least_one(Step::ROW_READS)];
  Place writes[at_least_one(Step::WRITES)];
  Edge initial[at_least_one(Step::EDGES)];  // null: zeros
  Edge last[at_least_one(Step::EDGES)];     // null: not wanted
  Edge vectors[at_least_one(Step::VECTORS)];  // `entry`: elements from a unit to the next, 0 where all units have one number
  Place exchange;  // the memory in which CTAs of the grid send each other operands (grid.cuh)
};

// The directions of a layer run side by side; blockIdx.y is the direction of a CTA. A kernel has the loop once per direction, so
// that all addresses are constants of its parameter. Addresses that it found by an index would be loaded again at every step.
template <class Step>
struct FusedCall {
  int32_t steps, batch, heads, group_batch;
  Extents extents;
  float constants[(at_least_one(Step::CONSTANTS) + 1) / 2 * 2];
  FusedTensors<Step> directions[2];
};

// Begins the loop of one direction. The compiler then leaves in each loop what both compute, and does not hold it in registers
// from before the branch on.
RNNCC_DEVICE void part() { asm volatile("" ::: "memory"); }

// Where a CTA works. The CTAs of one head and group of entries follow each other, as the CTAs of a cluster do. `rank` counts them.
// `steps`: the number of steps of the longest entry.
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

// One step of tensors [T, B, H] in shared memory. Each tensor has a row per entry, which holds the CTA's units. Rows move to and
// from memory in pieces of 16 bytes; the pieces of an entry follow each other.
template <int UNITS, int ENTRIES, int TENSORS, uint64_t FLOATS>
struct Rows {
  // An odd multiple of 16 bytes, so that lanes (unit, 2q) of a warp meet no bank twice.
  __host__ __device__ static constexpr int row_bytes(int bytes) { return UNITS * bytes % 32 ? UNITS * bytes : UNITS * bytes + 16; }
  static constexpr int E_ROW = row_bytes(2), FLOAT_ROW = row_bytes(4);
  __host__ __device__ static constexpr int offset(int tensor) {
    return ENTRIES * (tensor * E_ROW + count_below(FLOATS, tensor) * (FLOAT_ROW - E_ROW));
  }
  static constexpr int BYTES = offset(TENSORS);
  // The number of pieces of a row of 16-bit elements, of an entry before a tensor, of an entry, and of all.
  static constexpr int PIECES = UNITS / 8;
  __host__ __device__ static constexpr int before(int tensor) { return PIECES * (tensor + count_below(FLOATS, tensor)); }
  static constexpr int PER_ENTRY = before(TENSORS), ALL = ENTRIES * PER_ENTRY;
};

// A piece of 16 bytes and where it lies.
struct Piece {
  bool exists;
  int tensor;
  int steps;            // of the piece's entry
  uint32_t row_offset;  // in Rows
  char* at;             // in memory, at the loop's first step
};

// The reads and writes of a CTA. All its THREADS take part, and all goes through rows in shared memory. Reads go STAGES steps
// ahead into a ring, whose barriers count the threads. Writes leave once all threads have put their values down. (The bulk copy
// engine is no help: it needs some 50 ns for each of these short rows.)
template <class Step, int H, int UNITS, int ENTRIES, int THREADS>
struct Traffic {
  using E = typename Step::Element;
  using In = Rows<UNITS, ENTRIES, Step::READS, float_reads<Step>>;
  using Out = Rows<UNITS, ENTRIES, Step::WRITES, float_writes<Step>>;
  static constexpr int STAGES = In::BYTES <= 8192 ? 8 : 4;
  // The ring, its barriers, and two steps' writes.
  static constexpr int BARRIERS = STAGES * In::BYTES, WRITTEN = BARRIERS + STAGES * 8, BYTES = WRITTEN + 2 * Out::BYTES;
  static constexpr int READS = ceil_div(In::ALL, THREADS), WRITES = ceil_div(Out::ALL, THREADS);  // pieces per thread
  static constexpr uint32_t NEVER = uint32_t(1) << 31;

  char* shared;
  const char* from[at_least_one(READS)];
  int32_t read_step[at_least_one(READS)];
  uint32_t read_row[at_least_one(READS)];
  int32_t until[at_least_one(READS)];
  char* to[at_least_one(WRITES)];
  int32_t write_step[at_least_one(WRITES)];
  uint32_t written_row[at_least_one(WRITES)];
  uint32_t ahead[at_least_one(WRITES)];  // 1 where `start` writes it, which runs with the step before; NEVER: no such piece
  int32_t write_until[Step::MASKED ? at_least_one(WRITES) : 1];
  int32_t steps;

  // All threads call it, and a barrier of the CTA must follow. `first_unit`: the first of the head's units that the CTA has.
  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat, int first_unit, char* memory) {
    shared = memory;
    steps = seat.steps;
    if (threadIdx.x < STAGES) barrier_init(barrier(threadIdx.x), THREADS);
    // Tensors that are not there are zeros.
    for (int i = threadIdx.x; i < BARRIERS / 16; i += THREADS) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < READS; ++i) {
      const Piece piece = find<In, Step::READS, float_reads<Step>>(call, own, own.reads, i, first_unit, seat);
      from[i] = piece.at;
      read_step[i] = int32_t(own.reads[piece.tensor].step);
      read_row[i] = shared_address(shared) + piece.row_offset;
      until[i] = piece.exists ? piece.steps - has(Step::READ_SHIFTED, piece.tensor) : 0;
    }
#pragma unroll
    for (int i = 0; i < WRITES; ++i) {
      const Piece piece = find<Out, Step::WRITES, float_writes<Step>>(call, own, own.writes, i, first_unit, seat);
      to[i] = piece.at;
      write_step[i] = int32_t(own.writes[piece.tensor].step);
      written_row[i] = WRITTEN + piece.row_offset;
      ahead[i] = piece.exists ? has(writes_of<Step, 0>, piece.tensor) : NEVER;
      if constexpr (Step::MASKED) write_until[i] = piece.steps;
    }
  }

  // Starts to read step t into its stage, which nobody reads any more. All threads call it, in the order of the steps.
  RNNCC_DEVICE void fetch(int t) {
    const uint32_t stage = uint32_t(t) % STAGES;
#pragma unroll
    for (int i = 0; i < READS; ++i)
      if (t < until[i]) {
        copy16(read_row[i] + stage * In::BYTES, from[i]);
        from[i] += read_step[i];
      }
    copy_arrive(barrier(stage));
  }
  // Waits for step t. Each thread that reads the step calls it first.
  RNNCC_DEVICE void wait(int t) const { barrier_wait(barrier(uint32_t(t) % STAGES), uint32_t(t) / STAGES & 1); }

  // Writes what `finish` made of step t and `start` of step t + 1 to memory. All threads call it after a barrier of the CTA, in the
  // order of the steps from -1 on. Another barrier must come before the values of step t + 2 are put down.
  RNNCC_DEVICE void store(int t) {
#pragma unroll
    for (int i = 0; i < WRITES; ++i)
      if (uint32_t(t) + ahead[i] < uint32_t(Step::MASKED ? write_until[Step::MASKED ? i : 0] : steps)) {
        *reinterpret_cast<uint4*>(to[i]) = *reinterpret_cast<const uint4*>(shared + written_row[i] + (t & 1) * Out::BYTES);
        to[i] += write_step[i];
      }
  }

 private:
  RNNCC_DEVICE uint32_t barrier(uint32_t stage) const { return shared_address(shared) + BARRIERS + 8 * stage; }

  // The thread's i-th piece. The last warps take the first pieces, since they tend to have less to do.
  template <class R, int TENSORS, uint64_t FLOATS>
  static RNNCC_DEVICE Piece find(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Place (&places)[at_least_one(TENSORS)], int i,
                                 int first_unit, const Seat& seat) {
    const int index = (THREADS - 32 - threadIdx.x / 32 * 32 + threadIdx.x % 32) + THREADS * i;
    const int entry = index / at_least_one(R::PER_ENTRY), in_entry = index % at_least_one(R::PER_ENTRY);
    Piece piece = {};
#pragma unroll
    for (int tensor = 1; tensor < TENSORS; ++tensor)
      if (in_entry >= R::before(tensor)) piece.tensor = tensor;
    const bool is_float = has(FLOATS, piece.tensor);
    const int part = in_entry - R::before(piece.tensor), unit = first_unit + part * (is_float ? 4 : 8);
    const Place& place = places[piece.tensor];
    piece.exists = index < R::ALL && entry < seat.entries && unit < H && place.base;
    const OwnRows rows = own_rows<Step>(call, own.descending, seat.first_entry + (piece.exists ? entry : 0));
    piece.steps = rows.steps;
    piece.row_offset = R::offset(piece.tensor) + entry * (is_float ? R::FLOAT_ROW : R::E_ROW) + part * 16;
    piece.at = place.base + (piece.exists ? rows.first * place.entry + (int64_t(seat.head) * H + unit) * (is_float ? 4 : 2) : 0);
    return piece;
  }
};

// The elementwise part of 8 units × 8 entries, which one warp does. A lane has unit lane / 4 and two entries, 2 · (lane % 4) and
// the next, as the accumulators of mma have them.
template <class Step, int H, class Traffic>
struct Item {
  using E = typename Step::Element;
  using In = typename Traffic::In;
  using Out = typename Traffic::Out;
  float carry[2][at_least_one(Step::CARRIES)];
  float vector[at_least_one(Step::VECTORS)];
  char* e_row;         // the lane's place in rows of Elements
  char* float_row;     // and in rows of floats
  int unit;            // counted within the head
  int head_unit;       // counted within the tensor's row
  int entry;           // the first of the lane's two, counted within the batch
  bool valid[2];
  OwnRows rows[Step::MASKED ? 2 : 1];
  E row_now[2][at_least_one(Step::ROW_READS)] = {}, row_next[2][at_least_one(Step::ROW_READS)] = {};  // two steps

  // The item has the CTA's units from `own_unit` on, and its entries from `own_entry` on.
  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Traffic& traffic, const Seat& seat, int first_unit,
                          int own_unit, int own_entry) {
    const int lane = threadIdx.x % 32, group_entry = own_entry + lane % 4 * 2, cta_unit = own_unit + lane / 4;
    unit = first_unit + cta_unit;
    head_unit = seat.head * H + unit;
    entry = seat.first_entry + group_entry;
    e_row = traffic.shared + group_entry * In::E_ROW + cta_unit * 2;
    float_row = traffic.shared + group_entry * In::FLOAT_ROW + cta_unit * 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      valid[j] = group_entry + j < seat.entries && unit < H;
      if constexpr (Step::MASKED) rows[j] = valid[j] ? own_rows<Step>(call, own.descending, entry + j) : OwnRows{};
    }
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v)
      vector[v] = unit < H ? take<E>(own.vectors[v], 0, head_unit * own.vectors[v].entry) : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int s = 0; s < Step::CARRIES; ++s)
        carry[j][s] = s < Step::EDGES && valid[j] ? take<E>(own.initial[s < Step::EDGES ? s : 0], entry + j, head_unit) : 0.0f;
    ask(own, 0, seat.steps);
  }

  // Whether the entry has a row at step t.
  RNNCC_DEVICE bool has_rows(int j, int t) const {
    if constexpr (Step::MASKED) return t < rows[j].steps;
    return valid[j];
  }

  // Starts to load what `start` of step t reads at (t, entry), which takes as long as a product. So it is called before the product
  // of step t - 1. What was loaded for step t - 1 moves to row_now, where its `finish` finds it.
  RNNCC_DEVICE void ask(const FusedTensors<Step>& own, int t, int steps) {
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const Place& place = own.row_reads[r];
      if (!place.base) continue;  // zeros, as they began
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int64_t at = t * place.step + (Step::MASKED ? rows[Step::MASKED ? j : 0].first : entry + j) * place.entry;
        row_now[j][r] = row_next[j][r];
        row_next[j][r] = t < steps && has_rows(j, t) ? *reinterpret_cast<const E*>(place.base + at) : E{};
      }
    }
  }

  // Loads the values of step t for `start` (AT_START) or for `finish`. `last`: no step comes after it.
  template <bool AT_START>
  RNNCC_DEVICE void load(const FusedTensors<Step>& own, int t, bool last, float (&read)[2][at_least_one(Step::READS)],
                         float (&row)[2][row_values<Step>]) const {
    const uint32_t stage = uint32_t(t) % Traffic::STAGES * In::BYTES;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int r = 0; r < Step::READS; ++r) {
        read[j][r] = has(float_reads<Step>, r) ? *reinterpret_cast<const float*>(float_row + (stage + In::offset(r) + j * In::FLOAT_ROW))
                                               : to_float(*reinterpret_cast<const E*>(e_row + (stage + In::offset(r) + j * In::E_ROW)));
        const bool is_last = Step::MASKED ? t + 1 == rows[Step::MASKED ? j : 0].steps : last;
        if (has(Step::READ_SHIFTED, r) && is_last) read[j][r] = valid[j] ? take<E>(own.read_edges[r], entry + j, head_unit) : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < Step::ROW_READS; ++r) row[j][r] = to_float(AT_START ? row_next[j][r] : row_now[j][r]);
      if constexpr (Step::MASKED) row[j][Step::ROW_READS] = rows[j].is_active(t) ? 1.0f : 0.0f;
    }
  }

  // Runs `start`, and `middle` S, of a step.
  template <int OPERANDS>
  RNNCC_DEVICE void start(const FusedCall<Step>& call, int j, const float (&read)[at_least_one(Step::READS)],
                          const float (&row)[row_values<Step>], float (&operand)[OPERANDS], float (&write)[at_least_one(Step::WRITES)]) {
    Step::start(read, row, vector, call.constants, carry[j], operand, write);
  }
  template <int S, int SUMS, int OPERANDS>
  RNNCC_DEVICE void middle(const FusedCall<Step>& call, int j, const float (&sum)[SUMS], const float (&read)[at_least_one(Step::READS)],
                           const float (&row)[row_values<Step>], float (&operand)[OPERANDS], float (&write)[at_least_one(Step::WRITES)]) {
    Step::middle(Stage<S>{}, sum, read, row, vector, call.constants, carry[j], operand, write);
  }
  // Runs `finish` of step t. Steps beyond an entry's last row leave its carries as they are: their values may be infinite, so that
  // to multiply them by zero is not enough.
  RNNCC_DEVICE void finish(const FusedCall<Step>& call, int j, int t, const float (&sum)[LastPhase<Step>::SUMS], const float (&read)[at_least_one(Step::READS)],
                           const float (&row)[row_values<Step>], float (&write)[at_least_one(Step::WRITES)]) {
    float before[at_least_one(Step::CARRIES)];
#pragma unroll
    for (int s = 0; s < Step::EDGES; ++s) before[s] = carry[j][s];
    Step::finish(sum, read, row, vector, call.constants, carry[j], write);
    if constexpr (Step::MASKED)
#pragma unroll
      for (int s = 0; s < Step::EDGES; ++s) carry[j][s] = has_rows(j, t) ? carry[j][s] : before[s];
  }

  // Puts what stage S made of step t, or `start` of step t + 1, into shared memory for Traffic::store(t).
  template <int S>
  RNNCC_DEVICE void put_down(int t, const float (&write)[2][at_least_one(Step::WRITES)]) const {
    const uint32_t written = Traffic::WRITTEN + (t & 1) * Out::BYTES;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (!has(writes_of<Step, S>, w))
          continue;
        else if (has(float_writes<Step>, w))
          *reinterpret_cast<float*>(float_row + (written + Out::offset(w) + j * Out::FLOAT_ROW)) = write[j][w];
        else
          *reinterpret_cast<E*>(e_row + (written + Out::offset(w) + j * Out::E_ROW)) = from_float<E>(write[j][w]);
  }

  RNNCC_DEVICE void end(const FusedTensors<Step>& own) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (valid[j])
#pragma unroll
        for (int s = 0; s < Step::EDGES; ++s) put<E>(own.last[s], entry + j, head_unit, carry[j][s]);
  }
};

// Eight elements of a matrix.
struct Floats {
  float4 low, high;
};
template <class E>
struct TermsOf {
  using type = uint4;
};
template <>
struct TermsOf<float> {
  using type = Floats;
};
template <class E>
using Terms = typename TermsOf<E>::type;

// Eight elements of a head's matrix of phase P: elements k to k + 7 of row `unit`, or of column `unit` where it is transposed.
template <class Step, int P, int H>
RNNCC_DEVICE Terms<typename Step::Element> matrix8(const void* matrix, int head, int unit, int k) {
  using E = typename Step::Element;
  if (unit >= H || k >= H || (PhaseOf<Step, P>::HAS_HOLES && !matrix)) return {};
  const E* const from = static_cast<const E*>(matrix) + int64_t(head) * H * H;
  if constexpr (PhaseOf<Step, P>::TRANSPOSED) {
    const auto element = [&](int i) { return from[int64_t(k + i) * H + unit]; };
    if constexpr (sizeof(E) == 4) {
      return {{element(0), element(1), element(2), element(3)}, {element(4), element(5), element(6), element(7)}};
    } else {
      const auto two = [&](int i) { return element(i).bits | uint32_t(element(i + 1).bits) << 16; };
      return {two(0), two(2), two(4), two(6)};
    }
  } else {
    return *reinterpret_cast<const Terms<E>*>(from + int64_t(unit) * H + k);
  }
}

}  // namespace rnncc
