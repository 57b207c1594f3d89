// A generated loop as tables, which the drivers of a CPU and of a GPU read: plain data, and no function that depends on
// either. No member has a default of its own: where an initialiser in an array leaves such a member out, nvcc 13 sets
// it to zero instead of its default.
#pragma once

#include "call.h"

namespace rnncc {

// The lists of tensors of a call. A forward call has the first seven, a backward call has all but SEQUENCES and FINAL.
enum Table : int8_t {
  STREAMS,
  WEIGHTS,
  STATES,
  SEQUENCES,
  FINAL,
  SAVED,
  ROUNDED,  // more tensors of SAVED's list: those that have the streams' dtype on a GPU
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
  vector,    // units [offset, offset + width) of weight `index`, the same for all steps and batch entries
  stored,    // written by a stage
  view,      // units [offset, offset + width) of slot `link`
  tile,      // the accumulator of a product: exists only while its stage works on a tile
};

// A value with an address. `width` and `offset` are places in the program's dims; dims[0] is 0.
struct SlotInfo {
  Kind kind;
  Table table;
  bool lasting;  // it stays readable until products and sums over its block of steps are taken
  bool read;     // a stored slot: stages, row operators or the end of the loop read it from memory
  bool shared;   // a stored slot: another thread than the one that wrote an element reads it during the loop
  int16_t index;
  int16_t link;
  int16_t width;
  int16_t parts;  // [parts, heads, ...], the layout of a row
  int16_t offset;
  int16_t first_destination;  // a stored slot: in the program's destinations
  int16_t destinations;
};

// A tensor [T, B, ...] that a stored slot also goes to, from unit `offset` on, where the call wants that tensor.
struct Destination {
  Table table;
  int16_t index;
  int16_t offset;
};

// Rows [row, row + rows) of weight `index`. They are stored as [rows, columns / blocks], and the rows are laid out
// [parts, blocks, ...].
struct MatrixInfo {
  int16_t index;
  int16_t row;
  int16_t rows;
  int16_t columns;
  int16_t blocks;
  int16_t parts;
  bool sparse;  // a mask stands beside the weight: most elements may be zero
};

// Accumulators [first, first + count) (+)= matrix @ operand, or matrixᵀ @ operand where transposed. The operand's
// layout is [parts, blocks, ...].
struct ProductInfo {
  int16_t operand;
  int16_t image;   // of the operand's values
  int16_t matrix;  // first of `count` entries of the program's product_matrices
  int16_t first;
  int16_t count;
  int16_t parts;
  bool transposed;
  bool accumulate;
};

// A second form of stored slot `slot`, in which its blocks lie apart, for products to read. On a GPU it has the
// matrices' dtype.
struct ImageInfo {
  int16_t slot;
  int16_t parts;   // of the slot's layout, [parts, blocks, ...]
  int16_t blocks;  // a dim; where it is 1 there is one block, whatever parts is
};

enum class RowOperator : int8_t {
  none,
  sum,
  mean,
  spread,
  max,
  squares,
  variance,
  cumsum,
  cumsum_reversed,
  slice,
  concat,
  repeat,
  segment_sum,
  pad,
  roll,
  shift,
  per_head,
  by_row,
  by_column,
  row_sums,
  column_sums,
  row_maxima,
  column_maxima,
  transpose,
  matmul,
  on_diagonal,
  diagonal,
  elements,  // a function of the elements of a matrix, which is no operator
};

// A step is a list of stages. A tile stage goes over `width` units tile by tile: it computes the tile's products and
// then its function. A row stage applies one row operator, or a function to the elements of a matrix.
struct StageInfo {
  bool barrier;     // whether threads that divide units wait for each other before it
  RowOperator row;  // none in a tile stage
  int16_t width;    // that of the function's values, or of the row operator's target
  int16_t parts;    // values are laid out [parts, blocks, ...]; no tile crosses a block
  int16_t blocks;
  int16_t first_product;
  int16_t products;
  int16_t first_accumulator;  // the slots of accumulators are consecutive
  int16_t accumulators;
  int16_t first_stored;  // in the program's stage_slots: the slots that it writes
  int16_t stored;
  int16_t first_operand;  // in the program's stage_slots: a row operator's operands
  int16_t operands;
  int16_t offset;                       // a dim, for a row operator; by so many places a roll or shift moves units
  int16_t times;                        // how often a unit is repeated
  int16_t function;                     // its index; -1 for a row operator
  int16_t matrix_rows, matrix_columns;  // dims, of stages of matrices: those of all heads' blocks together
  int16_t column_sums, column_maxima;   // of a matrix's elements: so many of the slots that it writes last
};

// At the end slot `slot`, which is a previous one, goes to table[index], a tensor [B, width].
struct FinalInfo {
  int16_t slot;
  Table table;
  int16_t index;
};

// d_matrix += cotangent ⊗ operand, over all steps and batch entries.
struct OuterInfo {
  int16_t matrix;
  int16_t cotangent;
  int16_t operand;
  int16_t parts;  // those of the operand's layout
};

// The gradient of units [offset, offset + width) of weight `index`: the sum of a slot over steps and batch entries.
// Where width is less than the slot's, the sum also goes over units: over all, or over those of a head.
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

// An array of constants.
template <class T>
struct Constants {
  const T* first;
  int16_t count;
  constexpr const T* begin() const { return first; }
  constexpr const T* end() const { return first + count; }
  constexpr const T& operator[](int index) const { return first[index]; }
};

// Tensor `index` of a table, from unit `offset` on, which is a dim.
struct LoopPlace {
  Table table;
  int16_t index, offset;
};

// A part of a matrix of the program: its rows lie as [parts, ...]. `matrix`: -1 where a rule gives it, or there is none.
struct LoopMatrix {
  int16_t matrix, part;
};

// A carry: the tensors of its initial value, and of its value after the last step where `has_last`.
struct LoopEdge {
  LoopPlace first, last;
  bool has_last;
};

// A tensor that a step reads at its t; where it is `shifted` at the next step, and after the last one the tensor `end`.
struct LoopRead {
  LoopPlace place, end;
  bool shifted;
};

// A weight of one number per unit (`wide`), or of one for all units. It may be a part of a matrix of one row or column.
struct LoopVector {
  LoopPlace place;
  LoopMatrix part;
  bool wide;
};

// A part of a slot, which goes to destination `place` of the slot's, or to its record: -1. `scalar`: it has one number
// per head.
struct LoopWrite {
  int16_t slot, part, place;
  bool scalar;
};

// A sum over all heads, taken after the loop: the slots of the sum, and of the record that has its terms.
struct LoopLate {
  int16_t sum, terms;
};

// A loop in a form that has kernels of its own: a fused step (cuda/fused/device/call.cuh), or that of a scan or walk, whose
// units do not wait for each other (cuda/scan/lanes.cuh). All zero: the loop has neither form.
struct LoopInfo {
  int16_t units;  // a dim: those of a batch entry, where the loop has no products
  int16_t sums, operands, reductions;
  int16_t relayed;                 // operands that are sums of the phase before, with nothing in between
  int16_t relayed_width;           // their width, among the `widths`
  int16_t denser_dim;              // 1 where masks are denser than planned; dim 0, which is 0, where there is none
  int16_t handed;                  // values that stages of a step hand on, besides edges
  Constants<int16_t> widths;       // dims: those of the values of a fused loop; none for any other loop
  Constants<LoopMatrix> matrices;  // of all phases, sum by sum
  Constants<LoopEdge> edges;
  Constants<LoopRead> reads;
  Constants<LoopPlace> rows;  // read at (t, entry): one number, or one per head
  Constants<LoopVector> vectors;
  Constants<LoopWrite> writes;  // those of one number per head come last
  Constants<LoopLate> late;
  Constants<int16_t> totals;  // slots of which only the sum over all steps is wanted
};

// A kernel of a loop without products. A group is `vector` channels of one batch entry, side by side in a lane.
struct ScanForm {
  int16_t vector;
  int16_t threads;  // per CTA
  int16_t groups;   // per CTA, or per cluster of CTAs
  int16_t steps;    // that a CTA works on side by side; 0: one after the other, so a cluster would be of no use
  // Each of a cluster of n CTAs has `shared_bytes` + (n > 1 ? n : 0) * `peer_bytes`, and `least_shared_bytes` at least.
  int32_t shared_bytes, peer_bytes, least_shared_bytes;
  int32_t least_ctas;  // how many must share steps for the kernel to be of use; 0: there is no kernel
};

// The kernels of a program without products, each for elements of 32 and of 16 bits. `vectorised` takes tensors whose
// rows begin at multiples of 16 bytes, and `tall` takes the same where there are few channels. `narrow` takes all.
// `newton` takes what `vectorised` does, where the others are walks.
struct ScanForms {
  ScanForm vectorised[2], tall[2], narrow[2], newton[2];
};

// Describes the loop of one segment in one direction.
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
  int16_t dim_count, slot_count, destination_count, matrix_count, product_count, product_matrix_count, image_count,
      stage_count;
  int16_t final_count, outer_count, sum_count, zero_count;
  int16_t constant_count, weight_count, weight_rows,
      weight_columns;  // the last two: the first of as many dims as there are weights
  bool masked;         // the loop has the two mask streams: it takes lengths, resets, and on a GPU packed tensors
  int16_t active;      // the slot of the second of them, or -1. A GPU's kernels know its values from the call's lengths
};

// The tensors and sizes of a call of either direction. `descending`: t runs from T-1 down to 0.
struct Call {
  const rnncc_tensor* table[TABLES];
  int64_t steps, batch, heads;
  const int64_t* sizes;
  const double* constants;
  bool descending;
  const int64_t* starts;
  int64_t rows;
  const int64_t* lengths;
  const rnncc_bias* biases;
  int64_t bias_count;
  const void* products;
};

inline __attribute__((always_inline)) Call forward_call(const rnncc_forward_call& c) {
  return {
      .table = {c.streams, c.weights, c.states, c.sequences, c.final_states, c.saved, c.saved},
      .steps = c.steps,
      .batch = c.batch,
      .heads = c.heads,
      .sizes = c.sizes,
      .constants = c.constants,
      .descending = c.reverse,
      .starts = c.starts,
      .rows = c.rows,
      .lengths = c.lengths,
      .biases = c.biases,
      .bias_count = c.bias_count,
      .products = c.products,
  };
}

inline __attribute__((always_inline)) Call backward_call(const rnncc_backward_call& c) {
  return {
      .table = {c.streams, c.weights, c.states, nullptr, nullptr, c.saved, c.saved, c.d_sequences, c.d_final,
                c.d_streams, c.d_weights, c.d_states},
      .steps = c.steps,
      .batch = c.batch,
      .heads = c.heads,
      .sizes = c.sizes,
      .constants = c.constants,
      .descending = !c.reverse,
      .starts = c.starts,
      .rows = c.rows,
      .lengths = c.lengths,
      .biases = c.biases,
      .bias_count = c.bias_count,
      .products = c.products,
  };
}

}  // namespace rnncc
