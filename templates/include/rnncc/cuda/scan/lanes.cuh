// The parts that scans and walks share. A channel is one unit of one batch entry. A lane has VEC channels side by side, and loads
// and stores their values.
//
// `Step` is generated for each loop without products. It has:
//   Element             the type of streams and vectors: 16-bit or float
//   EDGES               carries: floats per channel that live from step to step, with initial values
//   READS               how many tensors are read at (t, entry, unit)
//   READ_FLOAT          the set of them that are float. The others have Elements.
//   READ_SHIFTED        the set of them that are read one step further in the loop's order, and beyond the loop from an edge
//                       tensor
//   ROW_READS           how many tensors are read at (t, entry); row_values (fused/device/tensors.cuh) has them
//   VECTORS             values per unit
//   CONSTANTS           values of the layer
//   WRITES              how many tensors are written; WRITE_FLOAT is a set of them
//   TOTALS              values per channel that are summed over all steps
//   PREPARED            values per channel and step that both `map` and `step` use, so that they are computed once
//   MASKED              whether entries have lengths and resets; then the loop takes packed tensors too
//   step                computes the next carries, and what is written, from the carries before
// The step of a scan also has:
//   prepare             computes the PREPARED values
//   map                 computes the affine map of a step
//   SLOPES, ENTRIES     which carries depend on which after one step, and after any number of steps (sets)
#pragma once

#include "../fused/device/step.cuh"

namespace rnncc {

constexpr int MOST_STEPS = 0x7fffffff;  // of a batch entry

// A constant as a parameter of a generic lambda: each value makes an instance of its own.
template <bool VALUE>
struct Constant {
  RNNCC_DEVICE constexpr operator bool() const { return VALUE; }
};

// What one direction of a layer reads and writes.
template <class Step>
struct ScanTensors {
  int64_t descending;
  Place reads[at_least_one(Step::READS)];
  Edge read_edges[at_least_one(Step::READS)];
  Place row_reads[at_least_one(Step::ROW_READS)];
  Place writes[at_least_one(Step::WRITES)];
  Edge initial[at_least_one(Step::EDGES)];  // null: zeros
  Edge last[at_least_one(Step::EDGES)];     // null: not wanted
  Edge vectors[at_least_one(
      Step::VECTORS)];  // `entry`: elements from a unit to the next, 0 where all units have one number
  float* totals[at_least_one(Step::TOTALS)];  // [CTAs of a cluster, batch, units]; null: not wanted
};

template <class Step>
struct ScanCall {
  int32_t steps, batch, units, unused;
  Extents extents;
  float constants[(at_least_one(Step::CONSTANTS) + 1) / 2 * 2];
  ScanTensors<Step> directions[2];
};

// VEC values side by side, of 2 to 16 bytes. They are loaded at once, and turned into floats one by one when they are
// needed. Loads and stores under a condition are predicated instructions. With branches, those of several steps could
// not overlap.
template <class E, int VEC>
struct Pack {
  static constexpr int BYTES = VEC * sizeof(E);
  alignas(BYTES < 4 ? 4 : BYTES) uint32_t words[(BYTES + 3) / 4];

  RNNCC_DEVICE void load(const void* from, bool wanted) {
#pragma unroll
    for (uint32_t& word : words) word = 0;
    if constexpr (BYTES == 2) {
      uint16_t half = 0;
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.u16 %0,[%1];\n}"
          : "+h"(half)
          : "l"(from), "r"(uint32_t(wanted)));
      words[0] = half;
    } else if constexpr (BYTES == 4) {
      asm("{\n.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p ld.global.nc.u32 %0,[%1];\n}"
          : "+r"(words[0])
          : "l"(from), "r"(uint32_t(wanted)));
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
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.u16 [%0],%2;\n}" ::"l"(to),
                   "r"(uint32_t(wanted)), "h"(uint16_t(words[0]))
                   : "memory");
    else if constexpr (BYTES == 4)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.u32 [%0],%2;\n}" ::"l"(to),
                   "r"(uint32_t(wanted)), "r"(words[0])
                   : "memory");
    else if constexpr (BYTES == 8)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.v2.u32 [%0],{%2,%3};\n}" ::"l"(to),
                   "r"(uint32_t(wanted)), "r"(words[0]), "r"(words[1])
                   : "memory");
    else
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p,%1,0;\n@p st.global.v4.u32 [%0],{%2,%3,%4,%5};\n}" ::"l"(to),
                   "r"(uint32_t(wanted)), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
  }
  RNNCC_DEVICE float get(int i) const {
    if constexpr (sizeof(E) == 4)
      return __uint_as_float(words[i]);
    else
      return to_float(E{uint16_t(words[i / 2] >> 16 * (i % 2))});
  }
  RNNCC_DEVICE static Pack of_shared(const void* from) {
    Pack pack;
    if constexpr (BYTES == 2)
      pack.words[0] = *static_cast<const uint16_t*>(from);
    else if constexpr (BYTES == 4)
      pack.words[0] = *static_cast<const uint32_t*>(from);
    else if constexpr (BYTES == 8)
      *reinterpret_cast<uint2*>(pack.words) = *static_cast<const uint2*>(from);
    else
      *reinterpret_cast<uint4*>(pack.words) = *static_cast<const uint4*>(from);
    return pack;
  }
  RNNCC_DEVICE void get(float (&values)[VEC]) const {
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = get(i);
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

// A lane's channels: units `unit` … `unit` + VEC - 1 of `entry`.
template <class Step_, int VEC_>
struct Lane {
  using Step = Step_;
  using E = typename Step::Element;
  static constexpr int VEC = VEC_;
  static constexpr uint64_t FLOATS = float_reads<Step>, OUT_FLOATS = float_writes<Step>;
  static constexpr int READS = at_least_one(Step::READS), ROWS = at_least_one(Step::ROW_READS),
                       WRITES = at_least_one(Step::WRITES);
  static constexpr int EDGES = at_least_one(Step::EDGES), TOTALS = at_least_one(Step::TOTALS),
                       VECTORS = at_least_one(Step::VECTORS);

  // What a step reads.
  struct Values {
    float read[VEC][READS];
    float row[row_values<Step>];
  };
  struct Prepared {
    float of[VEC][at_least_one(Step::PREPARED)];
  };

  int entry, unit;
  OwnRows rows;
  bool valid;
  char* write[WRITES];
  uint32_t written;        // which of them are wanted (a set)
  float edge[VEC][READS];  // the values of shifted reads at the last step
  float vector[VEC][VECTORS];

  // `index` counts groups of VEC channels, entry by entry.
  RNNCC_DEVICE void begin(const ScanCall<Step>& call, const ScanTensors<Step>& own, uint32_t index) {
    const uint32_t groups = uint32_t(call.units) / VEC;
    entry = int(index / groups);
    valid = entry < call.batch;
    if (!valid) entry = 0;
    unit = int(index % groups) * VEC;
    rows = own_rows<Step>(call, own.descending, entry);
#pragma unroll
    for (int r = 0; r < Step::READS; ++r)
#pragma unroll
      for (int j = 0; j < VEC; ++j)
        edge[j][r] = has(Step::READ_SHIFTED, r) ? take<E>(own.read_edges[r], entry, unit + j) : 0.0f;
    written = 0;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      write[w] =
          own.writes[w].base + rows.first * own.writes[w].entry + int64_t(unit) * (has(OUT_FLOATS, w) ? 4 : sizeof(E));
      written |= uint32_t(valid && own.writes[w].base) << w;
    }
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v)
#pragma unroll
      for (int j = 0; j < VEC; ++j) vector[j][v] = take<E>(own.vectors[v], 0, (unit + j) * own.vectors[v].entry);
  }

  RNNCC_DEVICE void initial(const ScanTensors<Step>& own, float (&carry)[VEC][EDGES]) const {
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) carry[j][e] = take<E>(own.initial[e], entry, unit + j);
  }
  RNNCC_DEVICE void last(const ScanTensors<Step>& own, const float (&carry)[VEC][EDGES]) const {
    if (!valid) return;
#pragma unroll
    for (int j = 0; j < VEC; ++j)
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) put<E>(own.last[e], entry, unit + j, carry[j][e]);
  }

  // The values of step t, which is step s of its part. INNER: steps come after it.
  template <bool INNER, class Source>
  RNNCC_DEVICE Values values(const Source& source, int s, int t) const {
    Values v;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      float read[VEC];
      source.read(s, r, read);
#pragma unroll
      for (int j = 0; j < VEC; ++j)
        v.read[j][r] = !INNER && has(Step::READ_SHIFTED, r) && t + 1 == rows.steps ? edge[j][r] : read[j];
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) v.row[r] = source.row(s, r);
    if constexpr (Step::MASKED) v.row[Step::ROW_READS] = rows.is_active(t) ? 1.0f : 0.0f;
    return v;
  }

  // Where the values of a step go. Places move on by one step at a time: to multiply for each step would cost more than
  // all else.
  struct Places {
    char* at[WRITES];
  };
  RNNCC_DEVICE Places places(const ScanTensors<Step>& own, int t) const {
    Places places;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) places.at[w] = write[w] + t * own.writes[w].step;
    return places;
  }

  // Runs step t, unless it is beyond the end. INNER: it is not.
  template <bool INNER>
  RNNCC_DEVICE void step(const ScanCall<Step>& call, const ScanTensors<Step>& own, const Values& v,
                         const Prepared& prepared, int t, Places& places, float (&carry)[VEC][EDGES],
                         float (&total)[VEC][TOTALS]) const {
    const bool exists = INNER || t < rows.steps;
    float made[WRITES][VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float write_of[WRITES], next[EDGES], sum[TOTALS];
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) next[e] = carry[j][e];
#pragma unroll
      for (int i = 0; i < Step::TOTALS; ++i) sum[i] = total[j][i];
      Step::step(v.read[j], v.row, vector[j], call.constants, prepared.of[j], next, write_of, sum);
#pragma unroll
      for (int e = 0; e < Step::EDGES; ++e) carry[j][e] = exists ? next[e] : carry[j][e];
#pragma unroll
      for (int i = 0; i < Step::TOTALS; ++i) total[j][i] = exists ? sum[i] : total[j][i];
#pragma unroll
      for (int w = 0; w < Step::WRITES; ++w) made[w][j] = write_of[w];
    }
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      char* const to = places.at[w];
      places.at[w] += own.writes[w].step;
      const bool wanted = exists && (written >> w & 1);
      if (has(OUT_FLOATS, w)) {
        Pack<float, VEC> pack;
        pack.set(made[w]);
        pack.store(to, wanted);
      } else {
        Pack<E, VEC> pack;
        pack.set(made[w]);
        pack.store(to, wanted);
      }
    }
  }

  // For how many steps all lanes of the warp have values, of those that have channels; and for how many steps any of
  // them has.
  RNNCC_DEVICE int shortest(const ScanCall<Step>& call) const {
    if constexpr (Step::MASKED) return __reduce_min_sync(~0u, valid ? rows.steps : MOST_STEPS);
    return call.steps;
  }
  RNNCC_DEVICE int longest(const ScanCall<Step>& call) const {
    if constexpr (Step::MASKED) return __reduce_max_sync(~0u, valid ? rows.steps : 0);
    return call.steps;
  }

  // Stores the lane's totals. CTA `rank` is one of those that share its channels.
  RNNCC_DEVICE void put_totals(const ScanCall<Step>& call, const ScanTensors<Step>& own, int rank,
                               const float (&total)[VEC][TOTALS]) const {
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < Step::TOTALS; ++i)
      if (own.totals[i])
#pragma unroll
        for (int j = 0; j < VEC; ++j)
          own.totals[i][(int64_t(rank) * call.batch + entry) * call.units + unit + j] = total[j][i];
  }
};

}  // namespace rnncc
