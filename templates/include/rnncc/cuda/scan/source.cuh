// The sources from which scans and walks take the values of steps.
#pragma once

#include "lanes.cuh"

namespace rnncc {

// A source gives the values of STEPS steps at a time, which are a part. The warp has asked for them one part earlier,
// or more. Values of tensors that are not given, and of steps beyond the end, are zeros.

// The values that are read at (t, entry), one part ahead, in registers.
template <class L, int STEPS>
struct RowSource {
  using Step = typename L::Step;
  using E = typename L::E;
  const char* from[L::ROWS];
  Pack<E, 1> now[STEPS][L::ROWS] = {}, next[STEPS][L::ROWS] = {};

  RNNCC_DEVICE void begin(const ScanTensors<Step>& own, const L& lane) {
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r)
      from[r] = own.row_reads[r].base + lane.rows.first * own.row_reads[r].entry;
  }
  RNNCC_DEVICE void fetch(const ScanTensors<Step>& own, const L& lane, int first) {
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      if (!own.row_reads[r].base) continue;  // zeros, as they began
      const char* at = from[r] + first * own.row_reads[r].step;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        next[s][r].load(at, first + s < lane.rows.steps);
        at += own.row_reads[r].step;
      }
    }
  }
  RNNCC_DEVICE void advance() {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int r = 0; r < Step::ROW_READS; ++r) now[s][r] = next[s][r];
  }
};

// A source in registers, one part ahead. Tensors may lie in any way.
template <class L, int STEPS>
struct RegisterSource {
  using Step = typename L::Step;
  using E = typename L::E;
  static constexpr int WARP_BYTES = 0;
  struct Raw {
    Pack<E, L::VEC> element[L::READS];
    Pack<float, L::VEC> real[L::READS];
  };
  const char* from[L::READS];
  Raw now[STEPS], next[STEPS];
  RowSource<L, STEPS> rows;
  int stride;

  // `part_stride`: the number of steps from the beginning of a part to the next part of the warp.
  RNNCC_DEVICE void begin(const ScanCall<Step>&, const ScanTensors<Step>& own, const L& lane, uint32_t, char*,
                          int first, int part_stride) {
    stride = part_stride;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r)
      from[r] = own.reads[r].base + lane.rows.first * own.reads[r].entry +
                int64_t(lane.unit) * (has(L::FLOATS, r) ? 4 : sizeof(E));
    rows.begin(own, lane);
    fetch(own, lane, first);
  }
  // Takes the part from step `first` on, and asks for the next one.
  RNNCC_DEVICE void advance(const ScanTensors<Step>& own, const L& lane, int first) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) now[s] = next[s];
    rows.advance();
    fetch(own, lane, first + stride);
  }
  RNNCC_DEVICE void end() const {}
  RNNCC_DEVICE void read(int s, int r, float (&values)[L::VEC]) const {
    if (has(L::FLOATS, r))
      now[s].real[r].get(values);
    else
      now[s].element[r].get(values);
  }
  RNNCC_DEVICE float row(int s, int r) const { return rows.now[s][r].get(0); }

 private:
  RNNCC_DEVICE void fetch(const ScanTensors<Step>& own, const L& lane, int first) {
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      const char* at = from[r] + first * own.reads[r].step;
      const int until = own.reads[r].base ? lane.rows.steps - has(Step::READ_SHIFTED, r) - first : 0;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        if (has(L::FLOATS, r))
          next[s].real[r].load(at, s < until);
        else
          next[s].element[r].load(at, s < until);
        at += own.reads[r].step;
      }
    }
    rows.fetch(own, lane, first);
  }
};

// A source in shared memory, DEPTH - 1 parts ahead. The lanes of a warp load rows of 32 · VEC channels there, in pieces
// of 16 bytes.
template <class L, int STEPS, int DEPTH>
struct RingSource {
  using Step = typename L::Step;
  using E = typename L::E;
  // Bytes per channel of the reads before read r.
  __host__ __device__ static constexpr int before(int r) {
    return sizeof(E) == 4 ? 4 * r : 2 * (r + count_below(L::FLOATS, r));
  }
  static constexpr int ROW = 32 * L::VEC, PART_BYTES = STEPS * ROW * before(Step::READS),
                       WARP_BYTES = DEPTH * PART_BYTES;
  static_assert(PART_BYTES % 512 == 0, "the warp brings whole rows");
  char *ring, *place;  // the warp's ring, and the part that is being read
  const char* from[L::READS];
  uint32_t exists;  // for which reads the lane has a piece of a row (a set)
  int until[2];  // in masked loops: the steps of that row's entry, for reads of 16-bit elements and for reads of floats
  RowSource<L, STEPS> rows;
  int stride, part;

  __host__ __device__ static constexpr int element_bytes(int r) { return has(L::FLOATS, r) ? 4 : int(sizeof(E)); }
  __host__ __device__ static constexpr int pieces(int r) { return ROW * element_bytes(r) / 16; }  // pieces per row

  // `index`: the warp's first group of VEC channels.
  RNNCC_DEVICE void begin(const ScanCall<Step>& call, const ScanTensors<Step>& own, const L& lane, uint32_t index,
                          char* shared, int first, int part_stride) {
    stride = part_stride;
    ring = shared;
    part = 0;
    exists = 0;
    const int l = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      const uint32_t channel = index * L::VEC + l % pieces(r) * (16 / element_bytes(r));
      const uint32_t entry = channel / uint32_t(call.units), unit = channel % uint32_t(call.units);
      exists |= uint32_t(own.reads[r].base && entry < uint32_t(call.batch)) << r;
      uint32_t row = entry;
      if constexpr (Step::MASKED) {
        const OwnRows rows = own_rows<Step>(call, own.descending, entry < uint32_t(call.batch) ? entry : 0);
        row = rows.first;
        until[has(L::FLOATS, r)] = rows.steps;
      }
      from[r] = own.reads[r].base + row * own.reads[r].entry + int64_t(unit) * element_bytes(r) +
                l / pieces(r) * own.reads[r].step;
    }
    rows.begin(own, lane);
#pragma unroll
    for (int d = 0; d < DEPTH - 1; ++d) fetch(own, lane, first + d * stride, d);
    rows.fetch(own, lane, first);
  }
  RNNCC_DEVICE void advance(const ScanTensors<Step>& own, const L& lane, int first) {
    rows.advance();
    rows.fetch(own, lane, first + stride);
    const int last = part == 0 ? DEPTH - 1 : part - 1;
    __syncwarp();  // all lanes are done with the part before
    fetch(own, lane, first + (DEPTH - 1) * stride, last);
    asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
    __syncwarp();
    place = ring + part * PART_BYTES;
    part = part + 1 == DEPTH ? 0 : part + 1;
  }
  // Call it after the last part. Then nothing is on its way any more to shared memory that is used for something else
  // now.
  RNNCC_DEVICE void end() const { asm volatile("cp.async.wait_all;" ::: "memory"); }
  RNNCC_DEVICE void read(int s, int r, float (&values)[L::VEC]) const {
    const char* const at = place + STEPS * ROW * before(r) + (s * ROW + threadIdx.x % 32 * L::VEC) * element_bytes(r);
    if (has(L::FLOATS, r))
      Pack<float, L::VEC>::of_shared(at).get(values);
    else
      Pack<E, L::VEC>::of_shared(at).get(values);
  }
  RNNCC_DEVICE float row(int s, int r) const { return rows.now[s][r].get(0); }

 private:
  RNNCC_DEVICE void fetch(const ScanTensors<Step>& own, const L& lane, int first, int slot) {
    const int l = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      constexpr int TOGETHER = 512;  // bytes that a warp loads at once
      const int rows_together = 32 / pieces(r),
                steps_of_entry = Step::MASKED ? until[has(L::FLOATS, r)] : lane.rows.steps;
      const int end = steps_of_entry - has(Step::READ_SHIFTED, r) - first - l / pieces(r);
      const char* at = from[r] + first * own.reads[r].step;
      const uint32_t to = shared_address(ring) + slot * PART_BYTES + STEPS * ROW * before(r) + l * 16;
      const int64_t step = rows_together * own.reads[r].step;
#pragma unroll
      for (int i = 0; i < STEPS * ROW * element_bytes(r) / TOGETHER; ++i) {
        copy16_or_zeros(to + i * TOGETHER, at, (exists >> r & 1) && i * rows_together < end);
        at += step;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

template <class L, int STEPS, int DEPTH>
struct SourceChoice {
  using type = RingSource<L, STEPS, DEPTH>;
};
template <class L, int STEPS>
struct SourceChoice<L, STEPS, 1> {
  using type = RegisterSource<L, STEPS>;
};
// The source that holds DEPTH parts at once. With a DEPTH of 1 it is in registers, and takes tensors that lie in any
// way.
template <class L, int STEPS, int DEPTH>
using SourceOf = typename SourceChoice<L, STEPS, DEPTH>::type;

}  // namespace rnncc
