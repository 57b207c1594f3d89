// The parts of a fused loop that all families share: the elementwise work of a step, and the elements of its matrices.
// call.cuh says what a step is.
#pragma once

#include "traffic.cuh"

namespace rnncc {

// The type in which a step's values per batch entry wait for their use: that of the tensors, or float where one of them
// is float.
template <class E, bool HAS_FLOATS>
struct RowElement {
  using type = E;
};
template <class E>
struct RowElement<E, true> {
  using type = float;
};

// The sum of two numbers, or the larger one.
template <bool LARGEST>
RNNCC_DEVICE float joined(float a, float b) {
  return LARGEST ? maximum(a, b) : a + b;
}
// number(BEGIN) to number(END - 1) joined, in a tree: so few of the joins wait for each other.
template <bool LARGEST, int BEGIN, int END, class F>
RNNCC_DEVICE float joined_of(const F& number) {
  if constexpr (END - BEGIN == 1)
    return number(BEGIN);
  else
    return joined<LARGEST>(joined_of<LARGEST, BEGIN, (BEGIN + END) / 2>(number),
                           joined_of<LARGEST, (BEGIN + END) / 2, END>(number));
}
// The sum of the squares of number(0) to number(N - 1), as two sums that do not wait for each other.
template <int N, class F>
RNNCC_DEVICE float squares_of(const F& number) {
  float squares[2] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) squares[i % 2] += number(i) * number(i);
  return N == 1 ? squares[0] : squares[0] + squares[1];
}

// What a unit gives to moments: those of its own numbers.
template <int N>
RNNCC_DEVICE float mean(const float (&numbers)[N]) {
  return joined_of<false, 0, N>([&](int i) { return numbers[i]; }) * (1.0f / N);
}
template <int N>
RNNCC_DEVICE float squared_deviations(const float (&numbers)[N]) {
  if (N == 1) return 0.0f;
  const float middle = mean(numbers);
  return squares_of<N>([&](int i) { return numbers[i] - middle; });
}

// The elementwise part of 8 units × 8 entries, which one warp does. A lane has unit lane / 4 and two entries, 2 · (lane
// % 4) and the next, as the accumulators of mma have them.
template <class Step, int H, class Traffic>
struct Item {
  using E = typename Step::Element;
  using In = typename Traffic::In;
  using Out = typename Traffic::Out;
  float carry[2][at_least_one(Step::CARRIES)];
  float vector[at_least_one(Step::VECTORS)];
  uint32_t e_row;      // the lane's place in rows of Elements
  uint32_t float_row;  // and in rows of floats
  int unit;            // counted within the head
  int head;
  int row_unit[Step::WIDTHS];   // the unit counted within a tensor's row, for each width
  bool has_unit[Step::WIDTHS];  // whether values of a width have the unit
  int entry;                    // the first of the lane's two, counted within the batch
  bool has_entry[2];
  OwnRows rows[Step::MASKED ? 2 : 1];
  using R = typename RowElement<E, Step::ROW_FLOAT != 0>::type;
  R row_now[2][at_least_one(Step::ROW_READS)] = {}, row_next[2][at_least_one(Step::ROW_READS)] = {};  // two steps

  // The item has the CTA's units from `own_unit` on, and its entries from `own_row` on, where each tile counts as 8.
  RNNCC_DEVICE void begin(const FusedCall<Step>& call, const FusedTensors<Step>& own, const Traffic& traffic,
                          const Seat& seat, int first_unit, int own_unit, int own_row) {
    const int lane = threadIdx.x % 32, in_tile = lane % 4 * 2, cta_unit = own_unit + lane / 4;
    const int group_entry = own_row / 8 * Traffic::LANE_ENTRIES + in_tile;
    unit = first_unit + cta_unit;
    head = seat.head;
#pragma unroll
    for (int w = 0; w < Step::WIDTHS; ++w) {
      row_unit[w] = seat.head * head_dim_of<Step, H>(call, w) + unit;
      has_unit[w] = unit < head_dim_of<Step, H>(call, w);
    }
    entry = seat.first_entry + group_entry;
    // Lanes whose entries a tile does not have read others' rows, and write none.
    const int row = own_row / 8 * Traffic::LANE_ENTRIES + in_tile % Traffic::LANE_ENTRIES;
    e_row = traffic.shared + row * In::E_ROW + cta_unit * 2;
    float_row = traffic.shared + row * In::FLOAT_ROW + cta_unit * 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      has_entry[j] = in_tile + j < Traffic::LANE_ENTRIES && group_entry + j < seat.entries && unit < H;
      if constexpr (Step::MASKED) rows[j] = has_entry[j] ? own_rows<Step>(call, own.descending, entry + j) : OwnRows{};
    }
#pragma unroll
    for (int v = 0; v < Step::VECTORS; ++v) {
      const int w = width_of<Step, Value::vector>(v);
      // Every unit has a scalar, also where values of the first width have fewer.
      const int64_t stride = own.vectors[v].entry;
      vector[v] = stride == 0 || has_unit[w] ? take<E>(own.vectors[v], 0, row_unit[w] * stride) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int s = 0; s < Step::CARRIES; ++s) {
        const int w = width_of<Step, Value::edge>(s);
        carry[j][s] = s < Step::EDGES && exists(j, w)
                          ? take<E>(own.initial[s < Step::EDGES ? s : 0], entry + j, row_unit[w])
                          : 0.0f;
      }
    ask(own, 0, seat.steps);
  }

  // Whether the lane has an element of its entry j in values of a width.
  RNNCC_DEVICE bool exists(int j, int width) const { return has_entry[j] && (Step::WIDTHS == 1 || has_unit[width]); }

  // Whether the entry has a row at step t.
  RNNCC_DEVICE bool has_rows(int j, int t) const {
    if constexpr (Step::MASKED) return t < rows[j].steps;
    return has_entry[j];
  }

  // The address of the head's element of a tensor [T, B, heads] at (t, the lane's entry j); `bytes` per head, or 0 for
  // a tensor [T, B, 1].
  RNNCC_DEVICE char* row_at(const Place& place, int j, int t, int bytes) const {
    const int row = Step::MASKED ? rows[Step::MASKED ? j : 0].first : entry + j;
    return place.base + (t * place.step + row * place.entry + (bytes ? head * bytes : 0));
  }

  // Starts to load what `start` of step t reads at (t, entry), which takes as long as a product. So it is called before
  // the product of step t - 1. What was loaded for step t - 1 moves to row_now, where its later stages find it.
  RNNCC_DEVICE void ask(const FusedTensors<Step>& own, int t, int steps) {
#pragma unroll
    for (int r = 0; r < Step::ROW_READS; ++r) {
      const Place& place = own.row_reads[r];
      if (!place.base) continue;  // zeros, as they began
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int bytes = has(row_floats<Step>, r) ? 4 : sizeof(E);
        const char* const at = row_at(place, j, t, has(Step::ROW_PER_HEAD, r) ? bytes : 0);
        row_now[j][r] = row_next[j][r];
        row_next[j][r] = R{};
        if (t < steps && has_rows(j, t)) {
          if constexpr (Step::ROW_FLOAT == 0)
            row_next[j][r] = *reinterpret_cast<const E*>(at);
          else
            row_next[j][r] = has(row_floats<Step>, r) ? *reinterpret_cast<const float*>(at)
                                                      : to_float(*reinterpret_cast<const E*>(at));
        }
      }
    }
  }

  // Loads the values of step t for `start` (AT_START), or for the stages after it. `last`: no step comes after it.
  template <bool AT_START>
  RNNCC_DEVICE void load(const FusedCall<Step>& call, const FusedTensors<Step>& own, int t, bool last,
                         float (&read)[2][at_least_one(Step::READS)], float (&row)[2][row_values<Step>]) const {
    const uint32_t stage = uint32_t(t) % Traffic::STAGES * In::BYTES;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int r = 0; r < Step::READS; ++r) {
        read[j][r] = has(float_reads<Step>, r)
                         ? shared_at<const float>(float_row + stage + In::offset(r) + j * In::FLOAT_ROW)
                         : to_float(shared_at<const E>(e_row + stage + In::offset(r) + j * In::E_ROW));
        const bool is_last = Step::MASKED ? t + 1 == rows[Step::MASKED ? j : 0].steps : last;
        if (has(Step::READ_SHIFTED, r) && is_last)
          read[j][r] = exists(j, width_of<Step, Value::read>(r))
                           ? take<E>(own.read_edges[r], entry + j, row_unit[width_of<Step, Value::read>(r)])
                           : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < Step::ROW_READS; ++r) row[j][r] = to_float(AT_START ? row_next[j][r] : row_now[j][r]);
      if constexpr (Step::MASKED) row[j][Step::ROW_READS] = rows[j].is_active(t) ? 1.0f : 0.0f;
      // The head_dims of all widths, where the step uses one.
#pragma unroll
      for (int w = 0; w < Step::ROW_VALUES - Step::ROW_READS - Step::MASKED; ++w)
        row[j][Step::ROW_READS + Step::MASKED + w] = head_dim_of<Step, H>(call, w);
    }
  }

  // Runs `start` of a step, or `middle` S of it.
  template <int OPERANDS>
  RNNCC_DEVICE void start(const FusedCall<Step>& call, int j, const float (&read)[at_least_one(Step::READS)],
                          const float (&row)[row_values<Step>], float (&operand)[OPERANDS],
                          float (&write)[written<Step>]) {
    Step::start(read, row, vector, call.constants, carry[j], operand, write);
  }
  template <int S, int SUMS, int OPERANDS>
  RNNCC_DEVICE void middle(const FusedCall<Step>& call, int j, const float (&sum)[SUMS],
                           const float (&read)[at_least_one(Step::READS)], const float (&row)[row_values<Step>],
                           float (&operand)[OPERANDS], float (&write)[written<Step>]) {
    Step::middle(Stage<S>{}, sum, read, row, vector, call.constants, carry[j], operand, write);
  }
  // Runs `finish` of step t. Steps beyond an entry's last row leave its carries as they are: their values may be
  // infinite, so that to multiply them by zero is not enough.
  RNNCC_DEVICE void finish(const FusedCall<Step>& call, int j, int t, const float (&sum)[LastPhase<Step>::GIVES],
                           const float (&read)[at_least_one(Step::READS)], const float (&row)[row_values<Step>],
                           float (&write)[written<Step>]) {
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
  RNNCC_DEVICE void put_down(const FusedTensors<Step>& own, int t, const float (&write)[2][written<Step>]) const {
    const uint32_t begin = Traffic::WRITTEN + (t & 1) * Out::BYTES;
    const bool has_row = Traffic::LANE_ENTRIES == 8 || threadIdx.x % 4 * 2 < Traffic::LANE_ENTRIES;
#pragma unroll
    for (int w = 0; w < Step::WRITES; ++w)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (!has(writes_of<Step, S>, w) || !has_row)
          continue;
        else if (has(float_writes<Step>, w))
          shared_at<float>(float_row + begin + Out::offset(w) + j * Out::FLOAT_ROW) = write[j][w];
        else
          shared_at<E>(e_row + begin + Out::offset(w) + j * Out::E_ROW) = from_float<E>(write[j][w]);
    // What there is once per head, the head's first unit writes to memory itself.
#pragma unroll
    for (int w = Step::WRITES; w < Step::WRITES + Step::ROW_WRITES; ++w) {
      const bool is_float = has(float_writes<Step>, w);
      if (!has(writes_of<Step, S>, w) || unit != 0 || !own.writes[w].base) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int step = t + (S == 0);
        if (!has_entry[j] || !has_rows(j, step)) continue;
        char* const at = row_at(own.writes[w], j, step, is_float ? 4 : sizeof(E));
        if (is_float)
          *reinterpret_cast<float*>(at) = write[j][w];
        else
          *reinterpret_cast<E*>(at) = from_float<E>(write[j][w]);
      }
    }
  }

  RNNCC_DEVICE void end(const FusedTensors<Step>& own) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int s = 0; s < Step::EDGES; ++s)
        if (exists(j, width_of<Step, Value::edge>(s)))
          put<E>(own.last[s], entry + j, row_unit[width_of<Step, Value::edge>(s)], carry[j][s]);
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

// The head_dims of a sum's units, and of an operand's terms.
struct MatrixDims {
  int units, terms;
};
template <class Step, int P, int H>
RNNCC_DEVICE MatrixDims matrix_dims(const FusedCall<Step>& call, [[maybe_unused]] int sum,
                                    [[maybe_unused]] int operand) {
  MatrixDims dims = {H, H};
  if constexpr (Step::WIDTHS > 1) {
    using Phase = PhaseOf<Step, P>;
#pragma unroll
    for (int i = 0; i < Phase::SUMS; ++i)
      if (i == sum) dims.units = call.head_dims[width_of<Step, Value::sum, P>(i)];
#pragma unroll
    for (int i = 0; i < Phase::OPERANDS; ++i)
      if (i == operand) dims.terms = call.head_dims[width_of<Step, Value::operand, P>(i)];
  }
  return dims;
}

// The rule of a matrix of phase P, if it has one.
template <class Step, int P>
RNNCC_DEVICE MatrixRule matrix_rule(int sum, int operand) {
  using Phase = PhaseOf<Step, P>;
  MatrixRule rule;
  for_numbers<Phase::MATRICES>([&](auto index) {
    constexpr int I = decltype(index)::value;
    constexpr MatrixRule known = Step::RULES[Phase::FIRST_MATRIX + I];
    if (sum * Phase::OPERANDS + operand == I) rule = known;
  });
  return rule;
}
template <class E>
RNNCC_DEVICE Terms<E> terms_of(const MatrixRule& rule, int unit, int k) {
  const auto element = [&](int i) { return from_float<E>(rule.has(unit, k + i) ? 1.0f : 0.0f); };
  if constexpr (sizeof(E) == 4) {
    return {{element(0), element(1), element(2), element(3)}, {element(4), element(5), element(6), element(7)}};
  } else {
    const auto two = [&](int i) { return element(i).bits | uint32_t(element(i + 1).bits) << 16; };
    return {two(0), two(2), two(4), two(6)};
  }
}

// Eight elements of a head's matrix of phase P, which has that sum and operand: elements k to k + 7 of row `unit`, or of
// column `unit` where it is transposed.
template <class Step, int P, int H>
RNNCC_DEVICE Terms<typename Step::Element> matrix8(const FusedCall<Step>& call, const FusedTensors<Step>& own, int sum,
                                                   int operand, int head, int unit, int k) {
  using E = typename Step::Element;
  using Phase = PhaseOf<Step, P>;
  const void* const matrix = own.matrices[Phase::FIRST_MATRIX + sum * Phase::OPERANDS + operand];
  const MatrixDims dims = matrix_dims<Step, P, H>(call, sum, operand);
  if (unit >= dims.units || k >= dims.terms) return {};
  if constexpr (Step::HAS_RULES)
    if (const MatrixRule rule = matrix_rule<Step, P>(sum, operand); rule.relation != Relation::none)
      return terms_of<E>(rule, unit, k);
  if (Phase::HAS_HOLES && !matrix) return {};
  const E* const from = static_cast<const E*>(matrix) + int64_t(head) * dims.units * dims.terms;
  if constexpr (Phase::TRANSPOSED) {
    const auto element = [&](int i) { return from[int64_t(k + i) * dims.units + unit]; };
    if constexpr (sizeof(E) == 4) {
      return {{element(0), element(1), element(2), element(3)}, {element(4), element(5), element(6), element(7)}};
    } else {
      const auto two = [&](int i) { return element(i).bits | uint32_t(element(i + 1).bits) << 16; };
      return {two(0), two(2), two(4), two(6)};
    }
  } else {
    return *reinterpret_cast<const Terms<E>*>(from + int64_t(unit) * dims.terms + k);
  }
}

}  // namespace rnncc
