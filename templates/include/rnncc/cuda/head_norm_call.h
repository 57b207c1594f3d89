// Layer norm over each head, on a GPU. The host fills these records (head_norm_op.h), and the kernels read them
// (head_norm.cuh). Plain data.
#pragma once

#include "../core/integers.h"

namespace rnncc {

constexpr int HEAD_NORM_THREADS = 128;    // per CTA of teams that are no more than a warp
constexpr int HEAD_NORM_UNITS = 8192;     // of the largest head: k * head_dim, each part in whole pieces
constexpr int HEAD_NORM_SUM_WARPS = 16;   // per CTA that adds partial sums
constexpr int HEAD_NORM_LEAST_TURNS = 4;  // of a team backward, so that partial sums are few beside the rows

// Bytes of results that a thread holds. Backward it also holds two sums for each of their units.
constexpr int HEAD_NORM_HELD = 64;

// Threads of the largest team.
template <class Result>
constexpr int HEAD_NORM_TEAM = HEAD_NORM_UNITS * int(sizeof(Result)) / HEAD_NORM_HELD;

// How many threads an SM must have registers for. Backward these are three CTAs, or the largest team.
constexpr int HEAD_NORM_FORWARD = 1024;
template <class Result>
constexpr int HEAD_NORM_BACKWARD =
    HEAD_NORM_TEAM<Result> > 3 * HEAD_NORM_THREADS ? HEAD_NORM_TEAM<Result> : 3 * HEAD_NORM_THREADS;

// Bytes of shared memory per CTA.
constexpr int HEAD_NORM_SHARED = HEAD_NORM_TEAM<float> / 32 * 4, HEAD_NORM_SUM_SHARED = HEAD_NORM_SUM_WARPS * 32 * 4;

// A row is [k, heads, head_dim]: each head has k parts of it. A team of threads takes one head of a row at a time. The
// number of its threads is a power of two, and it is a part of a warp or a CTA. In the next turn it takes the same head
// of the row that is rows_at_once further on. A thread reads pieces of parts. A piece has as many numbers as 16 bytes
// of the value hold, and the last piece of a part may have fewer. Pointers may be null where an input is not there or a
// result is not wanted.
struct HeadNormCall {
  const void* value;   // [rows, k * heads * head_dim], as all of its shape
  const void* weight;  // [k * heads * head_dim]
  const void* bias;
  void* normalised;
  const void* d_normalised;
  void* d_value;
  float* means;     // [rows, heads]
  float* scales;    // [rows, heads]: 1 / sqrt(variance + epsilon)
  float* partials;  // [rows_at_once, 2, k * heads * head_dim]: sums of d_weight and d_bias over the turns
  int64_t rows, rows_at_once;
  int32_t turns;
  int32_t heads, k, head_dim;
  int32_t pieces;             // per part of a head
  int32_t team, threads;      // threads per team and per CTA
  float epsilon, reciprocal;  // the latter of k * head_dim
  int32_t aligned;            // whether all pieces are whole, and begin at multiples of 16 bytes
};

// Adds up the partial sums: a lane for each unit, and warps that share the parts.
struct HeadNormSums {
  const float* partials;  // [parts, 2, width]
  void* d_weight;
  void* d_bias;
  int64_t parts, width;
};

}  // namespace rnncc
