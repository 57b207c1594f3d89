// The tensors of a call in the element types that the kernel takes. Tensors of other types are converted before the
// kernel, or after it.
#pragma once

#include <map>

#include "../torch/aten.h"
#include "schedule.h"

namespace rnncc {

// Whether a call writes the table's tensors.
inline bool is_output(Table table, const Call& call) {
  if (is_saved(table)) return call.table[SEQUENCES];
  return table == SEQUENCES || table == FINAL || table == D_STREAMS || table == D_WEIGHTS || table == D_STATES;
}

// The sizes of a tensor of all steps: [T, B, width], or [rows, 1, width] where tensors are packed.
inline std::vector<int64_t> sizes_of_all_steps(const Call& call, int64_t width) {
  return call.starts ? std::vector<int64_t>{call.rows, 1, width} : std::vector<int64_t>{call.steps, call.batch, width};
}

// Describes a tensor of all steps whose rows lie side by side.
inline rnncc_tensor side_by_side(const Call& call, void* data, int64_t width, rnncc_dtype dtype) {
  return {data, call.starts ? width : call.batch * width, width, dtype};
}

class CallTensors {
 public:
  // `float_vectors`: whether weights may be float where streams have 16 bits. Kernels of loops without products take
  // them so.
  CallTensors(const Tables& tables, const Call& call, const int64_t* dims, Device device, bool float_vectors)
      : device(device), tables_(tables), call_(call), dims_(dims), scalar_(choose_scalar(float_vectors)) {}

  // The type of streams and weights: the one that they share, else float.
  rnncc_dtype scalar() const { return scalar_; }

  // A tensor of a table, in the type that the kernel takes. It has no data where it is not given or not wanted.
  const rnncc_tensor& at(Table table, int index) {
    static constexpr rnncc_tensor none = {nullptr, 0, 0, RNNCC_FLOAT32};
    if (!call_.table[table]) return none;
    const rnncc_tensor& given = call_.table[table][index];
    if (!given.data || given.dtype == wanted(table)) return given;
    const auto key = std::make_pair(table, index);
    const auto found = fitted_.find(key);
    return found != fitted_.end() ? found->second : fitted_[key] = fit(table, index);
  }

  // An initial or final state, a vector, or the gradient of one. It has the streams' type or is float: its reader or
  // writer takes both.
  rnncc_tensor either(Table table, int index) {
    if (!call_.table[table]) return {nullptr, 0, 0, RNNCC_FLOAT32};
    const rnncc_tensor& given = call_.table[table][index];
    return given.dtype == scalar_ || given.dtype == RNNCC_FLOAT32 ? given : at(table, index);
  }

  // Copies results that were computed in another type to the caller's tensors. It is called after the kernel.
  void write_back() {
    for (const Copy& copy : copies_) RNNCC_TORCH(aoti_torch_copy_(copy.to.get(), copy.from.get(), 0));
  }

  // The tensor `t` describes, in the shape of the table's tensors: [T, B, width], [B, width] or [elements].
  Tensor view(Table table, int index, const rnncc_tensor& t) const {
    const int64_t width = width_of(table, index);
    if (table == WEIGHTS || table == D_WEIGHTS) return over(t.data, {width}, {1}, t.dtype, device);
    if (!has_time(table)) return over(t.data, {call_.batch, width}, {t.entry, 1}, t.dtype, device);
    return over(t.data, sizes_of_all_steps(call_, width), {t.step, t.entry, 1}, t.dtype, device);
  }

  static bool has_time(Table table) {
    return table != STATES && table != FINAL && table != D_FINAL && table != D_STATES;
  }

  const Device device;

 private:
  struct Copy {
    Tensor to, from;
  };

  rnncc_dtype wanted(Table table) const { return is_stream_typed(table) ? scalar_ : RNNCC_FLOAT32; }

  rnncc_dtype choose_scalar(bool float_vectors) const {
    const rnncc_dtype first = call_.table[STREAMS][0].dtype;
    for (int w = 0; w < tables_.weight_count; ++w) {
      const rnncc_dtype own = call_.table[WEIGHTS][w].dtype;
      if (own != first && !(float_vectors && own == RNNCC_FLOAT32)) return RNNCC_FLOAT32;
    }
    return first;
  }

  // The width of a tensor, as far as the tables name its units; for a weight the number of its elements.
  int64_t width_of(Table table, int index) const {
    if (table == WEIGHTS || table == D_WEIGHTS)
      return dims_[tables_.weight_rows + index] * dims_[tables_.weight_columns + index];
    int64_t width = 0;
    const auto cover = [&](Table other, int16_t i, int64_t end) {
      if (other == table && i == index) width = std::max(width, end);
    };
    for (int s = 0; s < tables_.slot_count; ++s) {
      const SlotInfo& slot = tables_.slots[s];
      if (slot.kind == Kind::stored) {
        for (int d = slot.first_destination; d < slot.first_destination + slot.destinations; ++d) {
          const Destination& to = tables_.destinations[d];
          cover(to.table, to.index, dims_[to.offset] + dims_[slot.width]);
        }
      } else if (slot.kind == Kind::read || slot.kind == Kind::previous || slot.kind == Kind::next) {
        cover(slot.table, slot.index, dims_[slot.offset] + dims_[slot.width]);
      }
    }
    for (int f = 0; f < tables_.final_count; ++f) {
      const FinalInfo& end = tables_.finals[f];
      cover(end.table, end.index, dims_[tables_.slots[end.slot].width]);
    }
    for (int z = 0; z < tables_.zero_count; ++z) {
      const ZeroInfo& zero = tables_.zeros[z];
      cover(zero.table, zero.index, dims_[zero.offset] + dims_[zero.width]);
    }
    return width;
  }

  // A tensor of the type that is wanted, in place of the one that was given.
  rnncc_tensor fit(Table table, int index) {
    const rnncc_tensor& given = call_.table[table][index];
    const int64_t width = width_of(table, index);
    Tensor original = view(table, index, given);
    Tensor made = empty(sizes_of(original), torch_dtype(wanted(table)), device);
    const rnncc_tensor result = side_by_side(call_, made.data(), width, wanted(table));
    if (is_output(table, call_)) {
      copies_.push_back({std::move(original), std::move(made)});
    } else {
      RNNCC_TORCH(aoti_torch_copy_(made.get(), original.get(), 0));
      held_.push_back(std::move(made));
    }
    return result;
  }

  const Tables& tables_;
  const Call& call_;
  const int64_t* dims_;
  const rnncc_dtype scalar_;
  std::map<std::pair<Table, int>, rnncc_tensor> fitted_;
  std::vector<Copy> copies_;
  std::vector<Tensor> held_;
};

}  // namespace rnncc
