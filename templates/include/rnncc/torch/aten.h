// Torch's own operations on tensors that the ops' host side needs, through the dispatcher: they run on the current stream.
#pragma once

#include "tensor.h"

namespace rnncc {

// The same tensor, owned once more.
inline Tensor alias(const Tensor& tensor) {
  TensorHandle handle;
  RNNCC_TORCH(aoti_torch_new_tensor_handle(tensor.get(), &handle));
  return Tensor(handle);
}

inline StableValue share(const Tensor& tensor) { return give(alias(tensor)); }

// Calls an operation; its one result, a tensor, is returned.
inline Tensor call_aten(const char* name, const char* overload, std::vector<StableValue> stack) {
  check(torch_call_dispatcher(name, overload, stack.data(), rnncc_torch_abi), name);
  return Tensor(reinterpret_cast<TensorHandle>(stack[0]));
}

// A tensor over memory that it does not own; `dtype` as torch numbers it, or ours.
inline Tensor over(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int32_t dtype,
                   Device device) {
  TensorHandle handle;
  RNNCC_TORCH(aoti_torch_create_tensor_from_blob(const_cast<void*>(data), int64_t(sizes.size()), sizes.data(), strides.data(), 0,
                                                 dtype, device.type, device.index, &handle));
  return Tensor(handle);
}

inline Tensor over(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, rnncc_dtype dtype,
                   Device device) {
  return over(data, sizes, strides, torch_dtype(dtype), device);
}

inline void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b) {
  call_aten(a.dim() == 3 ? "aten::bmm" : "aten::mm", "out", {share(a), share(b), share(out)});
}

inline void sum_into(const Tensor& out, const Tensor& tensor, const std::vector<int64_t>& dims) {
  ListHandle list;
  RNNCC_TORCH(torch_new_list_reserve_size(dims.size(), &list));
  for (int64_t dim : dims) RNNCC_TORCH(torch_list_push_back(list, StableValue(dim)));
  // An optional argument points to its value, which torch deletes.
  auto* optional = new StableValue(reinterpret_cast<StableValue>(list));
  call_aten("aten::sum", "IntList_out", {share(tensor), reinterpret_cast<StableValue>(optional), 0, 0, share(out)});
}

// [steps, columns] of `dtype`: 1 where the step is within its column's length.
inline Tensor active_steps(const Tensor& lengths, int64_t steps, int64_t columns, int32_t dtype, Device device) {
  Tensor numbers = empty({steps}, lengths.torch_type(), device);
  numbers = call_aten("aten::cumsum", "", {share(call_aten("aten::ones_like", "", {share(numbers), 0, 0, 0, 0, 0})), 0, 0});
  const Tensor wide = over(lengths.data(), {steps, columns}, {0, 1}, lengths.torch_type(), device);
  const Tensor tall = over(numbers.data(), {steps, columns}, {1, 0}, lengths.torch_type(), device);
  Tensor within = call_aten("aten::le", "Tensor", {share(tall), share(wide)});
  Tensor result = empty({steps, columns}, dtype, device);
  RNNCC_TORCH(aoti_torch_copy_(result.get(), within.get(), 0));
  return result;
}

// Rows of packed tensors of a GPU one step on: row r is row r - 1 of `from` (`earlier`) or r + 1, and where a column begins (or
// ends) its row of `edge` [B, width], zeros where that has no data. `starts` as a call's.
struct ShiftedRows {
  ShiftedRows(const rnncc_tensor& from, const rnncc_tensor& edge, const int64_t* starts, int64_t columns, int64_t rows, int64_t width,
              bool earlier, rnncc_dtype dtype, Device device)
      : memory(empty({rows + 1, width}, torch_dtype(dtype), device)) {
    const auto from_row = [](const rnncc_tensor& t, int64_t row) { return static_cast<char*>(t.data) + row * t.column * dtype_bytes(t.dtype); };
    const rnncc_tensor whole = {memory.data(), 0, width, dtype};
    // One row more than there are: what columns without rows would set.
    described = {from_row(whole, !earlier), width, width, dtype};
    if (rows > 1) {
      RNNCC_TORCH(aoti_torch_copy_(over(from_row(described, earlier), {rows - 1, width}, {width, 1}, dtype, device).get(),
                                   over(from_row(from, !earlier), {rows - 1, width}, {from.column, 1}, from.dtype, device).get(), 0));
    }
    Tensor edges = empty({columns, width}, torch_dtype(dtype), device);
    if (edge.data) {
      RNNCC_TORCH(aoti_torch_copy_(edges.get(), over(edge.data, {columns, width}, {edge.column, 1}, edge.dtype, device).get(), 0));
    } else {
      RNNCC_TORCH(aoti_torch_zero_(edges.get()));
    }
    const auto entries = [&](int64_t first, int64_t count) { return over(starts + first, {count}, {1}, aoti_torch_dtype_int64(), device); };
    const Tensor begins = entries(0, columns), ends = entries(1, columns);
    const Tensor has_rows = call_aten("aten::gt", "Tensor", {share(ends), share(begins)});
    const Tensor places = call_aten("aten::where", "self", {share(has_rows), share(earlier ? begins : ends), share(entries(earlier ? columns : 0, 1))});
    call_aten("aten::index_copy_", "", {share(memory), 0, share(places), share(edges)});
  }

  Tensor memory;
  rnncc_tensor described;  // of the rows
};

}  // namespace rnncc
