// The op `permute_rows` as a boxed kernel. It puts the rows of a PackedSequence, which lie step by step, into the order
// of batch entries, or back (`to_steps`). firsts [T + 1] says where the rows of each step begin, and starts [B + 1]
// where the rows of each entry begin; both are int64.
#pragma once

#include "module.h"
#include "permute_call.h"

namespace rnncc {

inline const int64_t* table_of(Tensor& table, Device device, const char* name) {
  if (table.dim() != 1 || table.elements() < 2 || table.torch_type() != aoti_torch_dtype_int64() ||
      !(table.device() == device))
    fail(std::string("permute_rows: ") + name +
         " must be an int64 tensor of 2 or more numbers on the rows' device, got the shape " + shape_text(table));
  table = contiguous(std::move(table), 1);
  return static_cast<const int64_t*>(table.data());
}

// Fills in how warps share the rows. Returns the number of CTAs.
inline int64_t share_rows(PermuteCall& call) {
  // All rows begin at multiples of piece_bytes, which is the lowest bit that is set, and at most 16.
  const uint64_t bits = 16 | reinterpret_cast<uintptr_t>(call.from) | reinterpret_cast<uintptr_t>(call.to) |
                        uint64_t(call.from_row) | uint64_t(call.to_row);
  call.piece_bytes = int32_t(bits & (~bits + 1));
  call.pieces = call.to_row / call.piece_bytes;
  call.rows_of_tile = int32_t(std::min<int64_t>(32, std::max<int64_t>(1, PERMUTE_TILE / call.pieces)));
  call.tiles_of_row = uint32_t((call.pieces + PERMUTE_TILE - 1) / PERMUTE_TILE);
  const int64_t rows_of_cta = call.rows_of_tile * PERMUTE_WARPS;
  return (call.rows + rows_of_cta - 1) / rows_of_cta * call.tiles_of_row;
}

// (Tensor rows, Tensor firsts, Tensor starts, bool to_steps) -> Tensor
inline void run_permute_rows(StableValue* stack) {
  Tensor rows(reinterpret_cast<TensorHandle>(stack[0]));
  Tensor firsts(reinterpret_cast<TensorHandle>(stack[1]));
  Tensor starts(reinterpret_cast<TensorHandle>(stack[2]));
  const Device device = rows.device();
  if (device.is_cpu()) fail("permute_rows: the rows are not on a GPU");
  if (rows.dim() == 0) fail("permute_rows: a number has no rows");
  const OnDevice current(device.index);
  PermuteCall call = {};
  call.firsts = table_of(firsts, device, "firsts");
  call.starts = table_of(starts, device, "starts");
  Tensor made = empty(sizes_of(rows), rows.torch_type(), device);
  if (rows.strides()[0] == 0) {
    // Where all rows are one in memory, as in the gradient of a sum, their order makes no difference.
    RNNCC_TORCH(aoti_torch_copy_(made.get(), rows.get(), 0));
  } else if (made.elements() > 0) {
    const int64_t inner = rows.dim() - 1;
    rows = contiguous(std::move(rows), inner);
    const int64_t bytes = int64_t(aoti_torch_dtype_element_size(rows.torch_type()));
    call.from = static_cast<const char*>(rows.data());
    call.to = static_cast<char*>(made.data());
    call.steps = firsts.elements() - 1;
    call.batch = starts.elements() - 1;
    call.rows = rows.sizes()[0];
    call.from_row = rows.strides()[0] * bytes;
    call.to_row = made.strides()[0] * bytes;
    call.to_steps = as_bool(stack[3]);
    const int64_t ctas = share_rows(call);
    launch_kernel("permute_rows", find_kernel(device.index, "_core", "permute_rows"), {ctas, 32 * PERMUTE_WARPS},
                  device.index, &call);
  }
  stack[0] = give(std::move(made));
}

}  // namespace rnncc
