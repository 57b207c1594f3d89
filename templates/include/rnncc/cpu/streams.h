// The product that makes a loop's streams (rnncc_stream_product), a block of steps at a time: all threads of the team
// make the block's rows, and the loop then reads them from cache. Where nobody keeps the streams, the next block takes
// the same memory: the streams of a long call would be new memory, which takes longer to touch than to fill.
#pragma once

#include "linear.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A weight comes from farther than the first-level cache: as if there were so many more rows.
constexpr int64_t waiting_rows = 16, waiting_rows_of_pairs = 64;

// How many rows a block of steps should have. Streams of fewer rows stay in second-level caches, where they are wide.
template <class T>
static int64_t wanted_rows(const Run<T>& run) {
  if (!run.streams.given) return rows_of_block;
  constexpr int64_t cached_bytes = int64_t(2) << 20, least = rows_of_block / 4;
  const int64_t caches = 1 + run.sharing.threads / 4;
  const int64_t rows = caches * cached_bytes / (run.streams.given->product.outputs * int64_t(sizeof(T)));
  return rows < least ? least : rows < rows_of_block ? rows : rows_of_block;
}

// Lays out the weight as the product reads it, the bias in the compute type, the block's rows and each thread's rooms. It
// is called twice: to count, and then to place.
template <class T>
static void lay_out_streams(Run<T>& run, Arena& arena) {
  StreamProduct<T>& streams = run.streams;
  if (!streams.given) return;
  const rnncc_linear_call& call = streams.given->product;
  streams.block = call.y.data ? nullptr : arena.take<T>(run.block_capacity() * call.outputs);
  // Few rows do not pay for a packed weight.
  streams.once = !call.packed && call.rows <= few_rows && call.rows <= run.block_capacity() && as_they_lie<T>(call);
  const bool pairs = !call.packed && takes_pairs<T>(call.weight.dtype, call.inputs);
  T* memory = static_cast<T*>(const_cast<void*>(call.packed));
  if (!memory && !streams.once) memory = arena.take<T>(packed_elements<T>(call.outputs, call.inputs, pairs));
  streams.weight = {memory, call.outputs, call.inputs, pairs};
  streams.bias = call.bias.data && !streams.once ? arena.take<T>(call.outputs) : nullptr;
  if (streams.bias) load_row(streams.bias, call.bias.data, int64_t(0), call.outputs, dtype_of[call.bias.dtype]);
  streams.in_room = in_place<T>(call.x) ? 0 : linear_rows * call.inputs;
  const int64_t weight_room = in_place<T>(call.weight) ? 0 : panel_columns<T> * call.inputs;
  streams.room = streams.once ? once_scratch_elements<T>
                              : round_up(streams.in_room > weight_room ? streams.in_room : weight_room, 16);
  streams.rooms = arena.take<T>(streams.room * run.sharing.threads);
}

// Packs a thread's share of the weight.
template <class T>
static void pack_streams(const Run<T>& run, int64_t index, int64_t members) {
  const StreamProduct<T>& streams = run.streams;
  if (!streams.given || streams.given->product.packed || streams.once) return;
  pack_weight(streams.weight, streams.given->product.weight, true, streams.rooms + index * streams.room, index,
              members);
}

// Makes a thread's share of the rows of steps [begin, end).
template <class T>
static void make_streams(const Run<T>& run, int64_t begin, int64_t end, int64_t index, int64_t members) {
  const StreamProduct<T>& streams = run.streams;
  rnncc_linear_call call = streams.given->product;
  const int64_t first = begin * run.call.batch;
  call.rows = (end - begin) * run.call.batch;
  call.x = rows_from(call.x, first);
  call.y = call.y.data ? rows_from(call.y, first) : rnncc_matrix{streams.block, call.outputs, compute_dtype<T>};
  T* room = streams.rooms + index * streams.room;
  if (streams.once) return multiply_few(call, room, index, members);
  const int64_t piece = streams.weight.pairs ? 2 * amx_size : kernel_rows;
  const int64_t waiting = streams.weight.pairs ? waiting_rows_of_pairs : waiting_rows;
  const Parts parts = parts_for<T>(members, call.rows, call.outputs, waiting, piece);
  for_parts<T>(parts, call.rows, call.outputs, index, members, [&](const Range& rows, const Range& columns) {
    multiply_rows(call.y, call.x, streams.weight, streams.bias, rows, columns, room, static_cast<T*>(nullptr));
  });
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
