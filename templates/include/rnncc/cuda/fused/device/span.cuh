// The elementwise work of kernels whose lanes have several units side by side of one batch entry.
#pragma once

#include "step.cuh"

namespace rnncc {

// Words of 32 bits that follow each other in memory. They move in pieces as large as their number allows.
template <int WORDS>
RNNCC_DEVICE void load_words(uint32_t (&words)[WORDS], const char* from) {
  if constexpr (WORDS % 4 == 0)
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i * 4);
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
  else if constexpr (WORDS % 2 == 0)
#pragma unroll
    for (int i = 0; i < WORDS; i += 2) {
      const float2 v = *reinterpret_cast<const float2*>(from + i * 4);
      words[i] = __float_as_uint(v.x), words[i + 1] = __float_as_uint(v.y);
    }
  else
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = *reinterpret_cast<const uint32_t*>(from + i * 4);
}
template <int WORDS>
RNNCC_DEVICE void store_words(char* to, const uint32_t (&words)[WORDS]) {
  if constexpr (WORDS % 4 == 0)
#pragma unroll
    for (int i = 0; i < WORDS; i += 4)
      *reinterpret_cast<uint4*>(to + i * 4) = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
  else if constexpr (WORDS % 2 == 0)
#pragma unroll
    for (int i = 0; i < WORDS; i += 2)
      *reinterpret_cast<float2*>(to + i * 4) = make_float2(__uint_as_float(words[i]), __uint_as_float(words[i + 1]));
  else
#pragma unroll
    for (int i = 0; i < WORDS; ++i) *reinterpret_cast<uint32_t*>(to + i * 4) = words[i];
}

// The elementwise work of a lane on UNITS units side by side of one batch entry, step after step. Elements have 16 bits.
// `carry` and what a step reads stay in registers. Reads are on their way while the product before them runs.
template <class Step, int H, int UNITS>
struct Span {
  using E = typename Step::Element;
  using R = typename RowElement<E, Step::ROW_FLOAT != 0>::type;
  static constexpr int WORDS = UNITS / 2;  // of elements; floats take twice as many
  static_assert(sizeof(E) == 2 && UNITS % 2 == 0 && Step::WIDTHS == 1);

  // What the span has of the tensors that a step reads.
  struct Reads {
    uint32_t elements[at_least_one(Step::READS)][WORDS], floats[at_least_one(Step::READS)][UNITS];
    RNNCC_DEVICE float of(int tensor, int i) const {
      if (has(float_reads<Step>, tensor)) return __uint_as_float(floats[tensor][i]);
      return to_float(E{uint16_t(elements[tensor][i / 2] >> i % 2 * 16)});
    }
  };

  float carry[UNITS][at_least_one(Step::CARRIES)];
  uint32_t vectors;    // of the first unit in shared memory, vector after vector
  int vector_step;     // floats from a vector to the next
  int unit, row_unit;  // the first unit, counted within the head and within a tensor's row
  int head, entry;     // the entry counted within the batch
  bool has_entry;
  OwnRows rows;
  R row_now[at_least_one(Step::ROW_READS)] = {}, row_next[at_least_one(Step::ROW_READS)] = {};  // two steps

  // Whether the entry has a row at step t.
  RNNCC_DEVICE bool has_rows(int t) const { return has_entry && t < rows.steps; }

  // The address of the span's elements of a tensor [T, B, H] at step t.
  RNNCC_DEVICE char* at(const Place& place, int t, int bytes) const {
    return place.base + (t * place.step + made_again(rows.first) * place.entry + row_unit * bytes);
  }
  // The address of the head's element of a tensor [T, B, heads] at step t; `bytes` per head, or 0 for a tensor
  // [T, B, 1].
  RNNCC_DEVICE char* row_at(const Place& place, int t, int bytes) const {
    return place.base + (t * place.step + made_again(rows.first) * place.entry + head * bytes);
  }

  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Seat& seat, int first_unit,
                          int group_entry) {
    unit = first_unit;
    head = seat.head;
    row_unit = head * H + unit;
    has_entry = group_entry < seat.entries;
    entry = seat.first_entry + (has_entry ? group_entry : 0);
    rows = own_rows<Step>(call, own.descending, entry);
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
#pragma unroll
      for (int s = 0; s < Step::CARRIES; ++s)
        carry[i][s] =
            s < Step::EDGES && has_entry ? take<E>(own.initial[s < Step::EDGES ? s : 0], entry, row_unit + i) : 0.0f;
    ask_rows(own, 0, seat.steps);
  }

  // Loads what step t reads: for its start, and again for its later stages, after its start has written. So no tensor that
  // a step writes may be one that it reads.
  RNNCC_DEVICE void ask(const FusedTensors<Step>& own, int t, Reads& reads) const {
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      const bool is_float = has(float_reads<Step>, r);
      // A tensor that is read one step ahead has nothing for the last step. `numbers` reads an edge there.
      const bool wanted = own.reads[r].base && has_rows(t + has(Step::READ_SHIFTED, r));
      const char* const from = at(own.reads[r], t, is_float ? 4 : 2);
#pragma unroll
      for (uint32_t& word : reads.elements[r]) word = 0;
#pragma unroll
      for (uint32_t& word : reads.floats[r]) word = 0;
      if (wanted && is_float) load_words(reads.floats[r], from);
      if (wanted && !is_float) load_words(reads.elements[r], from);
    }
  }
  // Starts to load what `start` of step t reads at (t, entry). What was loaded for step t - 1 moves to row_now, where its
  // later stages find it.
  RNNCC_DEVICE void ask_rows(const FusedTensors<Step>& own, int t, int steps) {
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const Place& place = own.row_reads[r];
      if (!place.base) continue;  // zeros, as they began
      const int bytes = has(row_floats<Step>, r) ? 4 : sizeof(E);
      const char* const from = row_at(place, t, has(Step::ROW_PER_HEAD, r) ? bytes : 0);
      row_now[r] = row_next[r];
      row_next[r] = R{};
      if (t < steps && has_rows(t)) {
        if constexpr (Step::ROW_FLOAT == 0)
          row_next[r] = *reinterpret_cast<const E*>(from);
        else
          row_next[r] = has(row_floats<Step>, r) ? *reinterpret_cast<const float*>(from)
                                                 : to_float(*reinterpret_cast<const E*>(from));
      }
    }
  }

  // What unit i has for stages of step t: of tensors, of the entry, and of vectors.
  struct Numbers {
    float read[at_least_one(Step::READS)], row[row_values<Step>], vector[at_least_one(Step::VECTORS)];
  };
  template <bool AT_START>
  RNNCC_DEVICE Numbers numbers(const FusedTensors<Step>& own, const Reads& reads, int t, int i) const {
    Numbers found;
    const bool is_last = t + 1 == rows.steps;
#pragma unroll
    for (int r = 0; r < Step::READS; ++r) {
      found.read[r] = reads.of(r, i);
      if (has(Step::READ_SHIFTED, r) && is_last)
        found.read[r] = has_entry ? take<E>(own.read_edges[r], entry, row_unit + i) : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) found.row[r] = to_float(AT_START ? row_next[r] : row_now[r]);
    if constexpr (Step::MASKED) found.row[Step::ROW_READS] = has_entry && rows.is_active(t) ? 1.0f : 0.0f;
#pragma unroll
    for (int w = 0; w < Step::ROW_VALUES - Step::ROW_READS - Step::MASKED; ++w)
      found.row[Step::ROW_READS + Step::MASKED + w] = H;
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v)
      found.vector[v] = shared_at<const float>(vectors + (v * vector_step + i) * 4);
    return found;
  }

  // Writes what stage S made of step t.
  template <int S>
  RNNCC_DEVICE void write(const FusedTensors<Step>& own, int t, const float (&made)[UNITS][written<Step>]) const {
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w) {
      if (!has(writes_of<Step, S>, w) || !own.writes[w].base || !has_rows(t)) continue;
      if (has(float_writes<Step>, w)) {
        uint32_t words[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) words[i] = __float_as_uint(made[i][w]);
        store_words(at(own.writes[w], t, 4), words);
      } else {
        uint32_t words[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words[i] = pack<E>(made[2 * i][w], made[2 * i + 1][w]);
        store_words(at(own.writes[w], t, 2), words);
      }
    }
    // What there is once per head, the head's first unit writes.
#pragma unroll
    for (int w = Step::WRITES; w < Step::WRITES + Step::ROW_WRITES; ++w) {
      if (!has(writes_of<Step, S>, w) || unit != 0 || !own.writes[w].base || !has_rows(t)) continue;
      if (has(float_writes<Step>, w))
        *reinterpret_cast<float*>(row_at(own.writes[w], t, 4)) = made[0][w];
      else
        *reinterpret_cast<E*>(row_at(own.writes[w], t, sizeof(E))) = from_float<E>(made[0][w]);
    }
  }

  // Runs `start` of step t for all units, or `middle` P, or `finish`. What they make is written later (`write`), since
  // other CTAs wait for the operands.
  RNNCC_DEVICE void start(const FusedCall<Step>& call, const FusedTensors<Step>& own, int t, const Reads& reads,
                          float (&operand)[UNITS][PhaseOf<Step, 0>::TAKES], float (&made)[UNITS][written<Step>]) {
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
      const Numbers has_now = numbers<true>(own, reads, t, i);
      Step::start(has_now.read, has_now.row, has_now.vector, call.constants, carry[i], operand[i], made[i]);
    }
  }
  template <int P, int SUMS>
  RNNCC_DEVICE void middle(const FusedCall<Step>& call, const FusedTensors<Step>& own, int t, const Reads& reads,
                           const float (&sum)[UNITS][SUMS], float (&operand)[UNITS][PhaseOf<Step, P>::TAKES],
                           float (&made)[UNITS][written<Step>]) {
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
      const Numbers has_now = numbers<false>(own, reads, t, i);
      Step::middle(Stage<P>{}, sum[i], has_now.read, has_now.row, has_now.vector, call.constants, carry[i], operand[i],
                   made[i]);
    }
  }
  // Steps beyond an entry's last row leave its carries as they are: their values may be infinite, so that to multiply
  // them by zero is not enough.
  template <int SUMS>
  RNNCC_DEVICE void finish(const FusedCall<Step>& call, const FusedTensors<Step>& own, int t, const Reads& reads,
                           const float (&sum)[UNITS][SUMS], float (&made)[UNITS][written<Step>]) {
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
      const Numbers has_now = numbers<false>(own, reads, t, i);
      float before[at_least_one(Step::CARRIES)];
#pragma unroll
      for (int s = 0; s < Step::EDGES; ++s) before[s] = carry[i][s];
      Step::finish(sum[i], has_now.read, has_now.row, has_now.vector, call.constants, carry[i], made[i]);
      if constexpr (Step::MASKED)
#pragma unroll
        for (int s = 0; s < Step::EDGES; ++s) carry[i][s] = has_rows(t) ? carry[i][s] : before[s];
    }
  }

  RNNCC_DEVICE void end(const FusedTensors<Step>& own) const {
    if (!has_entry) return;
#pragma unroll
    for (int s = 0; s < Step::EDGES; ++s)
#pragma unroll
      for (int i = 0; i < UNITS; ++i) put<E>(own.last[s], entry, row_unit + i, carry[i][s]);
  }
};

}  // namespace rnncc
