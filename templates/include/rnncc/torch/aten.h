// The host side of the ops needs some of torch's own operations. The dispatcher runs them on the current stream.
#pragma once

#include "tensor.h"

// out = a b on a GPU, where torch has CUDA. It takes the host less time than the dispatcher does.
extern "C" __attribute__((weak)) int32_t aoti_torch_cuda_mm_out(TensorHandle out, TensorHandle a, TensorHandle b);

namespace rnncc {

// A second owner of the same tensor.
inline Tensor alias(const Tensor& tensor) {
  TensorHandle handle;
  RNNCC_TORCH(aoti_torch_new_tensor_handle(tensor.get(), &handle));
  return Tensor(handle);
}

inline StableValue share(const Tensor& tensor) { return give(alias(tensor)); }

// Calls an operation that has one result, a tensor, and returns it.
inline Tensor call_aten(const char* name, const char* overload, std::vector<StableValue> stack) {
  check(torch_call_dispatcher(name, overload, stack.data(), rnncc_torch_abi), name);
  return Tensor(reinterpret_cast<TensorHandle>(stack[0]));
}

// A tensor over memory that it does not own. `dtype` is torch's number, or ours.
inline Tensor over(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   int32_t dtype, Device device) {
  TensorHandle handle;
  RNNCC_TORCH(aoti_torch_create_tensor_from_blob(const_cast<void*>(data), int64_t(sizes.size()), sizes.data(),
                                                 strides.data(), 0, dtype, device.type, device.index, &handle));
  return Tensor(handle);
}

inline Tensor over(const void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   rnncc_dtype dtype, Device device) {
  return over(data, sizes, strides, torch_dtype(dtype), device);
}

inline void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (aoti_torch_cuda_mm_out && a.dim() == 2 && !a.on_cpu()) {
    RNNCC_TORCH(aoti_torch_cuda_mm_out(out.get(), a.get(), b.get()));
    return;
  }
  call_aten(a.dim() == 3 ? "aten::bmm" : "aten::mm", "out", {share(a), share(b), share(out)});
}

// The same for matrices of 16 bits, or of floats, where `out` has floats.
inline void multiply_to_float(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (a.torch_type() == out.torch_type()) return multiply_into(out, a, b);
  call_aten("aten::mm", "dtype_out", {share(a), share(b), StableValue(out.torch_type()), share(out)});
}

inline void sum_into(const Tensor& out, const Tensor& tensor, const std::vector<int64_t>& dims) {
  ListHandle list;
  RNNCC_TORCH(torch_new_list_reserve_size(dims.size(), &list));
  for (int64_t dim : dims) RNNCC_TORCH(torch_list_push_back(list, StableValue(dim)));
  // An optional argument points to its value, which torch deletes.
  auto* optional = new StableValue(reinterpret_cast<StableValue>(list));
  call_aten("aten::sum", "IntList_out", {share(tensor), reinterpret_cast<StableValue>(optional), 0, 0, share(out)});
}

// a + b. torch's stable interface has a difference alone.
inline Tensor add(const Tensor& a, const Tensor& b) {
  TensorHandle sum;
  RNNCC_TORCH(aoti_torch_aten_subtract_Tensor(a.get(), b.get(), -1.0, &sum));
  return Tensor(sum);
}

// Makes a tensor [steps, batch] of `dtype`: 1 where the step is within the entry's length, else 0.
inline Tensor active_steps(const Tensor& lengths, int64_t steps, int64_t batch, int32_t dtype, Device device) {
  Tensor numbers = empty({steps}, lengths.torch_type(), device);
  numbers =
      call_aten("aten::cumsum", "", {share(call_aten("aten::ones_like", "", {share(numbers), 0, 0, 0, 0, 0})), 0, 0});
  const Tensor wide = over(lengths.data(), {steps, batch}, {0, 1}, lengths.torch_type(), device);
  const Tensor tall = over(numbers.data(), {steps, batch}, {1, 0}, lengths.torch_type(), device);
  Tensor within = call_aten("aten::le", "Tensor", {share(tall), share(wide)});
  Tensor result = empty({steps, batch}, dtype, device);
  RNNCC_TORCH(aoti_torch_copy_(result.get(), within.get(), 0));
  return result;
}

// A GPU's packed rows, moved by one step: row r is row r - 1 of `from` (`earlier`), or row r + 1. Where a batch entry
// begins (or ends), it is the entry's row of `edge` [B, width], or zeros where `edge` has no data. `starts` is that of
// a call.
struct ShiftedRows {
  ShiftedRows(const rnncc_tensor& from, const rnncc_tensor& edge, const int64_t* starts, int64_t batch, int64_t rows,
              int64_t width, bool earlier, rnncc_dtype dtype, Device device)
      : memory(empty({rows + 1, width}, torch_dtype(dtype), device)) {
    const auto from_row = [](const rnncc_tensor& t, int64_t row) {
      return static_cast<char*>(t.data) + row * t.entry * dtype_bytes(t.dtype);
    };
    const rnncc_tensor whole = {memory.data(), 0, width, dtype};
    // There is one row more than `rows`: entries without rows write to it.
    described = {from_row(whole, !earlier), width, width, dtype};
    if (rows > 1) {
      RNNCC_TORCH(aoti_torch_copy_(
          over(from_row(described, earlier), {rows - 1, width}, {width, 1}, dtype, device).get(),
          over(from_row(from, !earlier), {rows - 1, width}, {from.entry, 1}, from.dtype, device).get(), 0));
    }
    Tensor edges = empty({batch, width}, torch_dtype(dtype), device);
    if (edge.data) {
      RNNCC_TORCH(
          aoti_torch_copy_(edges.get(), over(edge.data, {batch, width}, {edge.entry, 1}, edge.dtype, device).get(), 0));
    } else {
      RNNCC_TORCH(aoti_torch_zero_(edges.get()));
    }
    const auto offsets = [&](int64_t first, int64_t count) {
      return over(starts + first, {count}, {1}, aoti_torch_dtype_int64(), device);
    };
    const Tensor begins = offsets(0, batch), ends = offsets(1, batch);
    const Tensor has_rows = call_aten("aten::gt", "Tensor", {share(ends), share(begins)});
    const Tensor places =
        call_aten("aten::where", "self",
                  {share(has_rows), share(earlier ? begins : ends), share(offsets(earlier ? batch : 0, 1))});
    call_aten("aten::index_copy_", "", {share(memory), 0, share(places), share(edges)});
  }

  Tensor memory;
  rnncc_tensor described;  // describes the rows
};

}  // namespace rnncc
