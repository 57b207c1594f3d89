// Owners of torch's tensors, lists and boxed arguments, over the stable C interface (shim.h). Errors are C++
// exceptions, which torch turns into Python's RuntimeError.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../core/call.h"
#include "../core/pages.h"
#include "shim.h"

namespace rnncc {

[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

inline void check(int32_t code, const char* what) {
  if (code == 0) return;
  fail(std::string(what) + " failed" +
       (torch_exception_get_what_without_backtrace ? std::string(": ") + torch_exception_get_what_without_backtrace()
                                                   : std::string()));
}
// Fails where a CPU kernel returned an error; `name` is the op's.
inline void finish(const char* name, int32_t code) {
  if (code == 0) return;
  const std::string op = std::string(name) + ": ";
  if (code == 1) fail(op + "out of memory");
  if (code == 3) fail(op + "torch could not run the threads");
  if (code == 4)
    fail(op +
         "the package was compiled for another processor, as `rnncc.load` does for the one it runs on; "
         "`rnncc build` makes one for all");
  fail(op + "the kernel refused its arguments (code " + std::to_string(code) + ")");
}

#define RNNCC_TORCH(call) ::rnncc::check((call), #call)

inline int32_t torch_dtype(rnncc_dtype dtype) {
  switch (dtype) {
    case RNNCC_FLOAT32: return aoti_torch_dtype_float32();
    case RNNCC_FLOAT64: return aoti_torch_dtype_float64();
    case RNNCC_BFLOAT16: return aoti_torch_dtype_bfloat16();
    case RNNCC_FLOAT16: return aoti_torch_dtype_float16();
  }
  fail("unknown dtype");
}

inline int64_t dtype_bytes(rnncc_dtype dtype) { return dtype == RNNCC_FLOAT64 ? 8 : dtype == RNNCC_FLOAT32 ? 4 : 2; }

// The dtype in the names of kernels and in their index.
inline const char* dtype_name(rnncc_dtype dtype) {
  switch (dtype) {
    case RNNCC_FLOAT32: return "f32";
    case RNNCC_FLOAT64: return "f64";
    case RNNCC_BFLOAT16: return "bf16";
    case RNNCC_FLOAT16: return "f16";
  }
  fail("unknown dtype");
}

// A device, as torch numbers it.
struct Device {
  int32_t type, index;

  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  // There is only one CPU device, whatever its index.
  bool operator==(const Device& other) const { return type == other.type && (is_cpu() || index == other.index); }
};

// A tensor that this object owns; empty after a move.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  TensorHandle get() const { return handle_; }
  TensorHandle release() { return std::exchange(handle_, nullptr); }

  int64_t dim() const {
    int64_t dim;
    RNNCC_TORCH(aoti_torch_get_dim(handle_, &dim));
    return dim;
  }
  const int64_t* sizes() const {
    int64_t* sizes;
    RNNCC_TORCH(aoti_torch_get_sizes(handle_, &sizes));
    return sizes;
  }
  const int64_t* strides() const {
    int64_t* strides;
    RNNCC_TORCH(aoti_torch_get_strides(handle_, &strides));
    return strides;
  }
  int64_t elements() const {
    int64_t elements;
    RNNCC_TORCH(aoti_torch_get_numel(handle_, &elements));
    return elements;
  }
  void* data() const {
    check_memory();
    void* data;
    RNNCC_TORCH(aoti_torch_get_data_ptr(handle_, &data));
    return data;
  }
  // Fails where the storage does not reach the tensor's last element. `untyped_storage().resize_(0)` frees memory and
  // leaves the tensor's sizes as they were.
  void check_memory() const {
    int64_t bytes, last;
    RNNCC_TORCH(aoti_torch_get_storage_size(handle_, &bytes));
    RNNCC_TORCH(aoti_torch_get_storage_offset(handle_, &last));
    const int64_t rank = dim();
    for (int64_t i = 0; i < rank; ++i) {
      if (sizes()[i] == 0) return;
      last += (sizes()[i] - 1) * strides()[i];
    }
    const int64_t needed = (last + 1) * int64_t(aoti_torch_dtype_element_size(torch_type()));
    if (bytes < needed)
      fail("a tensor's storage holds " + std::to_string(bytes) + " bytes of the " + std::to_string(needed) +
           " that it needs: it was freed or made smaller");
  }
  int32_t torch_type() const {
    int32_t dtype;
    RNNCC_TORCH(aoti_torch_get_dtype(handle_, &dtype));
    return dtype;
  }
  rnncc_dtype dtype() const {
    const int32_t dtype = torch_type();
    if (dtype == aoti_torch_dtype_float32()) return RNNCC_FLOAT32;
    if (dtype == aoti_torch_dtype_float64()) return RNNCC_FLOAT64;
    if (dtype == aoti_torch_dtype_bfloat16()) return RNNCC_BFLOAT16;
    if (dtype == aoti_torch_dtype_float16()) return RNNCC_FLOAT16;
    fail("tensors must be float32, float64, bfloat16 or float16");
  }
  Device device() const {
    Device device;
    RNNCC_TORCH(aoti_torch_get_device_type(handle_, &device.type));
    RNNCC_TORCH(aoti_torch_get_device_index(handle_, &device.index));
    return device;
  }
  bool on_cpu() const { return device().is_cpu(); }

 private:
  TensorHandle handle_ = nullptr;
};

// Makes a contiguous tensor, and does not initialise it. torch numbers `dtype`.
inline Tensor empty(const std::vector<int64_t>& sizes, int32_t dtype, Device device) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 0 ? sizes[i] : 1;
  }
  TensorHandle handle;
  RNNCC_TORCH(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), dtype, device.type,
                                       device.index, &handle));
  Tensor tensor(handle);
  const bool wide = dtype == aoti_torch_dtype_float64(), half = !wide && dtype != aoti_torch_dtype_float32();
  want_large_pages(tensor.data(), tensor.elements() * (wide ? 8 : half ? 2 : 4));
  return tensor;
}

inline std::vector<int64_t> sizes_of(const Tensor& tensor) {
  const int64_t* sizes = tensor.sizes();
  return {sizes, sizes + tensor.dim()};
}

// Returns the tensor itself where its last `dims` dimensions are contiguous, else a contiguous copy.
inline Tensor contiguous(Tensor tensor, int64_t dims) {
  const int64_t rank = tensor.dim();
  const int64_t* sizes = tensor.sizes();
  const int64_t* strides = tensor.strides();
  int64_t expected = 1;
  bool same = true;
  for (int64_t i = rank; i-- > rank - dims && i >= 0;) {
    same = same && (sizes[i] <= 1 || strides[i] == expected);
    expected *= sizes[i];
  }
  if (same || tensor.elements() == 0) return tensor;
  tensor.check_memory();
  Tensor copy = empty(sizes_of(tensor), tensor.torch_type(), tensor.device());
  RNNCC_TORCH(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

// Describes a tensor for kernels. [T, B, width] has strides between steps and between batch entries, [B, width] only
// the latter.
inline rnncc_tensor describe(const Tensor& tensor) {
  const int64_t rank = tensor.dim();
  const int64_t* strides = tensor.strides();
  return {tensor.data(), rank >= 3 ? strides[rank - 3] : 0, rank >= 2 ? strides[rank - 2] : 0, tensor.dtype()};
}

inline std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t size : sizes_of(tensor)) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

inline double as_double(StableValue value) {
  double number;
  static_assert(sizeof number == sizeof value, "a StableValue holds a double");
  __builtin_memcpy(&number, &value, sizeof number);
  return number;
}

// One of torch's lists, which this object owns.
class List {
 public:
  explicit List(ListHandle handle) : handle_(handle) {}
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() {
    if (handle_) torch_delete_list(handle_);
  }

  ListHandle get() const { return handle_; }
  ListHandle release() { return std::exchange(handle_, nullptr); }

 private:
  ListHandle handle_;
};

// The arguments of a boxed kernel: each `take_…` takes over what the stack holds.
template <class T, class F>
std::vector<T> take_list(StableValue value, const F& from) {
  const List list(reinterpret_cast<ListHandle>(value));
  size_t size = 0;
  RNNCC_TORCH(torch_list_size(list.get(), &size));
  std::vector<T> items;
  items.reserve(size);  // so that nothing can fail between taking an item and owning it
  for (size_t i = 0; i < size; ++i) {
    StableValue item;
    RNNCC_TORCH(torch_list_get_item(list.get(), i, &item));
    items.push_back(from(item));
  }
  return items;
}

inline std::vector<Tensor> take_tensors(StableValue value) {
  return take_list<Tensor>(value, [](StableValue item) { return Tensor(reinterpret_cast<TensorHandle>(item)); });
}

inline std::vector<int64_t> take_integers(StableValue value) {
  return take_list<int64_t>(value, [](StableValue item) { return int64_t(item); });
}

inline std::vector<double> take_doubles(StableValue value) { return take_list<double>(value, as_double); }

// A bool fills the low byte of its StableValue.
inline bool as_bool(StableValue value) { return (value & 0xff) != 0; }

inline std::vector<bool> take_bools(StableValue value) { return take_list<bool>(value, as_bool); }

inline Tensor take_optional(StableValue value) {
  auto* pointer = reinterpret_cast<StableValue*>(value);
  if (!pointer) return Tensor();
  Tensor tensor(reinterpret_cast<TensorHandle>(*pointer));
  delete pointer;  // torch allocated it with new
  return tensor;
}

inline StableValue give(Tensor tensor) { return reinterpret_cast<StableValue>(tensor.release()); }

inline StableValue give(std::vector<Tensor> tensors) {
  ListHandle handle;
  RNNCC_TORCH(torch_new_list_reserve_size(tensors.size(), &handle));
  List list(handle);
  for (Tensor& tensor : tensors) RNNCC_TORCH(torch_list_push_back(list.get(), give(std::move(tensor))));
  return reinterpret_cast<StableValue>(list.release());
}

}  // namespace rnncc
