// Runs a loop whose step works on matrices by a kernel that gives each head of a batch entry to a CTA.
#pragma once

#include "../direction.h"
#include "../loops.h"
#include "call.h"

namespace rnncc {

// The kernel's parameter, laid out as HeadCall (call.h).
class HeadBuffer : public ParameterBuffer {
 public:
  explicit HeadBuffer(const Tables& t)
      : header(take<HeadHeader>(1)),
        dims(take<int64_t>(t.dim_count)),
        own(take<int32_t>((at_least_one(t.dim_count) + 1) / 2 * 2)),
        offsets(take<int32_t>((at_least_one(t.slot_count) + 1) / 2 * 2)),
        constants(take<float>((at_least_one(t.constant_count) + 1) / 2 * 2)),
        direction(take_direction(t)) {}

  HeadHeader* const header;
  int64_t* const dims;
  int32_t *const own, *const offsets;
  float* const constants;
  const OfDirection direction;
};

// A direction of a layer.
class HeadsRun {
 public:
  HeadsRun(const LoopOnDevice& loop, const Call& call, DeviceRun& run, int32_t device)
      : tables_(loop.tables), form_(*loop.by_head), call_(call), run_(run), device_(device), tile_(find_tile()) {}

  // Whether there is a kernel for the call's sizes: one whose CTA has room for a head, and heads have nothing in common
  // but what they are given.
  bool fits() const {
    if (std::any_of(run_.dims(), run_.dims() + tables_.dim_count, [](int64_t dim) { return dim > INT32_MAX; }))
      return false;
    for (int s = 0; s < tables_.slot_count; ++s)
      if (!form_.matrices[s] && is_fetched(tables_, s) && of_head(dim(tables_.slots[s].width)) > MOST_FETCHED * THREADS)
        return false;
    return tile_ && are_apart() && shared_bytes() <= gpu(device_).shared_bytes;
  }

  // What follows the name of the program in the kernel's.
  std::string suffix() const { return tile_->name; }

  void run(const std::string& name) {
    const std::string kernel = name + suffix();
    const CUfunction function = find_kernel(device_, kernel + "_" + dtype_name(run_.scalar()), kernel);
    HeadBuffer buffer(tables_);
    *buffer.header = {call_.steps, call_.batch, call_.heads, call_.starts, call_.rows, call_.lengths};
    for (int d = 0; d < tables_.dim_count; ++d) {
      buffer.dims[d] = dim(d);
      buffer.own[d] = int32_t(of_head(dim(d)));
    }
    for (int c = 0; c < tables_.constant_count; ++c) buffer.constants[c] = float(call_.constants[c]);
    place_vectors([&](int slot, int64_t offset) { buffer.offsets[slot] = int32_t(offset); });
    *buffer.direction.header = {call_.descending, nullptr, nullptr, nullptr};
    run_.keep_on_chip();
    run_.fill_tensors(buffer.direction);
    run_.allocate();
    const int64_t ctas = call_.batch * call_.heads;
    if (ctas > INT32_MAX) fail("a batch of " + std::to_string(call_.batch) + " has more heads than a launch takes");
    if (ctas > 0) launch_kernel(kernel, function, {ctas, THREADS, int(shared_bytes())}, device_, buffer.data());
    run_.finish();
  }

 private:
  int64_t dim(int index) const { return run_.dims()[index]; }
  int64_t of_head(int64_t width) const { return width == 1 ? 1 : width / call_.heads; }

  const StageInfo* elements() const {
    for (int s = 0; s < tables_.stage_count; ++s)
      if (tables_.stages[s].row == RowOperator::elements) return tables_.stages + s;
    return nullptr;
  }
  int64_t columns() const { return of_head(dim(elements()->matrix_columns)); }

  const HeadTile* find_tile() const {
    const int64_t rows = of_head(dim(elements()->matrix_rows));
    for (int i = 0; i < form_.count; ++i) {
      const HeadTile& tile = form_.tiles[i];
      if (rows <= int64_t(THREADS / tile.lanes) * tile.rows && columns() <= int64_t(tile.lanes) * tile.columns)
        return &tile;
    }
    return nullptr;
  }

  // Whether heads divide every value, and none adds up to a number for all heads.
  bool are_apart() const {
    if (call_.heads == 1) return true;
    for (int s = 0; s < tables_.slot_count; ++s)
      if (dim(tables_.slots[s].width) != 1 && dim(tables_.slots[s].width) % call_.heads != 0) return false;
    for (int s = 0; s < tables_.stage_count; ++s) {
      const StageInfo& stage = tables_.stages[s];
      if (stage.row != RowOperator::none && stage.row != RowOperator::elements && dim(stage.width) == 1) return false;
    }
    return true;
  }

  // Calls work(slot, offset) for each vector that lies in shared memory, behind what threads join their values in.
  // Returns how many floats there are.
  template <class Work>
  int64_t place_vectors(const Work& work) const {
    int64_t floats = WARPS;
    for (int s = 0; s < tables_.stage_count; ++s) {
      const StageInfo& stage = tables_.stages[s];
      const int sums = stage.row == RowOperator::elements ? stage.column_sums + stage.column_maxima : 0;
      floats = std::max(floats, sums * WARPS * columns());
    }
    for (int s = 0; s < tables_.slot_count; ++s) {
      if (form_.matrices[s]) continue;
      work(s, floats);
      floats += of_head(dim(tables_.slots[s].width)) * steps_on_chip(tables_, s);
    }
    return floats;
  }
  int64_t shared_bytes() const {
    return 4 * place_vectors([](int, int64_t) {});
  }

  const Tables& tables_;
  const HeadForm& form_;
  const Call& call_;
  DeviceRun& run_;
  const int32_t device_;
  const HeadTile* const tile_;
};

}  // namespace rnncc
