// A direction of a layer on a GPU decides where every value lies that its loop reads or writes, and does the work after
// the last step.
#pragma once

#include "fused/host/run.h"

namespace rnncc {

// A kernel's parameter, which is laid out part by part; its size follows from the tables.
class ParameterBuffer {
 public:
  ParameterBuffer() {}  // clears nothing
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  // The parts of a Direction (arguments.h).
  struct OfDirection {
    DirectionHeader* header;
    SlotPlace* places;
    OutputPlace *outputs, *records;
    const void** matrices;
    OutputPlace* finals;
  };

  void* data() { return bytes_; }

 protected:
  template <class U>
  U* take(int count) {
    U* part = reinterpret_cast<U*>(bytes_ + used_);
    used_ += at_least_one(count) * sizeof(U);
    if (used_ > MOST_BYTES) fail("the loop has too many values for a kernel's parameter");
    return part;
  }
  OfDirection take_direction(const Tables& t) {
    return {take<DirectionHeader>(1),
            take<SlotPlace>(places_before(t, t.slot_count)),
            take<OutputPlace>(t.destination_count),
            take<OutputPlace>(records_before(t, t.slot_count)),
            take<const void*>(t.product_matrix_count),
            take<OutputPlace>(t.final_count)};
  }
  size_t used_ = 0;

 private:
  static constexpr size_t MOST_BYTES = 32 * 1024;  // no kernel takes more
  alignas(16) char bytes_[MOST_BYTES];             // kernels read no part that was not filled in
};

// The alternating kernel's parameter, laid out as Arguments (arguments.h).
class ArgumentBuffer : public ParameterBuffer {
 public:
  explicit ArgumentBuffer(const Tables& t) {
    header = take<Header>(1);
    images = take<ImagePlace>(t.image_count);
    stages = take<StagePlan>(t.stage_count);
    joints = take<JointPlan>(t.product_count);
    products = take<ProductPlan>(t.product_count);
    dims = take<int64_t>(t.dim_count);
    constants = take<float>((at_least_one(t.constant_count) + 1) / 2 * 2);
    const int count = most_directions(used_, direction_bytes(t));
    for (int d = 0; d < count; ++d) directions.push_back(take_direction(t));
  }

  Header* header;
  ImagePlace* images;
  StagePlan* stages;
  JointPlan* joints;
  ProductPlan* products;
  int64_t* dims;
  float* constants;
  std::vector<OfDirection> directions;  // as many as the kernel has
};

// One allocation for several parts, some of which are zeros at first. Call `want` for each part; `allocate` then tells each
// `place` its address.
class Workspace {
 public:
  void want(int64_t bytes, std::function<void(char*)> place) { plain_.add(bytes, std::move(place)); }
  void want_zeros(int64_t bytes, std::function<void(char*)> place) { zeros_.add(bytes, std::move(place)); }
  void allocate(Device device) {
    const int64_t bytes = zeros_.bytes + plain_.bytes;
    if (bytes == 0) return;
    memory_ = empty({bytes}, aoti_torch_dtype_uint8(), device);
    char* const start = static_cast<char*>(memory_.data());
    if (zeros_.bytes > 0) clear(start, zeros_.bytes, device.index);
    zeros_.place_all(start);
    plain_.place_all(start + zeros_.bytes);
  }

 private:
  // Parts side by side.
  struct Parts {
    void add(int64_t size, std::function<void(char*)> place) {
      all.push_back({bytes, std::move(place)});
      bytes += round_up(std::max<int64_t>(size, 1), 256);
    }
    void place_all(char* start) const {
      for (const auto& [at, place] : all) place(start + at);
    }
    std::vector<std::pair<int64_t, std::function<void(char*)>>> all;
    int64_t bytes = 0;
  };
  Parts zeros_, plain_;
  Tensor memory_;
};

// One direction of a layer: fills the alternating kernel's parameter, or describes itself to a fused or scan kernel.
class DeviceRun {
 public:
  // `float_vectors` as CallTensors has it.
  DeviceRun(const Tables& tables, const Call& call, int32_t device, bool float_vectors)
      : tables_(tables),
        call_(call),
        device_({aoti_torch_device_type_cuda(), device}),
        dims_(make_dims(tables, call)),
        tensors_(tables, call, dims_.data(), device_, float_vectors) {}

  // The alternating kernel's division of this direction's work, where so many directions like it run side by side.
  Schedule schedule(int directions) const {
    return make_schedule(tables_, dims_.data(), call_.batch, int(dtype_bytes(scalar())), gpu(device_.index),
                         directions);
  }

  // Fills the part of the alternating kernel's parameter that all directions of a launch share.
  void fill_common(const Schedule& schedule, ArgumentBuffer& arguments) const {
    std::copy(schedule.stages.begin(), schedule.stages.end(), arguments.stages);
    std::copy(schedule.joints.begin(), schedule.joints.end(), arguments.joints);
    std::copy(schedule.products.begin(), schedule.products.end(), arguments.products);
    std::copy(dims_.begin(), dims_.end(), arguments.dims);
    for (int c = 0; c < tables_.constant_count; ++c) arguments.constants[c] = float(call_.constants[c]);
    const int64_t row = place_images(arguments.images);
    const int64_t image_step = row * round_up(call_.batch, schedule.entry_multiple);
    *arguments.header = {call_.steps,   call_.batch, call_.heads, call_.starts,   call_.rows,
                         call_.lengths, image_step,  row,         schedule.shared};
  }

  // Fills this direction's own part of the parameter; `image_step` as in Header (arguments.h).
  void fill(const Schedule& schedule, int64_t image_step, const ParameterBuffer::OfDirection& own) {
    *own.header = {call_.descending, nullptr, nullptr, nullptr};
    for (int p = 0; p < tables_.product_count; ++p) {
      const ProductInfo& product = tables_.products[p];
      for (int m = product.matrix; m < product.matrix + product.count; ++m) {
        const MatrixInfo& matrix = tables_.matrices[tables_.product_matrices[m]];
        own.matrices[m] =
            element(tensors_.at(WEIGHTS, matrix.index), dim(matrix.row) * schedule.products[p].row_length);
      }
    }
    workspace_.want_zeros(128, [&](char* p) { own.header->barrier = reinterpret_cast<uint32_t*>(p); });
    workspace_.want_zeros(image_step * RING, [&](char* p) { own.header->images = p; });
    workspace_.want(schedule.packed_bytes, [&](char* p) { own.header->packed = p; });
    fill_tensors(own);
    allocate();
  }

  // The kernel keeps what its stages make on chip: nothing of it needs a place in memory but what a call wants.
  void keep_on_chip() { is_on_chip_ = true; }
  // The operand of a product that is made between launches gets rows to read.
  void multiplies(int slot) { multiplied_.push_back(slot); }
  bool is_multiplied(int slot) const {
    return std::find(multiplied_.begin(), multiplied_.end(), slot) != multiplied_.end();
  }
  // Fills in where values lie; those in a workspace lie there after `allocate`.
  void fill_tensors(const ParameterBuffer::OfDirection& own) {
    for (int f = 0; f < tables_.final_count; ++f) {
      const rnncc_tensor& t = tensors_.at(tables_.finals[f].table, tables_.finals[f].index);
      own.finals[f] = {t.data, 0, t.entry};
    }
    for (int s = 0; s < tables_.slot_count; ++s) place_slot(s, own);
  }
  void allocate() { workspace_.allocate(device_); }
  Workspace& workspace() { return workspace_; }
  CallTensors& tensors() { return tensors_; }
  // Where torch finds a stored slot; none where it is not recorded.
  const rnncc_tensor* record(int slot) const {
    const auto found = records_.find(slot);
    return found == records_.end() ? nullptr : &found->second;
  }

  // This direction for a fused or scan kernel.
  LoopDirection direction() { return {call_, tensors_, records_, totals_}; }
  const int64_t* dims() const { return dims_.data(); }
  rnncc_dtype scalar() const { return tensors_.scalar(); }

  // The sums over all heads that a fused kernel has left.
  void sum_late(const LoopInfo& info) {
    for (const LoopLate& late : info.late) {
      const SlotInfo& slot = tables_.slots[late.sum];
      for (int d = slot.first_destination; d < slot.first_destination + slot.destinations; ++d) {
        const Destination& to = tables_.destinations[d];
        const rnncc_tensor& t = tensors_.at(to.table, to.index);
        if (!t.data) continue;
        const rnncc_tensor& terms = records_.at(late.terms);
        const std::vector<int64_t> sizes = sizes_of_all_steps(call_, dim(tables_.slots[late.terms].width));
        sum_into(over(element(t, dim(to.offset)), {sizes[0], sizes[1]}, {t.step, t.entry}, t.dtype, device_),
                 over(terms.data, sizes, {terms.step, terms.entry, 1}, terms.dtype, device_), {2});
      }
    }
  }

  // The work after the kernel: products over all steps, and results in the caller's dtypes.
  void finish() {
    After(tables_, call_, dims_.data(), tensors_, records_, totals_).run();
    tensors_.write_back();
  }
  // The same, where make(products) makes products and sums together.
  template <class Make>
  void finish_together(const Make& make) {
    StepProducts products;
    After after(tables_, call_, dims_.data(), tensors_, records_, totals_);  // holds what products read
    after.run(&products);
    make(products);
    tensors_.write_back();
  }

 private:
  static std::vector<int64_t> make_dims(const Tables& tables, const Call& call) {
    std::vector<int64_t> dims(tables.dim_count);
    tables.dims(call.sizes, call.heads, dims.data());
    return dims;
  }

  int64_t dim(int16_t index) const { return dims_[index]; }

  static void* element(const rnncc_tensor& t, int64_t offset) {
    return t.data ? static_cast<char*>(t.data) + offset * dtype_bytes(t.dtype) : nullptr;
  }

  // All images have rows of one length, in bytes: a kernel then finds any operand by one offset.
  int64_t place_images(ImagePlace* images) const {
    const int64_t bytes = dtype_bytes(tensors_.scalar());
    int64_t row = 0;
    for (int i = 0; i < tables_.image_count; ++i) {
      const ImageInfo& info = tables_.images[i];
      ImagePlace& image = images[i];
      const int64_t width = dim(tables_.slots[info.slot].width);
      image.blocks = dim(info.blocks) == 1 ? 1 : info.parts * dim(info.blocks);
      image.depth = width / image.blocks;
      image.padded = round_up(image.depth, CHUNK);
      image.offset = row;
      row += image.blocks * image.padded * bytes;
    }
    return row;
  }

  void place_slot(int s, const ParameterBuffer::OfDirection& own) {
    if (s == tables_.active) return;  // the kernel computes it from lengths and reads no memory
    const SlotInfo& info = tables_.slots[s];
    SlotPlace* const place = has_place(info) ? own.places + places_before(tables_, s) : nullptr;
    switch (info.kind) {
      case Kind::read: {
        const rnncc_tensor& t = tensors_.at(info.table, info.index);
        if (t.data) {
          *place = {element(t, dim(info.offset)), t.step, t.entry, 0};
        } else {
          workspace_.want_zeros(dim(info.width) * 4, [place](char* p) { *place = {p, 0, 0, 0}; });
        }
        return;
      }
      case Kind::previous:
      case Kind::next: {
        const rnncc_tensor& t = tensors_.at(info.table, info.index);
        *place = {t.data, 0, t.entry, 0};
        if (t.data) return;
        const int64_t rows = is_multiplied(s) ? call_.batch : 1;
        place->row = rows > 1 ? dim(info.width) : 0;
        workspace_.want_zeros(rows * dim(info.width) * 4, [place](char* p) { place->base = p; });
        return;
      }
      case Kind::vector: *place = {element(tensors_.at(WEIGHTS, info.index), dim(info.offset)), 0, 0, 0}; return;
      case Kind::stored: place_stored(s, place, own); return;
      case Kind::view:
      case Kind::tile: return;
    }
  }

  // A slot that stages read lies in the first of its destinations that is a wanted float tensor, else in the workspace.
  // Products after the loop read the first wanted destination in the streams' dtype, else a copy in the workspace (a
  // record).
  void place_stored(int s, SlotPlace* place, const ParameterBuffer::OfDirection& own) {
    const SlotInfo& info = tables_.slots[s];
    const bool is_read_after = info.lasting && After::reads(tables_, call_, s);
    bool placed = !place || is_on_chip_, recorded = !is_read_after && !is_multiplied(s);
    for (int d = info.first_destination; d < info.first_destination + info.destinations; ++d) {
      const Destination& to = tables_.destinations[d];
      const rnncc_tensor& t = tensors_.at(to.table, to.index);
      own.outputs[d] = {element(t, dim(to.offset)), t.step, t.entry};
      if (!t.data) continue;
      if (is_written_before(d, info.first_destination)) {
        own.outputs[d].base = nullptr;
        continue;
      }
      if (t.dtype == tensors_.scalar() && !recorded) {
        records_[s] = {element(t, dim(to.offset)), t.step, t.entry, t.dtype};
        recorded = true;
      }
      if (placed || t.dtype != RNNCC_FLOAT32) continue;
      *place = {element(t, dim(to.offset)), t.step, t.entry, 0};
      own.outputs[d].base = nullptr;
      placed = true;
    }
    if (!placed) placed = place_in_final(s, place, own);
    const int64_t width = dim(info.width), step = width * call_.batch;
    if (!placed) {
      *place = {nullptr, step, width, 1};
      workspace_.want(RING * step * 4, [place](char* p) { place->base = p; });
    }
    if (!info.lasting) return;
    OutputPlace& record = own.records[records_before(tables_, s)];
    record = {};
    if (recorded) return;
    records_[s] = side_by_side(call_, nullptr, width, tensors_.scalar());
    record = {nullptr, records_[s].step, width};
    workspace_.want(call_.rows * width * dtype_bytes(tensors_.scalar()),
                    [&record, &tensor = records_[s]](char* p) { record.base = tensor.data = p; });
  }

  // Where there is one step, what a state has after it can lie in the final state at once.
  bool place_in_final(int s, SlotPlace* place, const ParameterBuffer::OfDirection& own) const {
    if (call_.steps != 1 || call_.starts) return false;
    for (int f = 0; f < tables_.final_count; ++f) {
      OutputPlace& final = own.finals[f];
      if (!final.base || tables_.slots[tables_.finals[f].slot].link != s) continue;
      *place = {final.base, 0, final.row, 0};
      final.base = nullptr;
      return true;
    }
    return false;
  }

  // Whether an earlier destination of the slot is the same memory. A returned sequence may also be the saved one.
  bool is_written_before(int d, int first) {
    const auto start = [&](int i) {
      return element(tensors_.at(tables_.destinations[i].table, tables_.destinations[i].index),
                     dim(tables_.destinations[i].offset));
    };
    for (int other = first; other < d; ++other)
      if (start(other) == start(d)) return true;
    return false;
  }

  const Tables& tables_;
  const Call& call_;
  const Device device_;
  const std::vector<int64_t> dims_;
  CallTensors tensors_;
  Workspace workspace_;
  bool is_on_chip_ = false;
  std::vector<int> multiplied_;
  std::map<int, rnncc_tensor> records_;
  std::map<int, Tensor> totals_;
};

}  // namespace rnncc
