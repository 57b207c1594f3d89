// The work after a loop's last step, by torch's own operations: gradients of matrices as products over all steps,
// gradients of vectors as sums, and zeros. Accumulation is in float32. After a single step, products and sums may be
// made together.
#pragma once

#include <functional>

#include "heads.h"
#include "step_products.h"
#include "tensors.h"

namespace rnncc {

class After {
 public:
  // `records`: for each stored slot that is read here, the tensor that holds it. `totals`: for each slot that a kernel
  // has summed over steps itself, floats [rows, width]. The sum of their rows is the sum over all steps and batch
  // entries.
  After(const Tables& tables, const Call& call, const int64_t* dims, CallTensors& tensors,
        const std::map<int, rnncc_tensor>& records, const std::map<int, Tensor>& totals)
      : tables_(tables), call_(call), dims_(dims), tensors_(tensors), records_(records), totals_(totals) {}

  // Whether a stored slot is needed here.
  static bool reads(const Tables& tables, const Call& call, int slot) {
    const auto wanted = [&](int16_t weight) { return call.table[D_WEIGHTS] && call.table[D_WEIGHTS][weight].data; };
    const auto is_slot = [&](int16_t s) { return s == slot || (is_edge(tables, s) && tables.slots[s].link == slot); };
    for (int o = 0; o < tables.outer_count; ++o) {
      const OuterInfo& outer = tables.outers[o];
      if (wanted(tables.matrices[outer.matrix].index) && (is_slot(outer.cotangent) || is_slot(outer.operand)))
        return true;
    }
    for (int i = 0; i < tables.sum_count; ++i) {
      if (wanted(tables.sums[i].index) && is_slot(tables.sums[i].slot)) return true;
    }
    return false;
  }

  // `together`: gets the products and sums that can be made together with others; null: torch makes all of them.
  void run(StepProducts* together = nullptr) {
    together_ = together;
    std::map<int, std::vector<int>> by_matrix;
    for (int o = 0; o < tables_.outer_count; ++o) by_matrix[tables_.outers[o].matrix].push_back(o);
    clear_unwritten(by_matrix);
    for (int o = 0; o < tables_.outer_count;) {
      const int matrix = tables_.outers[o].matrix;
      const std::vector<int>& same = by_matrix[matrix];
      if (!weight_gradient(tables_.matrices[matrix].index).data || same.size() > 1) {
        if (same.size() > 1 && same[0] == o) add_outers(same);
        ++o;
        continue;
      }
      int end = o + 1;
      while (end < tables_.outer_count && by_matrix[tables_.outers[end].matrix].size() == 1 && continues(o, end)) ++end;
      outer(o, rows_of(o, end), gradient_of(matrix));
      o = end;
    }
    for (int i = 0; i < tables_.sum_count; ++i) sum(tables_.sums[i]);
  }

 private:
  static bool is_edge(const Tables& tables, int s) {
    return tables.slots[s].kind == Kind::previous || tables.slots[s].kind == Kind::next;
  }
  int64_t dim(int16_t index) const { return dims_[index]; }
  int64_t rows() const { return call_.rows; }
  Device device() const { return tensors_.device; }

  rnncc_tensor weight_gradient(int16_t index) {
    if (!call_.table[D_WEIGHTS]) return {};
    return tensors_.either(D_WEIGHTS, index);
  }
  void* gradient_of(int matrix) {
    const MatrixInfo& info = tables_.matrices[matrix];
    const rnncc_tensor t = weight_gradient(info.index);
    return static_cast<char*>(t.data) + dim(info.row) * row_length(info) * dtype_bytes(t.dtype);
  }
  int64_t row_length(const MatrixInfo& matrix) const { return dim(matrix.columns) / dim(matrix.blocks); }
  int64_t rows_of(int first, int end) const {
    int64_t total = 0;
    for (int o = first; o < end; ++o) total += dim(tables_.matrices[tables_.outers[o].matrix].rows);
    return total;
  }

  // How many elements of a weight's gradient products and sums write.
  int64_t written(int16_t weight, const std::map<int, std::vector<int>>& by_matrix) const {
    int64_t count = 0;
    for (const auto& entry : by_matrix) {
      const MatrixInfo& matrix = tables_.matrices[entry.first];
      if (matrix.index == weight) count += dim(matrix.rows) * row_length(matrix);
    }
    for (int i = 0; i < tables_.sum_count; ++i)
      if (tables_.sums[i].index == weight) count += dim(tables_.sums[i].width);
    return count;
  }

  // Makes zeros of what nothing else writes.
  void clear_unwritten(const std::map<int, std::vector<int>>& by_matrix) {
    for (int z = 0; z < tables_.zero_count; ++z) {
      const ZeroInfo& zero = tables_.zeros[z];
      const rnncc_tensor& t = tensors_.at(zero.table, zero.index);
      if (!t.data) continue;
      char* start = static_cast<char*>(t.data) + dim(zero.offset) * dtype_bytes(t.dtype);
      Tensor part = over(start, sizes_of_all_steps(call_, dim(zero.width)), {t.step, t.entry, 1}, t.dtype, device());
      RNNCC_TORCH(aoti_torch_zero_(part.get()));
    }
    for (int16_t w = 0; call_.table[D_WEIGHTS] && w < tables_.weight_count; ++w) {
      const rnncc_tensor t = weight_gradient(w);
      const int64_t count = dims_[tables_.weight_rows + w] * dims_[tables_.weight_columns + w];
      if (t.data && written(w, by_matrix) != count) clear(t.data, count * dtype_bytes(t.dtype), device().index);
    }
  }

  // A slot's values over all steps, as a tensor [T, B, width]; its place is counted in elements.
  rnncc_tensor values_of(int slot) {
    const SlotInfo& info = tables_.slots[slot];
    switch (info.kind) {
      case Kind::stored: return records_.at(slot);
      case Kind::read: {
        rnncc_tensor t = tensors_.at(info.table, info.index);
        t.data = static_cast<char*>(t.data) + dim(info.offset) * dtype_bytes(t.dtype);
        return t;
      }
      case Kind::previous:
      case Kind::next: return shifted(slot);
      default: fail("a product after the loop reads what has no values over all steps");
    }
  }

  // Whether an edge at t is its slot's value at t - 1; else it is the value at t + 1.
  bool is_earlier(const SlotInfo& edge) const { return (edge.kind == Kind::previous) != call_.descending; }

  // The values of an edge over all steps, in the streams' type: its slot's values one step on, and the edge's tensor at
  // the end.
  rnncc_tensor shifted(int slot) {
    const SlotInfo& info = tables_.slots[slot];
    const rnncc_tensor from = values_of(info.link), edge = tensors_.either(info.table, info.index);
    const int64_t width = dim(info.width), steps = call_.steps, batch = call_.batch;
    const rnncc_dtype dtype = tensors_.scalar();
    const bool earlier = is_earlier(info);
    if (call_.starts) {
      ShiftedRows made(from, edge, call_.starts, batch, rows(), width, earlier, dtype, device());
      held_.push_back(std::move(made.memory));
      return made.described;
    }
    // A single step reads the edge alone.
    if (steps == 1 && edge.data && edge.dtype == dtype) return {edge.data, 0, edge.entry, dtype};
    Tensor made = empty({steps, batch, width}, torch_dtype(dtype), device());
    char* data = static_cast<char*>(made.data());
    const int64_t bytes = dtype_bytes(dtype), at = batch * width * bytes;
    if (steps > 1) {
      const char* source = static_cast<const char*>(from.data) + (earlier ? 0 : from.step * dtype_bytes(from.dtype));
      copy(data + (earlier ? at : 0), source, {steps - 1, batch, width}, from, dtype);
    }
    char* end = data + (earlier ? 0 : (steps - 1) * at);
    if (edge.data) {
      copy(end, edge.data, {1, batch, width}, edge, dtype);
    } else {
      clear(end, at, device().index);
    }
    held_.push_back(std::move(made));
    return {data, batch * width, width, dtype};
  }

  // Copies to a tensor whose rows lie side by side.
  void copy(void* to, const void* from, const std::vector<int64_t>& sizes, const rnncc_tensor& strides,
            rnncc_dtype dtype) {
    Tensor target = over(to, sizes, {sizes[1] * sizes[2], sizes[2], 1}, dtype, device());
    Tensor source = over(from, sizes, {strides.step, strides.entry, 1}, strides.dtype, device());
    RNNCC_TORCH(aoti_torch_copy_(target.get(), source.get(), 0));
  }

  // A slot's values as a matrix [T * B, width] whose rows lie at one stride, in the streams' type. It is made once per
  // slot.
  const rnncc_tensor& matrix_of(int slot) {
    const auto known = matrices_.find(slot);
    if (known != matrices_.end()) return known->second;
    rnncc_tensor t = values_of(slot);
    const bool even = call_.starts || call_.steps == 1 || t.step == call_.batch * t.entry;
    if (t.dtype != tensors_.scalar() || !even) {
      const int64_t width = dim(tables_.slots[slot].width);
      const std::vector<int64_t> sizes = sizes_of_all_steps(call_, width);
      Tensor made = empty(sizes, torch_dtype(tensors_.scalar()), device());
      copy(made.data(), t.data, sizes, t, tensors_.scalar());
      t = side_by_side(call_, made.data(), width, tensors_.scalar());
      held_.push_back(std::move(made));
    }
    return matrices_[slot] = t;
  }

  // The rows of a matrix per head and part.
  int64_t head_rows(const MatrixInfo& matrix) const {
    return dim(matrix.blocks) == 1 ? dim(matrix.rows) : dim(matrix.rows) / (matrix.parts * dim(matrix.blocks));
  }

  // Whether outer `next` can join the product of the outers from `first` on. Their operand is then the same, cotangents
  // and rows lie side by side, and heads have the same shape. With one head, any number of rows will do.
  bool continues(int first, int next) {
    const OuterInfo &a = tables_.outers[first], &b = tables_.outers[next];
    const MatrixInfo &from = tables_.matrices[a.matrix], &to = tables_.matrices[b.matrix];
    const bool alike = dim(from.blocks) == 1 || head_rows(from) == head_rows(to);
    if (a.operand != b.operand || from.index != to.index || dim(from.blocks) != dim(to.blocks) || !alike) return false;
    const int64_t before = rows_of(first, next);
    if (dim(to.row) != dim(from.row) + before) return false;
    const rnncc_tensor x = matrix_of(a.cotangent), y = matrix_of(b.cotangent);
    return x.entry == y.entry && static_cast<char*>(x.data) + before * dtype_bytes(x.dtype) == y.data;
  }

  // Rows of an operand, and the first of the cotangent's rows that they go with.
  struct Operand {
    rnncc_tensor values;
    int64_t first, rows;
  };

  // The values of an edge over all steps in two pieces, without a copy: the slot's values one step on, and the edge's
  // tensor. Zeros stand for one without data, since a product of them and a NaN is a NaN. There are no pieces where they
  // take a copy.
  std::vector<Operand> pieces_of(int slot) {
    if (!is_edge(tables_, slot) || call_.starts || call_.steps == 1) return {};
    const SlotInfo& info = tables_.slots[slot];
    rnncc_tensor from = values_of(info.link);
    rnncc_tensor edge = tensors_.either(info.table, info.index);
    const rnncc_dtype dtype = tensors_.scalar();
    if (from.step != call_.batch * from.entry || from.dtype != dtype || (edge.data && edge.dtype != dtype)) return {};
    const bool earlier = is_earlier(info);
    const int64_t batch = call_.batch, others = rows() - batch;
    if (!earlier) from.data = static_cast<char*>(from.data) + from.step * dtype_bytes(dtype);
    if (!edge.data) {
      Tensor zeros = empty({batch, dim(info.width)}, torch_dtype(dtype), device());
      clear(zeros.data(), zeros.elements() * dtype_bytes(dtype), device().index);
      edge = {zeros.data(), 0, dim(info.width), dtype};
      held_.push_back(std::move(zeros));
    }
    return {{from, earlier ? batch : 0, others}, {edge, earlier ? 0 : others, batch}};
  }

  // Writes `height` rows of d_matrix = cotangentᵀ operand to `out` [rows, row_length], from the rows of outer o on.
  void outer(int o, int64_t height, void* out) {
    const OuterInfo& info = tables_.outers[o];
    const MatrixInfo& matrix = tables_.matrices[info.matrix];
    const rnncc_tensor x = matrix_of(info.cotangent);
    const int64_t heads = dim(matrix.blocks), length = row_length(matrix);
    if (heads == 1) {
      const rnncc_tensor y = matrix_of(info.operand);
      if (together_) {
        together_->add(SmallForm::outer, {height, length, rows()}, {out, 0, length, x.dtype}, x, y);
        return;
      }
      multiply_into(over(out, {height, length}, {length, 1}, x.dtype, device()),
                    over(x.data, {height, rows()}, {1, x.entry}, x.dtype, device()),
                    over(y.data, {rows(), length}, {y.entry, 1}, x.dtype, device()));
      return;
    }
    const int64_t head_dim = head_rows(matrix), terms = info.parts;
    HeadsProduct product = {{}, out, x.dtype, heads, height / (heads * head_dim), head_dim, terms, length / terms};
    const auto add = [&](const Operand& operand) {
      char* const a = static_cast<char*>(x.data) + operand.first * x.entry * dtype_bytes(x.dtype);
      product.pieces.push_back({{a, 0, x.entry, x.dtype}, operand.values, operand.rows});
    };
    for (const Operand& piece : pieces_of(info.operand)) add(piece);
    if (product.pieces.empty() || !heads::has_kernel(product, device())) {
      product.pieces.clear();
      add({matrix_of(info.operand), 0, rows()});
    }
    multiply_heads(product, device());
  }

  // Multiplies each of several products for one matrix by itself, and then adds them up.
  void add_outers(const std::vector<int>& outers) {
    const int matrix = tables_.outers[outers[0]].matrix;
    const rnncc_tensor gradient = weight_gradient(tables_.matrices[matrix].index);
    if (!gradient.data) return;
    const int64_t height = dim(tables_.matrices[matrix].rows), length = row_length(tables_.matrices[matrix]);
    Tensor made = empty({int64_t(outers.size()), height, length}, torch_dtype(gradient.dtype), device());
    StepProducts* const together = std::exchange(together_, nullptr);  // torch reads them at once
    char* to = static_cast<char*>(made.data());
    for (int o : outers) {
      outer(o, height, to);
      to += height * length * dtype_bytes(gradient.dtype);
    }
    sum_into(over(gradient_of(matrix), {height, length}, {length, 1}, gradient.dtype, device()), made, {0});
    together_ = together;
  }

  void sum(const SumInfo& info) {
    const rnncc_tensor gradient = weight_gradient(info.index);
    if (!gradient.data) return;
    const SlotInfo& slot = tables_.slots[info.slot];
    const int64_t width = dim(slot.width), out_width = dim(info.width);
    const auto total = totals_.find(info.slot);
    const bool summed = total != totals_.end();
    const int64_t rows = summed ? sizes_of(total->second)[0] : this->rows();
    const rnncc_tensor x = summed ? rnncc_tensor{total->second.data(), 0, width, RNNCC_FLOAT32} : matrix_of(info.slot);
    char* to = static_cast<char*>(gradient.data) + dim(info.offset) * dtype_bytes(gradient.dtype);
    if (out_width == width && together_ && !summed) {
      together_->add_sum({to, 0, 0, gradient.dtype}, x, width, rows);
      return;
    }
    Tensor out = over(to, {out_width}, {1}, gradient.dtype, device());
    if (out_width == width) {
      sum_into(out, over(x.data, {rows, width}, {x.entry, 1}, x.dtype, device()), {0});
      return;
    }
    // The gradient has one number per head, or one for all heads: [rows, parts, numbers, the rest].
    const int64_t parts = out_width == 1 ? 1 : slot.parts, depth = width / (parts * out_width);
    sum_into(out,
             over(x.data, {rows, parts, out_width, depth}, {x.entry, out_width * depth, depth, 1}, x.dtype, device()),
             {0, 1, 3});
  }

  const Tables& tables_;
  const Call& call_;
  const int64_t* dims_;
  CallTensors& tensors_;
  const std::map<int, rnncc_tensor>& records_;
  const std::map<int, Tensor>& totals_;
  std::map<int, rnncc_tensor> matrices_;
  std::vector<Tensor> held_;
  StepProducts* together_ = nullptr;
};

}  // namespace rnncc
