// The tensors of a call of the ops of a whole layer, or of a single step: checked once, and described for kernels.
#pragma once

#include "whole_layout.h"

namespace rnncc {

// The tensors of a call, from `first` on: x, the parameters, in a single step further inputs, and the states or none.
struct Whole {
  Whole(const Layout& layout, std::vector<Tensor>& tensors, size_t first, bool with_states, bool on_gpu)
      : layout(layout),
        tensors(tensors),
        first(first),
        parameters(layout.parameters()),
        with_states(with_states),
        on_gpu(on_gpu) {}

  // Whether the tensors are those of the layout: all on x's device and in its dtype, which kernels there take, in the
  // right shapes, as kernels read them, and not empty. States may have more bits, in a single step on a CPU.
  bool fits() {
    const int64_t rank = layout.rank(), states = layout.segment.states;
    if (int64_t(tensors.size() - first) < int64_t(end() - first)) return false;
    const Tensor& x = tensors[first];
    dtype = x.torch_type();
    if (!is_taken()) return false;
    type = x.dtype();
    device = x.device();
    if (x.dim() != rank || x.elements() == 0) return false;
    const int64_t *sizes = x.sizes(), *strides = x.strides();
    steps = rank == 3 ? sizes[0] : 1;
    batch = sizes[rank - 2];
    if (sizes[rank - 1] != layout.inputs() || (strides[rank - 1] != 1 && sizes[rank - 1] != 1)) return false;
    const bool even = rank == 2 || steps == 1 || batch == 1 || strides[0] == batch * strides[1];
    if (!even) return false;
    // The stride of a dimension of one element may be any number.
    x_row = rows() == 1 ? layout.inputs() : batch > 1 ? strides[rank - 2] : strides[0];
    for (int64_t i = 0; i < parameters; ++i) {
      const Tensor& tensor = parameter(i);
      const int64_t rows = layout.rows(i), columns = layout.shapes[2 * i + 1], dims = columns < 0 ? 1 : 2;
      if (tensor.torch_type() != dtype || tensor.dim() != dims || !(tensor.device() == device)) return false;
      const int64_t *own = tensor.sizes(), *step = tensor.strides();
      if (own[0] != rows || (dims == 2 && own[1] != columns)) return false;
      if (!(step[dims - 1] == 1 || own[dims - 1] == 1) || (dims == 2 && rows > 1 && step[0] != columns)) return false;
    }
    for (int64_t i = 0; i < layout.further(); ++i)
      if (!is_of_batch(further(i), layout.further_width(i))) return false;
    for (int64_t i = 0; with_states && i < states; ++i)
      if (!is_of_batch(state(i), layout.state_widths[i], takes_wide_states())) return false;
    return true;
  }

  // Whether the states of a single step may be written to: they lie row by row, and share memory with nothing else that
  // is given.
  bool may_change() const {
    if (!with_states || layout.has_time || on_gpu) return false;
    const int64_t states = layout.segment.states, first_state = int64_t(end()) - states;
    for (int64_t i = 0; i < states; ++i) {
      if (batch > 1 && state(i).strides()[0] != layout.state_widths[i]) return false;
      for (int64_t other = int64_t(first); other < int64_t(end()); ++other)
        if (other != first_state + i && overlap(state(i), tensors[other])) return false;
    }
    return true;
  }

  const Tensor& x() const { return tensors[first]; }
  const Tensor& parameter(int64_t i) const { return tensors[first + 1 + i]; }
  const Tensor& further(int64_t i) const { return tensors[first + 1 + parameters + i]; }
  const Tensor& state(int64_t i) const { return tensors[first + 1 + parameters + layout.further() + i]; }
  // Where the tensors begin that the caller of a layer did not give.
  size_t end() const {
    return first + size_t(1 + parameters + layout.further() + (with_states ? layout.segment.states : 0));
  }
  int64_t rows() const { return steps * batch; }
  int64_t item() const { return dtype_bytes(type); }
  Tensor make(const std::vector<int64_t>& sizes) const { return empty(sizes, dtype, device); }
  // A new value of a state, in its dtype.
  Tensor make_state(int64_t i) const {
    const int32_t own = with_states ? state(i).torch_type() : dtype;
    return empty(shape_of(layout.state_widths[i]), own, device);
  }

  // A tensor [T, B, width] that begins at these columns of rows which lie side by side.
  rnncc_tensor rows_at(void* data, int64_t column, int64_t row_width) const {
    return {static_cast<char*>(data) + column * item(), batch * row_width, row_width, type};
  }

  rnncc_tensor nothing() const { return {nullptr, 0, 0, type}; }

  // The shape of a state of this width, or with the steps that of the output.
  std::vector<int64_t> shape_of(int64_t width, int64_t steps_of = 1) const {
    if (layout.has_time) return {steps_of, batch, width};
    return {batch, width};
  }

  // The descriptions of streams that lie side by side; none has data where `data` is null.
  void describe_streams(std::vector<rnncc_tensor>& described, void* data) const {
    int64_t column = 0;
    for (int64_t i = 0; i < layout.product_streams(); ++i) {
      described.push_back(data ? rows_at(data, column, layout.columns()) : nothing());
      column += layout.stream_widths[i];
    }
    if (layout.segment.reads_x) described.push_back({x().data(), batch * x_row, x_row, type});
    for (int64_t i = 0; i < layout.further(); ++i)
      described.push_back({further(i).data(), 0, further(i).strides()[layout.rank() - 2], type});
  }

  // The states' descriptions. Where none were given they are made in `made`; kernels take zeros for what has no data.
  void describe_states(std::vector<rnncc_tensor>& described, std::vector<Tensor>& made) const {
    for (int32_t i = 0; i < layout.segment.states; ++i) {
      const double initial = layout.initial[i];
      const int64_t width = layout.state_widths[i];
      if (with_states) {
        described.push_back({state(i).data(), 0, state(i).strides()[layout.rank() - 2], state(i).dtype()});
      } else if (initial == 0) {
        described.push_back(nothing());
      } else {
        made.push_back(make({batch, width}));
        fill(made.back(), batch * width, initial);
        described.push_back({made.back().data(), 0, width, type});
      }
    }
  }

  // Describes the gradients that came, which stand before x: those of the output and of final states. Their bits are set
  // in `came`, in this order. False where one does not fit.
  bool describe_gradients(uint64_t came, rnncc_tensor* d_sequences, rnncc_tensor* d_final) {
    const int64_t rank = layout.rank();
    for (size_t bit = 0, i = 0; i < first; ++bit) {
      if (!(came >> bit & 1)) continue;
      const bool of_output = layout.has_time && bit == 0;
      const size_t place = bit - layout.has_time;
      if (!of_output && place >= layout.state_widths.size()) return false;
      const int64_t width = of_output ? layout.output_width : layout.state_widths[place];
      Tensor& gradient = tensors[i++];
      gradient = contiguous(std::move(gradient), 1);
      if (gradient.torch_type() != dtype || !(gradient.device() == device) || gradient.dim() != rank) return false;
      const int64_t *sizes = gradient.sizes(), *strides = gradient.strides();
      if (sizes[rank - 1] != width || sizes[rank - 2] != batch) return false;
      if (rank == 3 && sizes[0] != (of_output ? steps : 1)) return false;
      const rnncc_tensor described = {gradient.data(), of_output ? strides[0] : 0, strides[rank - 2], type};
      (of_output ? d_sequences[layout.output] : d_final[place]) = described;
    }
    return true;
  }

  const Layout& layout;
  std::vector<Tensor>& tensors;
  size_t first;
  int64_t parameters;
  bool with_states, on_gpu;
  int32_t dtype = 0;
  rnncc_dtype type = RNNCC_FLOAT32;
  Device device = {};
  int64_t steps = 0, batch = 0, x_row = 0;

 private:
  // Whether two tensors may have an element in common: whether the stretches of memory do in which theirs lie.
  static bool overlap(const Tensor& one, const Tensor& other) {
    const auto stretch = [](const Tensor& tensor) {
      int64_t elements = tensor.elements() > 0;
      for (int64_t dim = 0; elements && dim < tensor.dim(); ++dim)
        elements += (tensor.sizes()[dim] - 1) * tensor.strides()[dim];
      const char* const begin = static_cast<const char*>(tensor.data());
      return std::pair(begin, begin + elements * dtype_bytes(tensor.dtype()));
    };
    const auto [a, a_end] = stretch(one);
    const auto [b, b_end] = stretch(other);
    return a < b_end && b < a_end;
  }

  // Whether the states of a step may be of float32 where x is of bfloat16.
  bool takes_wide_states() const { return !layout.has_time && !on_gpu && dtype == aoti_torch_dtype_bfloat16(); }

  // Whether a tensor is [batch, width], of a layer [1, batch, width], and its rows can be read. `or_float`: it may be
  // of float32 instead of x's dtype.
  bool is_of_batch(const Tensor& tensor, int64_t width, bool or_float = false) const {
    const int64_t rank = layout.rank();
    const bool is_typed =
        tensor.torch_type() == dtype || (or_float && tensor.torch_type() == aoti_torch_dtype_float32());
    if (!is_typed || tensor.dim() != rank || !(tensor.device() == device)) return false;
    const int64_t* own = tensor.sizes();
    if ((rank == 3 && own[0] != 1) || own[rank - 2] != batch || own[rank - 1] != width) return false;
    return tensor.strides()[rank - 1] == 1 || width == 1;
  }

  bool is_taken() const {
    if (dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_bfloat16()) return true;
    return dtype == (on_gpu ? aoti_torch_dtype_float16() : aoti_torch_dtype_float64());
  }

  void fill(const Tensor& tensor, int64_t count, double value) const {
    if (on_gpu || item() == 2)
      RNNCC_TORCH(aoti_torch_aten_fill__Scalar(tensor.get(), value));
    else if (type == RNNCC_FLOAT64)
      std::fill_n(static_cast<double*>(tensor.data()), count, value);
    else
      std::fill_n(static_cast<float*>(tensor.data()), count, float(value));
  }
};

}  // namespace rnncc
