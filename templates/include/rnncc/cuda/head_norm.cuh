// Layer norm over each head, forward and backward (head_norm_call.h). Values are read once and stay in registers. Sums
// are float32 and are added in a fixed order.
#pragma once

#include "head_norm_call.h"
#include "scalar.cuh"

namespace rnncc {

// UNITS numbers of the dtype S, as they lie in memory.
template <class S, int UNITS>
struct Piece {
  static constexpr int PER_WORD = 4 / int(sizeof(S)), WORDS = UNITS / PER_WORD;
  uint32_t words[WORDS];

  RNNCC_DEVICE float operator[](int unit) const {
    if constexpr (PER_WORD == 1)
      return __uint_as_float(words[unit]);
    else
      return to_float(S{uint16_t(words[unit / 2] >> unit % 2 * 16)});
  }
  // Expects zero where it sets.
  RNNCC_DEVICE void set(int unit, S number) {
    if constexpr (PER_WORD == 1)
      words[unit] = __float_as_uint(number);
    else
      words[unit / 2] |= uint32_t(number.bits) << unit % 2 * 16;
  }
  // What follows computes with the words again. To keep what was computed with them would take more registers than
  // there are.
  RNNCC_DEVICE void read_again() {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) asm volatile("" : "+r"(words[w]));
  }
};

// What a thread has of each row that its team takes. ALIGNED is the call's.
template <int UNITS, int PIECES, bool ALIGNED>
struct HeadShare {
  const HeadNormCall& call;
  int64_t row;              // the team's first, and then its present one
  int32_t head, lane;       // the team's head, and the thread's number in the team
  int32_t offsets[PIECES];  // where pieces lie in a row; negative where there is none

  RNNCC_DEVICE explicit HeadShare(const HeadNormCall& call) : call(call) {
    const int thread = int(blockIdx.x) * call.threads + int(threadIdx.x), team = thread / call.team;
    lane = thread % call.team;
    head = team % call.heads;
    row = team / call.heads;
    // The last CTA may have teams too many.
    if (row >= call.rows_at_once) row = call.rows;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int piece = lane + i * call.team, part = piece / call.pieces, first = piece % call.pieces * UNITS;
      offsets[i] = part < call.k ? (part * call.heads + head) * call.head_dim + first : -1;
    }
  }

  RNNCC_DEVICE bool has_row() const { return row < call.rows; }
  RNNCC_DEVICE int64_t statistic() const { return row * call.heads + head; }
  RNNCC_DEVICE void next_row() {
    row += call.rows_at_once;
    // Addresses are made of the offsets again, which takes fewer registers than to keep all of them.
#pragma unroll
    for (int i = 0; i < PIECES; ++i) asm volatile("" : "+r"(offsets[i]));
  }

  // The number of units of piece i.
  RNNCC_DEVICE int units(int i) const {
    if (offsets[i] < 0) return 0;
    return ALIGNED ? UNITS : ::min(call.head_dim - offsets[i] % call.head_dim, UNITS);
  }

  // Where the present row of a tensor begins. A team without a row reads the last one.
  template <class S>
  RNNCC_DEVICE const S* begin(const void* tensor) const {
    const int64_t width = int64_t(call.k) * call.heads * call.head_dim;
    return static_cast<const S*>(tensor) + ::min(row, call.rows - 1) * width;
  }

  // Reads piece i of what begins at `from`. Units that are not there are zero. Loads stand in no branch, so that all of
  // a thread's are on their way at once.
  template <class S>
  RNNCC_DEVICE Piece<S, UNITS> load(int i, const S* from) const {
    Piece<S, UNITS> piece = {};
    const int count = units(i);
    from += ::max(offsets[i], 0);
    if constexpr (ALIGNED) {
#pragma unroll
      for (int w = 0; w < Piece<S, UNITS>::WORDS; w += 4) {
        const uint4 quad = reinterpret_cast<const uint4*>(from)[w / 4];
        piece.words[w] = count ? quad.x : 0;
        piece.words[w + 1] = count ? quad.y : 0;
        piece.words[w + 2] = count ? quad.z : 0;
        piece.words[w + 3] = count ? quad.w : 0;
      }
    } else {
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit)
        if (unit < count) piece.set(unit, from[unit]);
    }
    return piece;
  }

  // The same of a vector that may be absent.
  template <class S>
  RNNCC_DEVICE Piece<S, UNITS> load_vector(int i, const void* vector) const {
    return vector ? load(i, static_cast<const S*>(vector)) : Piece<S, UNITS>{};
  }

  // Writes piece i of what begins at `to`.
  template <class S>
  RNNCC_DEVICE void store(int i, const float (&numbers)[UNITS], S* to) const {
    const int count = units(i);
    if (count == 0) return;
    to += offsets[i];
    if constexpr (ALIGNED) {
      Piece<S, UNITS> piece = {};
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) piece.set(unit, from_float<S>(numbers[unit]));
#pragma unroll
      for (int w = 0; w < Piece<S, UNITS>::WORDS; w += 4)
        reinterpret_cast<uint4*>(to)[w / 4] =
            make_uint4(piece.words[w], piece.words[w + 1], piece.words[w + 2], piece.words[w + 3]);
    } else {
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit)
        if (unit < count) to[unit] = from_float<S>(numbers[unit]);
    }
  }

  // The mean over a head, of which each thread of the team gives a part of the sum. `scratch` is shared memory, which
  // teams of more than a warp need.
  RNNCC_DEVICE float mean(float sum, float* scratch) const {
    for (int offset = ::min(call.team, 32) / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (call.team > 32) {
      __syncthreads();  // others may still read what the last call left
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
      __syncthreads();
      sum = scratch[0];
#pragma unroll 1
      for (int warp = 1; warp < call.team / 32; ++warp) sum += scratch[warp];
    }
    // A division without its slow path: the product with the reciprocal, and a correction of what that rounds.
    const float quotient = sum * call.reciprocal;
    return fmaf(fmaf(-quotient, float(call.k * call.head_dim), sum), call.reciprocal, quotient);
  }
};

// All threads take all turns, because they add up together. In the last turn there may be no row for them.
template <class Value, class Result, bool ALIGNED>
RNNCC_DEVICE void normalise_heads(const HeadNormCall& call) {
  constexpr int UNITS = 16 / int(sizeof(Value)), PIECES = HEAD_NORM_HELD / int(sizeof(Result)) / UNITS;
  extern __shared__ __align__(128) char shared[];
  float* const scratch = reinterpret_cast<float*>(shared);
  HeadShare<UNITS, PIECES, ALIGNED> own(call);
  for (int turn = 0; turn < call.turns; ++turn, own.next_row()) {
    const Value* const from = own.template begin<Value>(call.value);
    Piece<Value, UNITS> value[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) value[i] = own.load(i, from);
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) sum += value[i][unit];
    const float mean = own.mean(sum, scratch);
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      value[i].read_again();
      const int count = own.units(i);
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) {
        const float centred = unit < count ? value[i][unit] - mean : 0.0f;
        squares += centred * centred;
      }
    }
    const float scale = rsqrtf(own.mean(squares, scratch) + call.epsilon);
    if (!own.has_row()) continue;
    if (own.lane == 0) {
      call.means[own.statistic()] = mean;
      call.scales[own.statistic()] = scale;
    }
    Result* const to = const_cast<Result*>(own.template begin<Result>(call.normalised));
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      value[i].read_again();
      const auto weight = own.template load_vector<Result>(i, call.weight);
      const auto bias = own.template load_vector<Result>(i, call.bias);
      float results[UNITS];
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) {
        const float normalised = (value[i][unit] - mean) * scale;
        results[unit] = (call.weight ? normalised * weight[unit] : normalised) + bias[unit];
      }
      own.store(i, results, to);
    }
  }
}

// With n the normalised value and g = d_normalised * weight: d_value = scale * (g - mean of g - n * mean of g * n),
// d_weight sums d_normalised * n over rows, d_bias d_normalised.
template <class Value, class Result, bool ALIGNED>
RNNCC_DEVICE void differentiate_heads(const HeadNormCall& call) {
  constexpr int UNITS = 16 / int(sizeof(Value)), PIECES = HEAD_NORM_HELD / int(sizeof(Result)) / UNITS;
  extern __shared__ __align__(128) char shared[];
  float* const scratch = reinterpret_cast<float*>(shared);
  HeadShare<UNITS, PIECES, ALIGNED> own(call);
  float d_weight[PIECES][UNITS] = {}, d_bias[PIECES][UNITS] = {};
  for (int turn = 0; turn < call.turns; ++turn, own.next_row()) {
    const Value* const from = own.template begin<Value>(call.value);
    const Result* const d_from = own.template begin<Result>(call.d_normalised);
    Piece<Value, UNITS> value[PIECES];
    Piece<Result, UNITS> d_normalised[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      value[i] = own.load(i, from);
      d_normalised[i] = own.load(i, d_from);
    }
    float mean = 0, scale = 0, sum = 0, products = 0;
    if (own.has_row()) {
      mean = call.means[own.statistic()];
      scale = call.scales[own.statistic()];
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        const auto weight = own.template load_vector<Result>(i, call.weight);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
          const float n = (value[i][unit] - mean) * scale, d = d_normalised[i][unit];
          const float g = call.weight ? d * weight[unit] : d;
          sum += g;
          products += g * n;
          d_weight[i][unit] += d * n;
          d_bias[i][unit] += d;
        }
      }
    }
    if (!call.d_value) continue;
    sum = own.mean(sum, scratch);
    products = own.mean(products, scratch);
    if (!own.has_row()) continue;
    Value* const to = const_cast<Value*>(own.template begin<Value>(call.d_value));
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      value[i].read_again();
      d_normalised[i].read_again();
      const auto weight = own.template load_vector<Result>(i, call.weight);
      float d_value[UNITS];
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) {
        const float n = (value[i][unit] - mean) * scale, d = d_normalised[i][unit];
        d_value[unit] = scale * ((call.weight ? d * weight[unit] : d) - sum - n * products);
      }
      own.store(i, d_value, to);
    }
  }
  const int64_t first = own.row - int64_t(call.turns) * call.rows_at_once;
  if (!call.partials || first >= call.rows) return;
  const int64_t width = int64_t(call.k) * call.heads * call.head_dim;
  float* const partials = call.partials + first * 2 * width;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    own.store(i, d_weight[i], partials);
    own.store(i, d_bias[i], partials + width);
  }
}

template <class Value, class Result>
RNNCC_DEVICE void head_norm(const HeadNormCall& call) {
  call.aligned ? normalise_heads<Value, Result, true>(call) : normalise_heads<Value, Result, false>(call);
}

template <class Value, class Result>
RNNCC_DEVICE void head_norm_backward(const HeadNormCall& call) {
  call.aligned ? differentiate_heads<Value, Result, true>(call) : differentiate_heads<Value, Result, false>(call);
}

// Adds up the partial sums of 32 elements of d_weight. CTAs whose blockIdx.y is 1 do so for d_bias.
template <class Result>
RNNCC_DEVICE void head_norm_sums(const HeadNormSums& call) {
  extern __shared__ __align__(128) char shared[];
  float* const sums = reinterpret_cast<float*>(shared);
  Result* const to = static_cast<Result*>(blockIdx.y ? call.d_bias : call.d_weight);
  if (!to) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t unit = int64_t(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (unit < call.width) {
    const float* const from = call.partials + blockIdx.y * call.width + unit;
#pragma unroll 8
    for (int64_t part = warp; part < call.parts; part += HEAD_NORM_SUM_WARPS) sum += from[part * 2 * call.width];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0 || unit >= call.width) return;
  for (int other = 1; other < HEAD_NORM_SUM_WARPS; ++other) sum += sums[other * 32 + lane];
  to[unit] = from_float<Result>(sum);
}

}  // namespace rnncc
