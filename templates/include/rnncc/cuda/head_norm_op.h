// The ops `head_norm` and `head_norm_backward` as boxed kernels: layer norm over each head of a value, whose last
// dimension is laid out [k, heads, head_dim]. Weight and bias have the dtype of the result, which is the value's or
// float32.
#pragma once

#include "head_norm_call.h"
#include "module.h"

extern "C" {
// k * head_dim of the largest head, each part in whole pieces. Python reads the number from the library.
inline __attribute__((used, visibility("default"))) const int64_t rnncc_head_norm_units = rnncc::HEAD_NORM_UNITS;
}

namespace rnncc {

// A kernel's name ends with the dtypes of value and result.
inline std::string head_norm_kernel(const char* start, const Tensor& value, const Tensor& result) {
  if (value.torch_type() != result.torch_type() && result.dtype() != RNNCC_FLOAT32)
    fail("head_norm: weight, bias and gradient must have the value's dtype, or be float32");
  if (value.dtype() == RNNCC_FLOAT64) fail("head_norm: there are no kernels for float64");
  return std::string(start) + "_" + dtype_name(value.dtype()) + "_" + dtype_name(result.dtype());
}

inline void* head_norm_vector(Tensor& vector, int64_t width, Device device, const char* name) {
  if (!vector) return nullptr;
  if (sizes_of(vector) != std::vector<int64_t>{width} || !(vector.device() == device))
    fail(std::string("head_norm: ") + name + " must be [" + std::to_string(width) +
         "] on the value's device, got the shape " + shape_text(vector));
  vector = contiguous(std::move(vector), 1);
  return vector.data();
}

// Describes the value, and makes it contiguous.
inline HeadNormCall head_norm_call(Tensor& value, int64_t heads, int64_t k) {
  if (value.device().is_cpu()) fail("head_norm: the value is not on a GPU");
  const int64_t rank = value.dim(), width = rank > 0 ? value.sizes()[rank - 1] : 0;
  const bool fits = width <= INT32_MAX && heads > 0 && heads <= width && k > 0 && k <= width / heads;
  if (!fits || width % (heads * k) != 0)
    fail("head_norm: a value of shape " + shape_text(value) + " does not fit " + std::to_string(heads) + " heads of " +
         std::to_string(k) + " parts");
  value = contiguous(std::move(value), rank);
  HeadNormCall call = {};
  call.rows = value.elements() / width;
  call.heads = int32_t(heads);
  call.k = int32_t(k);
  call.head_dim = int32_t(width / (heads * k));
  call.reciprocal = 1.0f / float(int64_t(call.k) * call.head_dim);
  if (call.rows > 0) call.value = value.data();
  return call;
}

// Chooses the team for dtypes of these sizes.
inline void choose_team(HeadNormCall& call, int value_bytes, int result_bytes) {
  const int units = 16 / value_bytes, pieces = HEAD_NORM_HELD / result_bytes / units;
  call.pieces = call.head_dim / units + (call.head_dim % units != 0);
  call.team = 1;
  if (int64_t(call.k) * call.pieces * units > HEAD_NORM_UNITS)
    fail("head_norm: k * head_dim = " + std::to_string(int64_t(call.k) * call.head_dim) + " is too large");
  while (call.team * pieces < call.k * call.pieces) call.team *= 2;
  call.threads = call.team > 32 ? call.team : HEAD_NORM_THREADS;
  const auto begins = [](const void* tensor) { return reinterpret_cast<uintptr_t>(tensor) % 16 == 0; };
  call.aligned = call.head_dim % units == 0 && begins(call.value) && begins(call.weight) && begins(call.bias) &&
                 begins(call.normalised) && begins(call.d_normalised) && begins(call.d_value);
}

// Divides the rows into turns of equally many, for a GPU that runs so many CTAs at once. Returns the number of CTAs.
inline int64_t take_turns(HeadNormCall& call, int64_t ctas_at_once, int64_t least_turns) {
  const int64_t teams = call.threads / call.team, fitting = std::max<int64_t>(1, ctas_at_once * teams / call.heads);
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  const int64_t turns = parts(call.rows, std::min(fitting, parts(call.rows, least_turns)));
  if (turns > INT32_MAX) fail("head_norm: these are more rows than one launch takes");
  call.turns = int32_t(turns);
  call.rows_at_once = parts(call.rows, turns);
  const int64_t ctas = parts(call.rows_at_once * call.heads, teams);
  // The kernel counts threads in 32 bits.
  if (ctas > INT32_MAX / call.threads) fail("head_norm: these are more heads than one launch takes");
  return ctas;
}

inline int64_t ctas_at_once(int32_t device, CUfunction kernel, int threads, int shared_bytes) {
  int each = 0;
  check_cuda(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, size_t(shared_bytes)),
             "counting CTAs of head_norm");
  return int64_t(std::max(each, 1)) * gpu(device).sms;
}

// (Tensor value, Tensor? weight, Tensor? bias, SymInt heads, SymInt k, float epsilon) -> (Tensor normalised, Tensor
// means, Tensor scales)
inline void run_head_norm(StableValue* stack) {
  Tensor value(reinterpret_cast<TensorHandle>(stack[0]));
  Tensor weight = take_optional(stack[1]), bias = take_optional(stack[2]);
  const int64_t heads = int64_t(stack[3]);
  HeadNormCall call = head_norm_call(value, heads, int64_t(stack[4]));
  const Device device = value.device();
  const Tensor& like = weight ? weight : bias ? bias : value;
  if (weight && bias && weight.torch_type() != bias.torch_type()) fail("head_norm: weight and bias differ in dtype");
  const std::string name = head_norm_kernel("head_norm", value, like);
  const OnDevice current(device.index);
  const int64_t width = int64_t(call.k) * call.heads * call.head_dim;
  std::vector<int64_t> sizes = sizes_of(value);
  Tensor normalised = empty(sizes, like.torch_type(), device);
  sizes.back() = heads;
  Tensor means = empty(sizes, aoti_torch_dtype_float32(), device);
  Tensor scales = empty(sizes, aoti_torch_dtype_float32(), device);
  call.weight = head_norm_vector(weight, width, device, "weight");
  call.bias = head_norm_vector(bias, width, device, "bias");
  call.epsilon = float(as_double(stack[5]));
  if (call.rows > 0) {
    call.normalised = normalised.data();
    call.means = static_cast<float*>(means.data());
    call.scales = static_cast<float*>(scales.data());
    choose_team(call, int(dtype_bytes(value.dtype())), int(dtype_bytes(normalised.dtype())));
    const CUfunction kernel = find_kernel(device.index, "_head_norm", name);
    const int64_t fitting = ctas_at_once(device.index, kernel, call.threads, HEAD_NORM_SHARED);
    const int64_t ctas = take_turns(call, fitting, 1);
    launch_kernel("head_norm", kernel, {ctas, call.threads, HEAD_NORM_SHARED}, device.index, &call);
  }
  stack[0] = give(std::move(normalised));
  stack[1] = give(std::move(means));
  stack[2] = give(std::move(scales));
}

// (Tensor d_normalised, Tensor value, Tensor? weight, Tensor means, Tensor scales, SymInt k, bool[] needs) -> Tensor[].
// Returns those of d_value, d_weight and d_bias that are needed.
inline void run_head_norm_backward(StableValue* stack) {
  Tensor d_normalised(reinterpret_cast<TensorHandle>(stack[0]));
  Tensor value(reinterpret_cast<TensorHandle>(stack[1]));
  Tensor weight = take_optional(stack[2]);
  Tensor means(reinterpret_cast<TensorHandle>(stack[3])), scales(reinterpret_cast<TensorHandle>(stack[4]));
  const std::vector<bool> needs = take_bools(stack[6]);
  const int64_t heads = means.dim() > 0 ? means.sizes()[means.dim() - 1] : 0;
  HeadNormCall call = head_norm_call(value, heads, int64_t(stack[5]));
  const Device device = value.device();
  std::vector<int64_t> sizes = sizes_of(value);
  if (sizes_of(d_normalised) != sizes || !(d_normalised.device() == device) || needs.size() != 3 ||
      (weight && weight.torch_type() != d_normalised.torch_type()))
    fail("head_norm: the gradient " + shape_text(d_normalised) + " does not fit");
  sizes.back() = heads;
  for (Tensor* const numbers : {&means, &scales}) {
    if (sizes_of(*numbers) != sizes || numbers->dtype() != RNNCC_FLOAT32 || !(numbers->device() == device))
      fail("head_norm: means and scales must be those of the forward");
    *numbers = contiguous(std::move(*numbers), numbers->dim());
  }
  const std::string name = head_norm_kernel("head_norm_backward", value, d_normalised);
  const std::string sums_name = std::string("head_norm_sums_") + dtype_name(d_normalised.dtype());
  const OnDevice current(device.index);
  const int64_t width = int64_t(call.k) * call.heads * call.head_dim;
  std::vector<Tensor> made;
  if (needs[0]) made.push_back(empty(sizes_of(value), value.torch_type(), device));
  if (needs[1]) made.push_back(empty({width}, d_normalised.torch_type(), device));
  if (needs[2]) made.push_back(empty({width}, d_normalised.torch_type(), device));
  if (call.rows == 0) {
    for (Tensor& tensor : made) RNNCC_TORCH(aoti_torch_zero_(tensor.get()));
  } else if (!made.empty()) {
    HeadNormSums sums = {};
    size_t next = 0;
    d_normalised = contiguous(std::move(d_normalised), d_normalised.dim());
    call.d_normalised = d_normalised.data();
    call.weight = head_norm_vector(weight, width, device, "weight");
    call.means = static_cast<float*>(means.data());
    call.scales = static_cast<float*>(scales.data());
    if (needs[0]) call.d_value = made[next++].data();
    if (needs[1]) sums.d_weight = made[next++].data();
    if (needs[2]) sums.d_bias = made[next].data();
    choose_team(call, int(dtype_bytes(value.dtype())), int(dtype_bytes(d_normalised.dtype())));
    const CUfunction kernel = find_kernel(device.index, "_head_norm", name);
    const int64_t fitting = ctas_at_once(device.index, kernel, call.threads, HEAD_NORM_SHARED);
    const int64_t ctas = take_turns(call, fitting, HEAD_NORM_LEAST_TURNS);
    Tensor partials;
    if (needs[1] || needs[2]) {
      partials = empty({call.rows_at_once, 2, width}, aoti_torch_dtype_float32(), device);
      call.partials = static_cast<float*>(partials.data());
      sums.partials = call.partials;
      sums.parts = call.rows_at_once;
      sums.width = width;
    }
    launch_kernel("head_norm_backward", kernel, {ctas, call.threads, HEAD_NORM_SHARED}, device.index, &call);
    if (partials) {
      const LaunchShape shape = {(width + 31) / 32, 32 * HEAD_NORM_SUM_WARPS, HEAD_NORM_SUM_SHARED, 2};
      launch_kernel("head_norm_sums", find_kernel(device.index, "_head_norm", sums_name), shape, device.index, &sums);
    }
  }
  stack[0] = give(std::move(made));
}

}  // namespace rnncc
