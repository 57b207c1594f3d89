// A generated loop as tables: what every backend's driver reads. Plain data, no function that depends on a backend. No member
// has a default of its own: nvcc 13 has zero in its place where an initialiser in an array names others and leaves it out.
#pragma once

#include <stdint.h>

#include "call.h"

namespace rnncc {

// Where the tensors of a call stand; the first seven are a forward call's, a backward call has all but SEQUENCES and FINAL.
enum Table : int8_t {
  STREAMS,
  WEIGHTS,
  STATES,
  SEQUENCES,
  FINAL,
  SAVED,
  ROUNDED,  // entries of the same list: on a GPU in the streams' dtype
  D_SEQUENCES,
  D_FINAL,
  D_STREAMS,
  D_WEIGHTS,
  D_STATES,
  TABLES
};

// What a forward call saves and a backward call reads.
constexpr bool is_saved(Table table) { return table == SAVED || table == ROUNDED; }

// Whether a table's tensors have the streams' type on a GPU; the others are float there.
constexpr bool is_stream_typed(Table table) {
  return table == STREAMS || table == WEIGHTS || table == SEQUENCES || table == ROUNDED || table == D_SEQUENCES ||
         table == D_STREAMS || table == D_WEIGHTS;
}

enum class Kind : int8_t {
  read,      // table[index] at t, units from offset on; zeros where the tensor is not given
  previous,  // what slot `link` held a step before, table[index] at the first step
  next,      // what slot `link` holds a step later, table[index] at the last step
  vector,    // units [offset, offset + width) of weight `index`, the same for all steps and rows
  stored,    // written by a stage
  view,      // units [offset, offset + width) of slot `link`
  tile,      // the accumulator of a product: exists only while its stage works on a tile
};

// A value with an address. `width` and `offset` are indices into the program's dims; dims[0] is 0.
struct SlotInfo {
  Kind kind;
  Table table;
  bool kept;  // must stay readable until the products of its block of steps are taken
  bool read;    // of a stored slot: stages, row operators or the end of the loop read it from memory
  bool shared;  // of a stored slot: another thread than the one that wrote an element reads it during the loop
  int16_t index;
  int16_t link;
  int16_t width;
  int16_t parts;  // [parts, heads, ...], the layout of a row
  int16_t offset;
  int16_t first_destination;  // of a stored slot
  int16_t destinations;
};

// A tensor [T, B, ...] that a stored slot also goes to, units from offset on, where that tensor is wanted.
struct Destination {
  Table table;
  int16_t index;
  int16_t offset;
};

// Rows [row, row + rows) of weight `index`: stored [rows, columns / blocks], rows laid out [parts, blocks, ...].
struct MatrixInfo {
  int16_t index;
  int16_t row;
  int16_t rows;
  int16_t columns;
  int16_t blocks;
  int16_t parts;
};

// Accumulators [first, first + count) (+)= matrix @ operand (matrixᵀ @ operand where transposed), `parts` as in
// [parts, blocks, ...], the operand's layout.
struct ProductInfo {
  int16_t operand;
  int16_t image;  // of the operand's values
  int16_t matrix;  // first of `count` entries of the program's product_matrices
  int16_t first;
  int16_t count;
  int16_t parts;
  bool transposed;
  bool accumulate;
};

// A second form of stored slot `slot`, made for products: its blocks apart. A GPU keeps these in the matrices' dtype.
struct ImageInfo {
  int16_t slot;
  int16_t parts;   // of the slot's layout, [parts, blocks, ...]
  int16_t blocks;  // dim; 1: one block, whatever parts is
};

enum class RowOperator : int8_t {
  none,
  sum,
  mean,
  spread,
  max,
  cumsum,
  cumsum_reversed,
  slice,
  concat,
  repeat,
  segment_sum,
  pad,
};

// A step is a list of stages. A tile stage computes, tile by tile of `width` units, its products and then its function;
// a row stage applies one row operator.
struct StageInfo {
  bool barrier;     // before it, when units are divided among threads
  RowOperator row;  // none in a tile stage
  int16_t width;    // of the function's values, or of the row operator's target
  int16_t parts;    // width = parts * blocks * the rest, tiles do not cross it
  int16_t blocks;
  int16_t first_product;
  int16_t products;
  int16_t first_accumulator;  // slots, consecutive
  int16_t accumulators;
  int16_t first_stored;  // in the program's stage_slots: slots it writes
  int16_t stored;
  int16_t first_operand;  // in the program's stage_slots: a row operator's operands
  int16_t operands;
  int16_t offset;  // dim, of a row operator
  int16_t times;
  int16_t function;  // index, -1 in a row stage
};

// Slot `slot` (a previous one) at the end goes to table[index], a tensor [B, width].
struct FinalInfo {
  int16_t slot;
  Table table;
  int16_t index;
};

// d_matrix += cotangent ⊗ operand over all steps and rows.
struct OuterInfo {
  int16_t matrix;
  int16_t cotangent;
  int16_t operand;
  int16_t parts;  // of the operand's layout
};

// The gradient of units [offset, offset + width) of weight `index`: the sum of slot over steps and rows, and over units
// (of a head) where width is less than the slot's.
struct SumInfo {
  int16_t index;
  int16_t offset;
  int16_t width;
  int16_t slot;
};

// Units [offset, offset + width) of tensor table[index] are zero.
struct ZeroInfo {
  Table table;
  int16_t index;
  int16_t offset;
  int16_t width;
};

// A loop in the form that kernels of its own take: with one product a step (cuda/fused/step.cuh), or with none
// (cuda/scan/lanes.cuh). Entries are slots where no other thing is named. All zero: the loop has neither form.
struct LoopInfo {
  int16_t products, sums, operands, edges, reads, rows, vectors, writes, totals;
  int16_t kept;  // what `start` leaves for `finish`, besides edges
  const int16_t* matrices;      // [products], of the program's matrices; -1: none
  const int16_t* edge_slots;
  const int16_t* edge_finals;   // of the program's finals, or -1
  const int16_t* read_slots;
  const int16_t* row_slots;
  const int16_t* vector_slots;
  const int16_t* write_slots;
  const int16_t* write_places;  // of the slot's destinations, or -1: its record
  const int16_t* total_slots;   // what is only summed over all steps
};

// A kernel of a loop without products. A group is `vector` units of a batch column, side by side in a lane.
struct ScanForm {
  int16_t vector;
  int16_t threads;  // of a block
  int16_t groups;   // of a block, or of a cluster of them
  int16_t steps;    // that a block works on side by side; 0: one after the other, so a cluster would be of no use
  // Of a cluster of n blocks, each: the least, or `shared_bytes` + (n > 1 ? n : 0) * `peer_bytes`.
  int32_t shared_bytes, peer_bytes, least_shared_bytes;
  int32_t least_blocks;  // that share steps, where the kernel is of use; 0: there is none
};

// Of a program without products, for elements of 32 and of 16 bits: `wide` takes tensors whose rows begin at multiples of 16
// bytes, `tall` the same where there are few channels, `narrow` all; `newton` takes what `wide` does of a loop that the others
// walk through.
struct ScanForms {
  ScanForm wide[2], tall[2], narrow[2], newton[2];
};

// The loop of one segment in one direction.
struct Tables {
  void (*dims)(const int64_t* sizes, int64_t heads, int64_t* dims);
  const SlotInfo* slots;
  const Destination* destinations;
  const MatrixInfo* matrices;
  const ProductInfo* products;
  const int16_t* product_matrices;
  const ImageInfo* images;
  const StageInfo* stages;
  const int16_t* stage_slots;
  const FinalInfo* finals;
  const OuterInfo* outers;
  const SumInfo* sums;
  const ZeroInfo* zeros;
  int16_t dim_count, slot_count, destination_count, matrix_count, product_count, product_matrix_count,
      image_count, stage_count;
  int16_t final_count, outer_count, sum_count, zero_count;
  int16_t constant_count, weight_count, weight_rows, weight_columns;  // the last two: dims, one per weight, consecutive
  bool masked;  // the loop has the two mask streams: it takes lengths, resets, and on a GPU packed tensors
  int16_t active;  // the slot that is the second of them, -1: none. A GPU's kernels know it from the call's lengths
};

// The tensors and sizes of a call of either direction. `descending`: t runs from T-1 down to 0.
struct Call {
  const rnncc_tensor* table[TABLES];
  int64_t steps, columns, heads;
  const int64_t* sizes;
  const double* constants;
  bool descending;
  const int64_t* starts;
  int64_t rows;
  const int64_t* lengths;
};

inline __attribute__((always_inline)) Call forward_call(const rnncc_forward_call& c) {
  return {
      .table = {c.streams, c.weights, c.states, c.sequences, c.final_states, c.saved, c.saved},
      .steps = c.steps,
      .columns = c.columns,
      .heads = c.heads,
      .sizes = c.sizes,
      .constants = c.constants,
      .descending = c.reverse,
      .starts = c.starts,
      .rows = c.rows,
      .lengths = c.lengths,
  };
}

inline __attribute__((always_inline)) Call backward_call(const rnncc_backward_call& c) {
  return {
      .table = {c.streams, c.weights, c.states, nullptr, nullptr, c.saved, c.saved, c.d_sequences, c.d_final,
                c.d_streams, c.d_weights, c.d_states},
      .steps = c.steps,
      .columns = c.columns,
      .heads = c.heads,
      .sizes = c.sizes,
      .constants = c.constants,
      .descending = !c.reverse,
      .starts = c.starts,
      .rows = c.rows,
      .lengths = c.lengths,
  };
}

}  // namespace rnncc
