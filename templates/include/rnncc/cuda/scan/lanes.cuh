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
//   step                       carries and what is written, from the carries before
//   SLOPES, map                scans alone: which of the carries before are in which carry, and the map of a step
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

template <int BYTES>
struct WordsOf;
template <>
struct WordsOf<2> {
  using type = uint16_t;
};
template <>
struct WordsOf<4> {
  using type = uint32_t;
};
template <>
struct WordsOf<8> {
  using type = uint2;
};
template <>
struct WordsOf<16> {
  using type = uint4;
};

// VEC values side by side: loaded at once, and turned into floats one by one, when they are needed.
template <class E, int VEC>
struct Pack {
  using Words = typename WordsOf<VEC * sizeof(E)>::type;
  Words words;
  RNNCC_DEVICE void load(const void* from) { words = *static_cast<const Words*>(from); }
  RNNCC_DEVICE void store(void* to) const { *static_cast<Words*>(to) = words; }
  RNNCC_DEVICE float get(int i) const { return to_float(reinterpret_cast<const E*>(&words)[i]); }
  RNNCC_DEVICE void set(int i, float value) { reinterpret_cast<E*>(&words)[i] = from_float<E>(value); }
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
    E row[ROWS];
  };
  struct Values {
    float read[VEC][READS];
    float row[ROWS];
  };

  int steps, column, unit;
  bool valid;
  const char* read[READS];
  const char* row[ROWS];
  char* write[WRITES];
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
      write[w] = own.writes[w].base ? own.writes[w].base + column * own.writes[w].column + int64_t(unit) * (has(OUT_FLOATS, w) ? 4 : sizeof(E)) : nullptr;
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v)
#pragma unroll
      for (int j = 0; j < VEC; ++j) vector[j][v] = take<E>(own.vectors[v], 0, (unit + j) * own.vectors[v].column);
  }

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
      const int until = own.reads[r].base ? steps - has(Step::READ_SHIFTED, r) : 0;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        if (has(FLOATS, r)) {
          raw[s].real[r].words = {};
          if (first + s < until) raw[s].real[r].load(from);
        } else {
          raw[s].element[r].words = {};
          if (first + s < until) raw[s].element[r].load(from);
        }
        from += own.reads[r].step;
      }
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const char* from = row[r] + first * own.row_reads[r].step;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        raw[s].row[r] = {};
        if (first + s < steps) raw[s].row[r] = *reinterpret_cast<const E*>(from);
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
    for (int r = 0; r < Step::ROW_READS; ++r) v.row[r] = to_float(raw.row[r]);
    return v;
  }

  // Step t, which there is.
  RNNCC_DEVICE void step(const ScanCall<Step>& call, const ScanTensors<Step>& own, const Values& v, int t, float (&carry)[VEC][EDGES],
                         float (&total)[VEC][TOTALS]) const {
    float written[VEC][WRITES];
#pragma unroll
    for (int j = 0; j < VEC; ++j) Step::step(v.read[j], v.row, vector[j], call.constants, carry[j], written[j], total[j]);
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      if (!write[w] || !valid) continue;
      char* const to = write[w] + t * own.writes[w].step;
      if (has(OUT_FLOATS, w)) {
        Pack<float, VEC> pack;
#pragma unroll
        for (int j = 0; j < VEC; ++j) pack.set(j, written[j][w]);
        pack.store(to);
      } else {
        Pack<E, VEC> pack;
#pragma unroll
        for (int j = 0; j < VEC; ++j) pack.set(j, written[j][w]);
        pack.store(to);
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
