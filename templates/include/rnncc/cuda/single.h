// Runs one step of a loop: launches make the products (step_products.h), and launches in between do the elementwise parts
// (single.cuh). The alternating kernel would pack the weights first, which takes longer than to multiply by them once.
#pragma once

#include <numeric>

#include "direction.h"
#include "single_call.h"

namespace rnncc {

// The parameter of the launches, laid out as SingleCall.
class SingleBuffer : public ParameterBuffer {
 public:
  explicit SingleBuffer(const Tables& t) {
    header = take<SingleHeader>(1);
    sums = take<SumPlace>(accumulators_before(t, t.stage_count));
    images = take<ImagePlace>(t.image_count);
    biases = take<BiasPlace>(streams_before(t, t.slot_count));
    dims = take<int64_t>(t.dim_count);
    constants = take<float>((at_least_one(t.constant_count) + 1) / 2 * 2);
    own = take_direction(t);
  }

  SingleHeader* header;
  SumPlace* sums;
  ImagePlace* images;
  BiasPlace* biases;
  int64_t* dims;
  float* constants;
  OfDirection own;
};

// Finds the biases of all slots that are read from streams. Returns false where the columns of a bias and of a slot do not
// fit together, or where something else than kernels reads the streams. `first_of(i)`: the first column of stream i.
template <class First>
bool find_biases(const Tables& tables, const int64_t* dims, const rnncc_bias* biases, int64_t bias_count, int64_t bytes,
                 const First& first_of, BiasPlace* found) {
  for (int s = 0; s < tables.slot_count; ++s) {
    const SlotInfo& slot = tables.slots[s];
    if (!is_stream(slot)) continue;
    const int64_t begin = first_of(slot.index) + dims[slot.offset], end = begin + dims[slot.width];
    BiasPlace place = {};
    int count = 0;
    for (const rnncc_bias* bias = biases; bias < biases + bias_count; ++bias) {
      if (bias->column + bias->rows <= begin || end <= bias->column) continue;
      const bool is_inside = bias->column <= begin && end <= bias->column + bias->rows;
      if (slot.lasting || !is_inside || count == MOST_BIASES) return false;
      place.base[count++] = static_cast<const char*>(bias->data) + (begin - bias->column) * bytes;
    }
    if (found) *found++ = place;
  }
  return true;
}

// Makes products of this type on the stream that torch uses now.
inline void make_products(StepProducts& products, rnncc_dtype dtype, Device device) {
  products.make(device, [&](SmallProductsCall& call, int64_t ctas) {
    const CUfunction kernel = find_kernel(device.index, std::string("_small_") + dtype_name(dtype), "small_products");
    launch_kernel("small_products", kernel, {ctas, SMALL_THREADS, SMALL_SHARED_BYTES}, device.index, &call);
  });
}

class SingleRun {
 public:
  SingleRun(const Tables& tables, const Call& call, DeviceRun& run)
      : tables_(tables), call_(call), run_(run), parameter_(tables), launches_(needed_launches()) {}

  // Whether a call is one step, of one head. Kernels count elements in 32 bits, up to one stride beyond the last.
  static bool takes(const Tables& tables, const Call& call, const int64_t* dims) {
    return call.steps == 1 && !call.starts && !call.lengths && takes(tables, call.batch, dims);
  }
  static bool takes(const Tables& tables, int64_t batch, const int64_t* dims) {
    for (int m = 0; m < tables.matrix_count; ++m)
      if (dims[tables.matrices[m].blocks] != 1) return false;
    return std::all_of(tables.slots, tables.slots + tables.slot_count,
                       [&](const SlotInfo& slot) { return batch * dims[slot.width] <= INT32_MAX / 2; });
  }
  // The same of a step that is only asked for, and whether its biases fit the slots (find_biases).
  static bool takes(const Tables& tables, const rnncc_single_question& asked) {
    std::vector<int64_t> dims(tables.dim_count);
    tables.dims(asked.sizes, asked.heads, dims.data());
    const auto first_of = [&](int i) {
      return std::accumulate(asked.stream_widths, asked.stream_widths + i, int64_t(0));
    };
    return takes(tables, asked.batch, dims.data()) &&
           find_biases(tables, dims.data(), asked.biases, asked.bias_count, 0, first_of, nullptr);
  }

  // Runs by the kernels that the program `name` has for this.
  void run(const std::string& name) {
    const std::string kernel = name + "_single", file = kernel + "_" + dtype_name(scalar());
    const auto* const given = static_cast<const StepProducts*>(call_.products);
    const bool is_forward = call_.table[SEQUENCES];
    const auto make = [&](StepProducts& products) { make_products(products, scalar(), device()); };
    if (given && is_forward) products_.append(*given);
    if (launches_ > 0) {
      const CUfunction function = find_kernel(device().index, file, kernel);
      fill();
      const int last = parameter_.header->last;
      for (int launch = 0; launch <= last; ++launch) {
        int64_t ctas = 1;
        each_stage(launch, [&](int s) { ctas = std::max(ctas, make_sums(s)); });
        if (launch == last) ctas = std::max(ctas, ctas_of_finals());
        make(products_);
        parameter_.header->launch = launch;
        launch_kernel(kernel, function, {ctas, THREADS, SINGLE_SHARED_BYTES}, device().index, parameter_.data());
      }
    }
    run_.finish_together([&](StepProducts& products) {
      if (given && !is_forward) products.append(*given);
      make(products);
    });
  }

 private:
  // A product of an operand and a matrix, which an accumulator gets.
  struct Term {
    int stage, operand, accumulator;
    bool transposed;
    const MatrixInfo* matrix;
  };

  int64_t dim(int16_t index) const { return run_.dims()[index]; }
  rnncc_dtype scalar() const { return run_.scalar(); }
  Device device() const { return run_.tensors().device; }
  bool is_wanted(Table table, int index) const { return call_.table[table] && call_.table[table][index].data; }

  template <class Work>
  void each_stage(int launch, const Work& work) const {
    for (int s = 0; s < tables_.stage_count; ++s)
      if (launch_of(tables_, s) == launch) work(s);
  }

  // Whether something that a stage stores is wanted after the step.
  bool is_needed(const StageInfo& stage) const {
    const auto is_needed = [&](int slot) {
      const SlotInfo& info = tables_.slots[slot];
      const Destination* const to = tables_.destinations + info.first_destination;
      return (info.lasting && After::reads(tables_, call_, slot)) ||
             std::any_of(to, to + info.destinations,
                         [&](const Destination& d) { return is_wanted(d.table, d.index); }) ||
             std::any_of(tables_.finals, tables_.finals + tables_.final_count, [&](const FinalInfo& final) {
               return is_wanted(final.table, final.index) && source_of(final) == slot;
             });
    };
    const int16_t* const stored = tables_.stage_slots + stage.first_stored;
    return std::any_of(stored, stored + stage.stored, is_needed);
  }

  // The launches up to the last one that makes something which is wanted. The gradient of an initial state often is not.
  int needed_launches() const {
    int stages = tables_.stage_count;
    while (stages > 0 && !is_needed(tables_.stages[stages - 1])) --stages;
    return stages > 0 ? launch_of(tables_, stages - 1) + 1 : 0;
  }

  // The slot that has the value of a final.
  int source_of(const FinalInfo& final) const {
    int slot = tables_.slots[final.slot].link;
    while (tables_.slots[slot].kind == Kind::view) slot = tables_.slots[slot].link;
    return slot;
  }

  // Whether another thread of the last launch may have made what remains after the step.
  bool are_finals_apart() const {
    for (int f = 0; f < tables_.final_count; ++f) {
      if (!parameter_.own.finals[f].base) continue;
      const int link = tables_.slots[tables_.finals[f].slot].link;
      if (tables_.slots[link].kind == Kind::view) return true;
      bool is_of_rows = false;
      each_stage(launches_ - 1, [&](int s) {
        const StageInfo& stage = tables_.stages[s];
        const int16_t* const stored = tables_.stage_slots + stage.first_stored;
        is_of_rows |= stage.row != RowOperator::none && std::count(stored, stored + stage.stored, link);
      });
      if (is_of_rows) return true;
    }
    return false;
  }

  int64_t ctas_of_finals() const {
    int64_t most = 0;
    for (int f = 0; f < tables_.final_count; ++f)
      if (parameter_.own.finals[f].base) most = std::max(most, dim(tables_.slots[tables_.finals[f].slot].width));
    return ceil_divide(most * call_.batch, THREADS);
  }

  void fill() {
    *parameter_.own.header = {call_.descending, nullptr, nullptr, nullptr};
    std::copy(run_.dims(), run_.dims() + tables_.dim_count, parameter_.dims);
    for (int c = 0; c < tables_.constant_count; ++c) parameter_.constants[c] = float(call_.constants[c]);
    for (int launch = 0; launch < launches_; ++launch)
      each_stage(launch, [&](int s) {
        add_terms(s);
        const StageInfo& stage = tables_.stages[s];
        const int64_t bytes = 4 * call_.batch * row_of(stage) * stage.products;
        if (stage.products > 0) run_.workspace().want(bytes, [this, s](char* p) { place_sums(s, p); });
      });
    run_.fill_tensors(parameter_.own);
    const rnncc_tensor* const streams = call_.table[STREAMS];
    const int64_t bytes = dtype_bytes(scalar());
    const bool fit = find_biases(
        tables_, run_.dims(), call_.biases, call_.bias_count, bytes,
        [&](int i) { return (static_cast<char*>(streams[i].data) - static_cast<char*>(streams[0].data)) / bytes; },
        parameter_.biases);
    if (!fit) fail("the biases of a single step do not fit its streams");
    const int64_t image_row = place_images();
    *parameter_.header = {call_.batch, call_.heads, image_row, 0, launches_ - 1 + are_finals_apart()};
    run_.allocate();
  }

  // The floats of a batch entry's accumulators.
  int64_t row_of(const StageInfo& stage) const { return stage.accumulators * dim(stage.width); }

  SumPlace* sums_of(int s) { return parameter_.sums + accumulators_before(tables_, s); }

  void place_sums(int s, char* memory) {
    const StageInfo& stage = tables_.stages[s];
    const int64_t row = row_of(stage);
    for (int a = 0; a < stage.accumulators; ++a)
      sums_of(s)[a] = {reinterpret_cast<float*>(memory) + a * dim(stage.width), row, call_.batch * row, 0};
  }

  // Only what is no tensor that torch can multiply needs an image.
  int64_t place_images() {
    int64_t row = 0;
    for (int i = 0; i < tables_.image_count; ++i) {
      const int slot = tables_.images[i].slot;
      parameter_.images[i] = {row, 0, dim(tables_.slots[slot].width), 0};
      if (!run_.is_multiplied(slot) || run_.record(slot)) continue;
      parameter_.images[i].blocks = 1;
      row += round_up(dim(tables_.slots[slot].width) * dtype_bytes(scalar()), 16);
    }
    if (row > 0) run_.workspace().want(row * call_.batch, [this](char* p) { parameter_.own.header->images = p; });
    return row;
  }

  // Adds the terms of a stage. Those that may be one product follow each other.
  void add_terms(int s) {
    const StageInfo& stage = tables_.stages[s];
    const size_t first = terms_.size();
    for (int p = stage.first_product; p < stage.first_product + stage.products; ++p) {
      const ProductInfo& product = tables_.products[p];
      run_.multiplies(product.operand);
      for (int m = 0; m < product.count; ++m)
        terms_.push_back({s, product.operand, product.first + m, product.transposed,
                          tables_.matrices + tables_.product_matrices[product.matrix + m]});
    }
    std::sort(terms_.begin() + int64_t(first), terms_.end(), [&](const Term& a, const Term& b) {
      const auto key = [&](const Term& t) {
        const int group = t.transposed ? t.accumulator : t.operand, within = t.transposed ? t.operand : t.accumulator;
        return std::make_tuple(t.transposed, group, t.matrix->index, dim(t.matrix->row), within);
      };
      return key(a) < key(b);
    });
  }

  // The rows [B, width] of a term's operand.
  rnncc_tensor rows_of(int slot) {
    const SlotInfo& info = tables_.slots[slot];
    const auto known = rows_.find(slot);
    if (known != rows_.end()) return known->second;
    rnncc_tensor rows = {nullptr, 0, dim(info.width), scalar()};
    if (info.kind == Kind::stored) {
      const rnncc_tensor* const record = run_.record(slot);
      if (record) return rows_[slot] = {record->data, 0, record->entry, scalar()};
      const ImagePlace* image = parameter_.images;
      while (tables_.images[image - parameter_.images].slot != slot) ++image;
      rows.data = parameter_.own.header->images + image->offset;
      rows.entry = parameter_.header->image_row / dtype_bytes(scalar());
      return rows_[slot] = rows;
    }
    if (info.kind != Kind::previous && info.kind != Kind::next)
      fail("a single step multiplies what is neither stored nor a state");
    const rnncc_tensor edge = run_.tensors().either(info.table, info.index);
    if (!edge.data) {
      rows.data = parameter_.own.places[places_before(tables_, slot)].base;  // zeros
    } else if (edge.dtype == scalar()) {
      rows = {edge.data, 0, edge.entry, scalar()};
    } else {
      const std::vector<int64_t> sizes = {call_.batch, rows.entry};
      Tensor made = empty(sizes, torch_dtype(scalar()), device());
      RNNCC_TORCH(aoti_torch_copy_(made.get(), over(edge.data, sizes, {edge.entry, 1}, edge.dtype, device()).get(), 0));
      rows.data = made.data();
      held_.push_back(std::move(made));
    }
    return rows_[slot] = rows;
  }

  // Whether a term can join the product of the terms from `first` to the one before it.
  bool joins(const Term& first, const Term& before, const Term& term) {
    const MatrixInfo &a = *before.matrix, &b = *term.matrix;
    if (term.stage != first.stage || term.transposed != first.transposed || a.index != b.index ||
        dim(a.row) + dim(a.rows) != dim(b.row))
      return false;
    if (!term.transposed)
      return term.operand == first.operand && term.accumulator == before.accumulator + 1 &&
             sums_of(term.stage)[term.accumulator].parts == sums_of(term.stage)[first.accumulator].parts;
    const rnncc_tensor x = rows_of(before.operand), y = rows_of(term.operand);
    return term.accumulator == first.accumulator && x.entry == y.entry &&
           static_cast<char*>(x.data) + dim(a.rows) * dtype_bytes(scalar()) == y.data;
  }

  // Makes the sums of a stage. Returns how many CTAs have work there.
  int64_t make_sums(int s) {
    const StageInfo& stage = tables_.stages[s];
    if (stage.row != RowOperator::none) return call_.batch;
    size_t begin = 0;
    while (begin < terms_.size() && terms_[begin].stage != s) ++begin;
    for (size_t end; begin < terms_.size() && terms_[begin].stage == s; begin = end) {
      const Term& first = terms_[begin];
      int64_t rows = dim(first.matrix->rows);
      for (end = begin + 1; end < terms_.size() && joins(first, terms_[end - 1], terms_[end]); ++end)
        rows += dim(terms_[end].matrix->rows);
      multiply(first, rows);
      const int count = first.transposed ? 1 : int(end - begin);
      for (int i = 0; i < count; ++i) ++sums_of(s)[first.accumulator + i].parts;
    }
    return ceil_divide(call_.batch * dim(stage.width), THREADS);
  }

  // A product with `rows` rows of a weight, from those of the first term on.
  void multiply(const Term& first, int64_t rows) {
    const MatrixInfo& matrix = *first.matrix;
    const SumPlace& sums = sums_of(first.stage)[first.accumulator];
    const rnncc_tensor operand = rows_of(first.operand);
    const int64_t columns = dim(matrix.columns), batch = call_.batch;
    const int64_t terms = first.transposed ? rows : columns, width = first.transposed ? columns : rows;
    char* const weight = static_cast<char*>(run_.tensors().at(WEIGHTS, matrix.index).data) +
                         dim(matrix.row) * columns * dtype_bytes(scalar());
    float* const to = const_cast<float*>(sums.base + sums.parts * sums.part);
    products_.add(first.transposed ? SmallForm::across : SmallForm::rows, {batch, width, terms},
                  {to, 0, sums.row, RNNCC_FLOAT32}, operand, {weight, 0, columns, scalar()});
  }

  const Tables& tables_;
  const Call& call_;
  DeviceRun& run_;
  SingleBuffer parameter_;
  const int launches_;
  StepProducts products_;
  std::vector<Term> terms_;
  std::map<int, rnncc_tensor> rows_;
  std::vector<Tensor> held_;
};

}  // namespace rnncc
