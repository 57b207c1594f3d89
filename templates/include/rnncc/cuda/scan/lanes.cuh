// What scans and walks share: channels (a unit of a batch column), VEC of them side by side in a lane, and how a lane brings
// and stores their values.
//
// `Step`, generated for each loop without products:
//   Element                    of streams and vectors: 16-bit or float
//   EDGES                      floats of a channel that live from step to step (carries), with initial values
//   READS, READ_FLOAT          tensors read at (t, column, unit); the others have Elements. READ_SHIFTED: one step further
//                              in the loop's order, and beyond the loop an edge tensor
//   ROW_READS                  tensors read at (t, column)
//   VECTORS, CONSTANTS         values of a unit; of the layer
//   WRITES, WRITE_FLOAT        tensors written
//   TOTALS                     values that are summed over all steps
//   KEPT                       values that `map` and `step` have in common
//   step                       carries and what is written, from the carries before
// and scans alone:
//   prepare, map               what is kept; the map of a step
//   SLOPES, ENTRIES            which of the carries before are in which carry after one step, after any number (sets)
#pragma once

#include "../fused/step.cuh"

namespace rnncc {

// What one direction of a layer reads and writes.
template <class Step>
struct ScanTensors {
  Place reads[at_least_one(Step::READS)];
  Edge read_edges[at_least_one(Step::READS)];
  Place row_reads[at_least_one(Step::ROW_READS)];
  Place writes[at_least_one(Step::WRITES)];
  Edge initial[at_least_one(Step::EDGES)];  // null: zeros
  Edge last[at_least_one(Step::EDGES)];     // null: not wanted
  Edge vectors[at_least_one(Step::VECTORS)];  // `column`: 1, or 0 where all units have one number
  float* totals[at_least_one(Step::TOTALS)];  // [blocks of a cluster, columns, units]; null: not wanted
};

template <class Step>
struct ScanCall {
  int32_t steps, columns, units, unused;
  float constants[(at_least_one(Step::CONSTANTS) + 1) / 2 * 2];
  ScanTensors<Step> directions[2];
};

// VEC values side by side, 2 to 16 bytes: loaded at once, and turned into floats one by one, when they are needed. Under a
// condition loads and stores are predicated: branches would keep those of several steps apart.
template <class E, int VEC>
struct Pack {
  static constexpr int BYTES = VEC * sizeof(E);
  uint32_t words[(BYTES + 3) / 4];

  RNNCC_DEVICE void load(const void* from, bool wanted) {
#pragma unroll
    for (uint32_t& word : words) word = 0;
    if constexpr (BYTES == 2) {
      uint16_t half = 0;
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.u16 %0,[%1];\n}" : "+h"(half) : "l"(from), "r"(uint32_t(wanted)));
      words[0] = half;
    } else if constexpr (BYTES == 4) {
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.u32 %0,[%1];\n}" : "+r"(words[0]) : "l"(from), "r"(uint32_t(wanted)));
    } else if constexpr (BYTES == 8) {
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%3,0;\n@p ld.global.nc.v2.u32 {%0,%1},[%2];\n}"
          : "+r"(words[0]), "+r"(words[1])
          : "l"(from), "r"(uint32_t(wanted)));
    } else {
      static_assert(BYTES == 16);
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%5,0;\n@p ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];\n}"
          : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
          : "l"(from), "r"(uint32_t(wanted)));
    }
  }
  RNNCC_DEVICE void store(void* to, bool wanted) const {
    if constexpr (BYTES == 2)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.u16 [%0],%2;\n}" ::"l"(to), "r"(uint32_t(wanted)), "h"(uint16_t(words[0])) : "memory");
    else if constexpr (BYTES == 4)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.u32 [%0],%2;\n}" ::"l"(to), "r"(uint32_t(wanted)), "r"(words[0]) : "memory");
    else if constexpr (BYTES == 8)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.v2.u32 [%0],{%2,%3};\n}" ::"l"(to), "r"(uint32_t(wanted)), "r"(words[0]), "r"(words[1]) : "memory");
    else
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.v4.u32 [%0],{%2,%3,%4,%5};\n}" ::"l"(to), "r"(uint32_t(wanted)), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  }
  RNNCC_DEVICE float get(int i) const {
    if constexpr (sizeof(E) == 4)
      return __uint_as_float(words[i]);
    else
      return to_float(E{uint16_t(words[i / 2] >> 16 * (i % 2))});
  }
  RNNCC_DEVICE void set(const float (&values)[VEC]) {
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int i = 0; i < VEC; ++i) words[i] = __float_as_uint(values[i]);
    } else if constexpr (VEC == 1) {
      words[0] = from_float<E>(values[0]).bits;
    } else {
#pragma unroll
      for (int i = 0; i < VEC; i += 2) words[i / 2] = pack<E>(values[i], values[i + 1]);
    }
  }
};

// A lane's channels: units `unit` … `unit` + VEC - 1 of `column`.
template <class Step, int VEC>
struct Lane {
  using E = typename Step::Element;
  static constexpr uint64_t FLOATS = float_reads<Step>, OUT_FLOATS = float_writes<Step>;
  static constexpr int READS = at_least_one(Step::READS), ROWS = at_least_one(Step::ROW_READS), WRITES = at_least_one(Step::WRITES);
  static constexpr int EDGES = at_least_one(Step::EDGES), TOTALS = at_least_one(Step::TOTALS), VECTORS = at_least_one(Step::VECTORS);

  // Of a step: as they were loaded.
  struct Raw {
    Pack<E, VEC> element[READS];
    Pack<float, VEC> real[READS];
    Pack<E, 1> row[ROWS];
  };
  struct Values {
    float read[VEC][READS];
    float row[ROWS];
  };
  struct Kept {
    float of[VEC][at_least_one(Step::KEPT)];
  };

  int steps, column, unit;
  bool valid;
  const char* read[READS];
  const char* row[ROWS];
  char* write[WRITES];
  uint32_t written;  // a set of them
  float edge[VEC][READS];  // of shifted reads, at the last step
  float vector[VEC][VECTORS];

  // `index` counts groups of VEC channels, column by column.
  RNNCC_DEVICE void begin(const ScanCall<Step>& call, const ScanTensors<Step>& own, uint32_t index) {
    const uint32_t groups = uint32_t(call.units) / VEC;
    column = int(index / groups);
    valid = column < call.columns;
    if (!valid) column = 0;
    unit = int(index % groups) * VEC;
    steps = call.steps;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      read[r] = own.reads[r].base + column * own.reads[r].column + int64_t(unit) * (has(FLOATS, r) ? 4 : sizeof(E));
#pragma unroll
      for (int j = 0; j < VEC; ++j) edge[j][r] = has(Step::READ_SHIFTED, r) ? take<E>(own.read_edges[r], column, unit + j) : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) row[r] = own.row_reads[r].base + column * own.row_reads[r].column;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w)
      write[w] = own.writes[w].base + column * own.writes[w].column + int64_t(unit) * (has(OUT_FLOATS, w) ? 4 : sizeof(E));
    written = 0;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) written |= uint32_t(valid && own.writes[w].base) << w;
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v)
#pragma unroll
      for (int j = 0; j < VEC; ++j) vector[j][v] = take<E>(own.vectors[v], 0, (unit + j) * own.vectors[v].column);
  }

  RNNCC_DEVICE bool is_written(int w) const { return written >> w & 1; }

  RNNCC_DEVICE void initial(const ScanTensors<Step>& own, float (&carry)[VEC][EDGES]) const {
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) carry[j][e] = take<E>(own.initial[e], column, unit + j);
  }
  RNNCC_DEVICE void last(const ScanTensors<Step>& own, const float (&carry)[VEC][EDGES]) const {
    if (!valid) return;
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) put<E>(own.last[e], column, unit + j, carry[j][e]);
  }

  // Steps `first` … `first` + STEPS - 1, as far as there are so many. Tensors that are not there are zeros.
  template <int STEPS>
  RNNCC_DEVICE void fetch(const ScanTensors<Step>& own, int first, Raw (&raw)[STEPS]) const {
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      const char* from = read[r] + first * own.reads[r].step;
      const int until = own.reads[r].base ? steps - has(Step::READ_SHIFTED, r) - first : 0;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        if (has(FLOATS, r))
          raw[s].real[r].load(from, s < until);
        else
          raw[s].element[r].load(from, s < until);
        from += own.reads[r].step;
      }
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const char* from = row[r] + first * own.row_reads[r].step;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        raw[s].row[r].load(from, first + s < steps);
        from += own.row_reads[r].step;
      }
    }
  }

  RNNCC_DEVICE Values values(const Raw& raw, int t) const {
    Values v;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r)
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        v.read[j][r] = has(FLOATS, r) ? raw.real[r].get(j) : raw.element[r].get(j);
        if (has(Step::READ_SHIFTED, r) && t + 1 == steps) v.read[j][r] = edge[j][r];
      }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) v.row[r] = raw.row[r].get(0);
    return v;
  }

  // Step t, if there is one.
  RNNCC_DEVICE void step(const ScanCall<Step>& call, const ScanTensors<Step>& own, const Values& v, const Kept& kept, int t,
                         float (&carry)[VEC][EDGES], float (&total)[VEC][TOTALS]) const {
    const bool exists = t < steps;
    float written[WRITES][VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float of_step[WRITES], next[EDGES], sum[TOTALS];
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) next[e] = carry[j][e];
#pragma unroll
      for (int i = 0; i < Step::TOTALS; ++i) sum[i] = total[j][i];
      Step::step(v.read[j], v.row, vector[j], call.constants, kept.of[j], next, of_step, sum);
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) carry[j][e] = exists ? next[e] : carry[j][e];
#pragma unroll
      for (int i = 0; i < Step::TOTALS; ++i) total[j][i] = exists ? sum[i] : total[j][i];
#pragma unroll
      for (int w = 0; w < Step::WRITES; ++w) written[w][j] = of_step[w];
    }
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      char* const to = write[w] + t * own.writes[w].step;
      if (has(OUT_FLOATS, w)) {
        Pack<float, VEC> pack;
        pack.set(written[w]);
        pack.store(to, exists && is_written(w));
      } else {
        Pack<E, VEC> pack;
        pack.set(written[w]);
        pack.store(to, exists && is_written(w));
      }
    }
  }

  // The lane's totals, of block `rank` of those that share its channels.
  RNNCC_DEVICE void put_totals(const ScanCall<Step>& call, const ScanTensors<Step>& own, int rank, const float (&total)[VEC][TOTALS]) const {
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < Step::TOTALS; ++i)
      if (own.totals[i])
#pragma unroll
        for (int j = 0; j < VEC; ++j) own.totals[i][(int64_t(rank) * call.columns + column) * call.units + unit + j] = total[j][i];
  }
};

}  // namespace rnncc
