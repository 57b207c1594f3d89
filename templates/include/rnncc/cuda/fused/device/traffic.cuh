// What a CTA of a fused kernel reads and writes in memory.
#pragma once

#include "call.cuh"

namespace rnncc {

// One step of tensors [T, B, H] in shared memory. Each tensor has a row per entry, which holds the CTA's units. Rows
// move to and from memory in pieces of 16 bytes; the pieces of an entry follow each other.
template <int UNITS, int ENTRIES, int TENSORS, uint64_t FLOATS>
struct Rows {
  // An odd multiple of 16 bytes, so that lanes (unit, 2q) of a warp meet no bank twice.
  __host__ __device__ static constexpr int row_bytes(int bytes) {
    return UNITS * bytes % 32 ? UNITS * bytes : UNITS * bytes + 16;
  }
  static constexpr int E_ROW = row_bytes(2), FLOAT_ROW = row_bytes(4);
  __host__ __device__ static constexpr int offset(int tensor) {
    return ENTRIES * (tensor * E_ROW + count_below(FLOATS, tensor) * (FLOAT_ROW - E_ROW));
  }
  static constexpr int BYTES = offset(TENSORS);
  // The number of pieces of a row of 16-bit elements, of an entry before a tensor, of an entry, and of all.
  static constexpr int PIECES = UNITS / 8;
  __host__ __device__ static constexpr int before(int tensor) {
    return PIECES * (tensor + count_below(FLOATS, tensor));
  }
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

// The reads and writes of a CTA. All its THREADS take part, and all goes through rows in shared memory. Reads go STAGES
// steps ahead into a ring, whose barriers count the threads. Writes leave once all threads have put their values down.
// (The bulk copy engine is no help: it needs some 50 ns for each of these short rows.)
//
// A tile is for 8 entries. Where only the first LANE_ENTRIES of them may exist, it has rows for those alone.
template <class Step, int H, int UNITS, int ENTRIES, int THREADS, int LANE_ENTRIES_ = 8>
struct Traffic {
  static constexpr int LANE_ENTRIES = LANE_ENTRIES_;
  using E = typename Step::Element;
  using In = Rows<UNITS, ENTRIES, Step::READS, float_reads<Step>>;
  // What goes to tensors from relayed sums, the kernel writes itself.
  static constexpr int WRITTEN_ROWS = Step::WRITES - Relays<Step>::WRITES;
  using Out = Rows<UNITS, ENTRIES, WRITTEN_ROWS, float_writes<Step>>;
  static constexpr int STAGES = In::BYTES <= 8192 ? 8 : 4;
  // The ring, its barriers, and two steps' writes.
  static constexpr int BARRIERS = STAGES * In::BYTES, WRITTEN = BARRIERS + STAGES * 8, BYTES = WRITTEN + 2 * Out::BYTES;
  static constexpr int READS = ceil_div(In::ALL, THREADS), WRITES = ceil_div(Out::ALL, THREADS);  // pieces per thread
  static constexpr uint32_t NEVER = uint32_t(1) << 31;

  uint32_t shared;  // where the ring begins
  const char* from[at_least_one(READS)];
  int32_t read_step[at_least_one(READS)];
  uint32_t read_row[at_least_one(READS)];
  int32_t until[at_least_one(READS)];
  char* to[at_least_one(WRITES)];
  int32_t write_step[at_least_one(WRITES)];
  uint32_t written_row[at_least_one(WRITES)];
  uint32_t
      ahead[at_least_one(WRITES)];  // 1 where `start` writes it, which runs with the step before; NEVER: no such piece
  int32_t write_until[Step::MASKED ? at_least_one(WRITES) : 1];
  int32_t steps;

  // All threads call it, and a barrier of the CTA must follow. `first_unit`: the first of the head's units that the CTA
  // has.
  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat, int first_unit,
                          uint32_t memory) {
    shared = memory;
    steps = seat.steps;
    // By one thread, as everywhere: of barriers that several threads begin, racecheck takes the addresses for others.
    if (threadIdx.x == 0)
      for (uint32_t stage = 0; stage < STAGES; ++stage) barrier_init(barrier(stage), THREADS);
    // Tensors that are not there are zeros.
    for (int i = threadIdx.x; i < BARRIERS / 16; i += THREADS)
      shared_at<uint4>(shared + 16 * i) = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < READS; ++i) {
      const Piece piece =
          find<In, Step::READS, float_reads<Step>, Value::read>(call, own, own.reads, i, first_unit, seat);
      from[i] = piece.at;
      read_step[i] = int32_t(own.reads[piece.tensor].step);
      read_row[i] = shared + piece.row_offset;
      until[i] = piece.exists ? piece.steps - has(Step::READ_SHIFTED, piece.tensor) : 0;
    }
#pragma unroll
    for (int i = 0; i < WRITES; ++i) {
      const Piece piece =
          find<Out, WRITTEN_ROWS, float_writes<Step>, Value::write>(call, own, own.writes, i, first_unit, seat);
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

  // Writes what `finish` made of step t and `start` of step t + 1 to memory. All threads call it after a barrier of the
  // CTA, in the order of the steps from -1 on. Another barrier must come before the values of step t + 2 are put down.
  RNNCC_DEVICE void store(int t) {
#pragma unroll
    for (int i = 0; i < WRITES; ++i)
      if (uint32_t(t) + ahead[i] < uint32_t(Step::MASKED ? write_until[Step::MASKED ? i : 0] : steps)) {
        *reinterpret_cast<uint4*>(to[i]) = shared_at<const uint4>(shared + written_row[i] + (t & 1) * Out::BYTES);
        to[i] += write_step[i];
      }
  }

 private:
  RNNCC_DEVICE uint32_t barrier(uint32_t stage) const { return shared + BARRIERS + 8 * stage; }

  // The thread's i-th piece. The last warps take the first pieces, since they tend to have less to do.
  template <class R, int TENSORS, uint64_t FLOATS, Value VALUE>
  static RNNCC_DEVICE Piece find(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Place* places, int i,
                                 int first_unit, const Seat& seat) {
    const int index = (THREADS - 32 - threadIdx.x / 32 * 32 + threadIdx.x % 32) + THREADS * i;
    const int row = index / at_least_one(R::PER_ENTRY), in_entry = index % at_least_one(R::PER_ENTRY);
    Piece piece = {};
    int head_dim = head_dim_of<Step, H>(call, width_of<Step, VALUE>(0));
#pragma unroll
    for (int tensor = 1; tensor < TENSORS; ++tensor)
      if (in_entry >= R::before(tensor)) {
        piece.tensor = tensor;
        head_dim = head_dim_of<Step, H>(call, width_of<Step, VALUE>(tensor));
      }
    const bool is_float = has(FLOATS, piece.tensor);
    const int part = in_entry - R::before(piece.tensor), unit = first_unit + part * (is_float ? 4 : 8);
    const Place& place = places[piece.tensor];
    piece.exists = index < R::ALL && row < seat.entries && unit < head_dim && place.base;
    const OwnRows rows = own_rows<Step>(call, own.descending, seat.first_entry + (piece.exists ? row : 0));
    piece.steps = rows.steps;
    piece.row_offset = R::offset(piece.tensor) + row * (is_float ? R::FLOAT_ROW : R::E_ROW) + part * 16;
    piece.at =
        place.base +
        (piece.exists ? rows.first * place.entry + (int64_t(seat.head) * head_dim + unit) * (is_float ? 4 : 2) : 0);
    return piece;
  }
};

}  // namespace rnncc
