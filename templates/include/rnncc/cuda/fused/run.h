// Runs a loop by a fused kernel, where the package has one for its sizes: finds it, places what it reads and writes, and
// launches it. What is left for after the last step is after.h's.
#pragma once

#include "../after.h"
#include "index.h"

namespace rnncc {

// Those that the package was built with, and those that were added since.
inline FusedIndex& fused_index() {
  static FusedIndex index;
  static const int own = index.add(own_folder() + "/cuda");
  (void)own;
  return index;
}

// On a device. `places` as in fused_share, 0 where the kernel cannot run there.
struct FusedLoaded {
  CUfunction function = nullptr;
  int64_t places = 0;
};

inline CUlaunchConfig fused_config(const FusedKernel& kernel, unsigned blocks, unsigned directions, CUstream stream,
                                   CUlaunchAttribute& attribute) {
  attribute = {};
  attribute.id = kernel.is_grid() ? CU_LAUNCH_COOPERATIVE : CU_LAUNCH_CLUSTER;
  attribute.value[0] = kernel.is_grid() ? 1 : unsigned(kernel.blocks);
  attribute.value[1] = attribute.value[2] = 1;
  return {{blocks, directions, 1}, {unsigned(kernel.threads), 1, 1}, unsigned(kernel.shared_bytes), stream, &attribute, 1};
}

// Without places where the GPU cannot run it: kernels are laid out for one GPU of an architecture, and others have fewer
// multiprocessors, less shared memory or smaller clusters. A multiprocessor is one block's place, as it was laid out: of two
// that fit there each would take up to twice as long, for groups that need not be that narrow.
inline FusedLoaded load_fused(const FusedKernel& kernel, int32_t device) {
  const Gpu& on = gpu(device);
  const std::string path = find_cubin(kernel.folder + "/" + kernel.name, on);
  if (path.empty() || kernel.shared_bytes > on.shared_bytes) return {};
  const CUfunction function = get_kernel(load_module(path), kernel.name, on);
  int count = 0;
  if (kernel.is_grid()) {
    check_cuda(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, kernel.threads, size_t(kernel.shared_bytes)),
               "counting thread blocks of " + kernel.name);
    return {function, count > 0 ? on.multiprocessors / kernel.blocks : 0};
  }
  CUlaunchAttribute attribute;
  const CUlaunchConfig launch = fused_config(kernel, unsigned(kernel.blocks), 1, nullptr, attribute);
  // An error says that there are no clusters of that size here.
  if (driver().cuFuncSetAttribute(function, CU_FUNC_LARGE_CLUSTER, 1) != 0 ||
      driver().cuOccupancyMaxActiveClusters(&count, function, &launch) != 0)
    count = 0;
  return {function, std::min(count, on.multiprocessors / kernel.blocks)};
}

inline const FusedLoaded& loaded_fused(const FusedKernel& kernel, int32_t device) {
  static std::mutex mutex;
  static std::map<std::pair<const FusedKernel*, int32_t>, FusedLoaded> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({&kernel, device});
  return found != known.end() ? found->second : known[{&kernel, device}] = load_fused(kernel, device);
}

struct FusedChoice {
  const FusedKernel* kernel;
  CUfunction function;
  FusedShare share;
  int64_t step_ns() const { return share.passes * kernel->pass_ns; }
};

// As the index has it.
inline const char* dtype_name(rnncc_dtype dtype) {
  return dtype == RNNCC_FLOAT32 ? "f32" : dtype == RNNCC_BFLOAT16 ? "bf16" : "f16";
}

// The kernels that can run a call, the one that is expected to be quickest first; `heads` are those of all directions that run
// side by side. All are loaded, whatever the batch: a batch of another size then needs nothing new while a graph is captured.
inline std::vector<FusedChoice> fused_choices(const std::string& program, const std::string& dtype, int64_t units, int64_t heads,
                                              int64_t columns, int32_t device) {
  std::vector<FusedChoice> found;
  for (const FusedKernel* kernel : fused_index().find(program, dtype, units)) {
    const FusedLoaded& loaded = loaded_fused(*kernel, device);
    const FusedShare share = fused_share(*kernel, heads, columns, loaded.places);
    if (share.passes > 0) found.push_back({kernel, loaded.function, share});
  }
  std::stable_sort(found.begin(), found.end(), [](const FusedChoice& a, const FusedChoice& b) { return a.step_ns() < b.step_ns(); });
  return found;
}

// Of the kernels for two directions side by side, those that take no longer than two launches of the best one for one.
inline std::vector<FusedChoice> no_slower(std::vector<FusedChoice> together, const std::vector<FusedChoice>& apart) {
  const auto is_slow = [&](const FusedChoice& choice) { return !apart.empty() && choice.step_ns() > 2 * apart[0].step_ns(); };
  together.erase(std::remove_if(together.begin(), together.end(), is_slow), together.end());
  return together;
}

// As step.cuh has them.
struct FusedPlace {
  char* base;
  int64_t step, column;
};
struct FusedEdge {
  char* base;
  int64_t column;
  int32_t is_float, unused;
};
struct FusedHeader {
  int32_t steps, columns, heads, group_columns;
};

// One direction of a call. `records` as After's: of stored slots that are read there, the tensor that holds them.
struct FusedDirection {
  const Call& call;
  CallTensors& tensors;
  std::map<int, rnncc_tensor>& records;
};

// Directions of a layer, side by side: at most as many as step.cuh has, alike in all but their tensors and their order.
class FusedRun {
 public:
  FusedRun(const Tables& tables, const FusedInfo& info, const FusedChoice& choice, const int64_t* dims, bool training)
      : tables_(tables), info_(info), choice_(choice), kernel_(*choice.kernel), dims_(dims), training_(training), bytes_(MOST_BYTES) {}

  // False where a tensor lies in a way that the kernel does not take; nothing was launched then.
  bool run(const std::vector<FusedDirection>& directions) {
    const Call& call = directions[0].call;
    stream_ = current_stream(directions[0].tensors.device.index);
    if (kernel_.is_grid() && !make_exchange(directions)) return false;
    *take<FusedHeader>(1) = {int32_t(call.steps), int32_t(call.columns), int32_t(call.heads), int32_t(choice_.share.group)};
    float* constants = take<float>((at_least_one(tables_.constant_count) + 1) / 2 * 2);
    for (int c = 0; c < tables_.constant_count; ++c) constants[c] = float(call.constants[c]);
    for (const FusedDirection& direction : directions)
      if (!fill(direction)) return false;
    launch(directions[0].tensors.device.index, unsigned(kernel_.blocks * call.heads * choice_.share.groups), unsigned(directions.size()));
    return true;
  }

 private:
  int64_t dim(int16_t index) const { return dims_[index]; }

  void launch(int32_t device, unsigned blocks, unsigned directions) {
    CUlaunchAttribute attribute;
    const CUlaunchConfig how = fused_config(kernel_, blocks, directions, stream_, attribute);
    if (kernel_.is_grid())
      require_residency(device, choice_.function, kernel_.name, int64_t(blocks) * directions, kernel_.threads, kernel_.shared_bytes);
    void* parameters[] = {bytes_.data()};
    check_cuda(driver().cuLaunchKernelEx(&how, choice_.function, parameters, nullptr), "launching " + kernel_.name);
  }

  template <class U>
  U* take(int count) {
    U* const part = reinterpret_cast<U*>(bytes_.data() + used_);
    used_ += at_least_one(count) * sizeof(U);
    if (used_ > bytes_.size()) fail("the loop has too many values for a kernel's parameter");
    return part;
  }

  // A tensor [T, B, ...] from `offset` elements on, along the loop's order.
  static FusedPlace along(const Call& call, const rnncc_tensor& t, int64_t offset, int64_t ahead = 0) {
    if (!t.data) return {};
    const int64_t bytes = dtype_bytes(t.dtype), first = call.descending ? call.steps - 1 : 0;
    const int64_t step = (call.descending ? -t.step : t.step) * bytes;
    return {static_cast<char*>(t.data) + (first * t.step + offset) * bytes + ahead * step, step, t.column * bytes};
  }
  static FusedEdge edge(const rnncc_tensor& t) {
    return {static_cast<char*>(t.data), t.column * dtype_bytes(t.dtype), t.dtype == RNNCC_FLOAT32, 0};
  }
  // Whether kernels can move a tensor's rows in pieces of 16 bytes, from step to step by an offset of 32 bits.
  static bool has_pieces(const FusedPlace& place) {
    return (reinterpret_cast<uintptr_t>(place.base) | uintptr_t(place.step) | uintptr_t(place.column)) % 16 == 0 &&
           std::abs(place.step) <= INT32_MAX;
  }

  // As FusedTensors has it.
  bool fill(const FusedDirection& direction) {
    const Call& call = direction.call;
    CallTensors& tensors = direction.tensors;
    std::map<int, rnncc_tensor>& records = direction.records;
    const void** matrices = take<const void*>(info_.sums * info_.operands);
    for (int m = 0; m < info_.sums * info_.operands; ++m) {
      const MatrixInfo& matrix = tables_.matrices[info_.matrices[m]];
      const rnncc_tensor& weight = tensors.at(WEIGHTS, matrix.index);
      matrices[m] = static_cast<char*>(weight.data) + dim(matrix.row) * (dim(matrix.columns) / dim(matrix.blocks)) * dtype_bytes(weight.dtype);
      if (reinterpret_cast<uintptr_t>(matrices[m]) % 16 != 0) return false;
    }
    FusedPlace* reads = take<FusedPlace>(info_.reads);
    FusedEdge* read_edges = take<FusedEdge>(info_.reads);
    for (int r = 0; r < info_.reads; ++r) {
      const SlotInfo& slot = tables_.slots[info_.read_slots[r]];
      const bool shifted = slot.kind != Kind::read;
      const SlotInfo& source = shifted ? tables_.slots[slot.link] : slot;
      reads[r] = along(call, tensors.at(source.table, source.index), dim(source.offset), shifted);
      read_edges[r] = shifted ? edge(tensors.edge(slot.table, slot.index)) : FusedEdge{};
      if (!has_pieces(reads[r])) return false;
    }
    FusedPlace* rows = take<FusedPlace>(info_.rows);
    for (int r = 0; r < info_.rows; ++r) {
      const SlotInfo& slot = tables_.slots[info_.row_slots[r]];
      rows[r] = along(call, tensors.at(slot.table, slot.index), dim(slot.offset));
    }
    std::vector<FusedPlace> writes;
    for (int w = 0; w < info_.writes; ++w) {
      const int s = info_.write_slots[w];
      const SlotInfo& slot = tables_.slots[s];
      if (info_.write_places[w] < 0) {
        if (training_) writes.push_back(record(s, direction));
        if (training_ && !has_pieces(writes.back())) return false;
        continue;
      }
      const Destination& to = tables_.destinations[slot.first_destination + info_.write_places[w]];
      if (is_saved(to.table) && !training_) continue;
      const rnncc_tensor& t = tensors.at(to.table, to.index);
      const FusedPlace place = along(call, t, dim(to.offset));
      // A returned sequence that is also what was saved is written once.
      const bool again = std::any_of(writes.begin(), writes.end(), [&](const FusedPlace& w) { return w.base == place.base; });
      writes.push_back(again ? FusedPlace{} : place);
      if (!has_pieces(writes.back())) return false;
      if (t.data && !records.count(s)) records[s] = {static_cast<char*>(t.data) + dim(to.offset) * dtype_bytes(t.dtype), t.step, t.column, t.dtype};
    }
    std::copy(writes.begin(), writes.end(), take<FusedPlace>(int(writes.size())));
    FusedEdge* initial = take<FusedEdge>(info_.edges);
    FusedEdge* last = take<FusedEdge>(info_.edges);
    for (int e = 0; e < info_.edges; ++e) {
      const SlotInfo& slot = tables_.slots[info_.edge_slots[e]];
      initial[e] = edge(tensors.edge(slot.table, slot.index));
      const int end = info_.edge_finals[e];
      last[e] = end < 0 ? FusedEdge{} : edge(tensors.edge(tables_.finals[end].table, tables_.finals[end].index));
    }
    FusedEdge* vectors = take<FusedEdge>(info_.vectors);
    for (int v = 0; v < info_.vectors; ++v) {
      const SlotInfo& slot = tables_.slots[info_.vector_slots[v]];
      const rnncc_tensor& weight = tensors.at(WEIGHTS, slot.index);
      vectors[v] = {static_cast<char*>(weight.data) + dim(slot.offset) * dtype_bytes(weight.dtype), dim(slot.width) > 1,
                    weight.dtype == RNNCC_FLOAT32, 0};
    }
    *take<FusedPlace>(1) = exchange_;
    exchange_.base += exchange_.step * call.steps;
    return true;
  }

  // What blocks of the grid send each other, as GridShape has it. False where a step's part has no offsets of 32 bits; all blocks
  // that have a place in it run at once, so it is small.
  bool make_exchange(const std::vector<FusedDirection>& directions) {
    const Call& call = directions[0].call;
    const CallTensors& tensors = directions[0].tensors;
    const int64_t column = call.heads * info_.operands * round_up(kernel_.units, 32) * dtype_bytes(tensors.scalar());
    const int64_t step = column * call.columns, bytes = step * call.steps * int64_t(directions.size());
    if (step > UINT32_MAX) return false;
    held_.push_back(empty({bytes}, aoti_torch_dtype_uint8(), tensors.device));
    exchange_ = {static_cast<char*>(held_.back().data()), step, column};
    check_cuda(driver().cuMemsetD8Async(uint64_t(exchange_.base), 0xff, size_t(bytes), stream_), "clearing the exchange");
    return true;
  }

  FusedPlace record(int s, const FusedDirection& direction) {
    const auto& [call, tensors, records] = direction;
    if (!After::reads(tables_, call, s)) return {};
    const int64_t width = dim(tables_.slots[s].width);
    held_.push_back(empty({call.steps, call.columns, width}, torch_dtype(tensors.scalar()), tensors.device));
    records[s] = {held_.back().data(), call.columns * width, width, tensors.scalar()};
    return along(call, records[s], 0);
  }

  const Tables& tables_;
  const FusedInfo& info_;
  const FusedChoice& choice_;
  const FusedKernel& kernel_;
  const int64_t* dims_;
  const bool training_;
  static constexpr size_t MOST_BYTES = 32 * 1024;
  std::vector<char> bytes_;
  size_t used_ = 0;
  CUstream stream_ = nullptr;
  FusedPlace exchange_ = {};  // of the next direction
  std::vector<Tensor> held_;
};

}  // namespace rnncc

// Adds the kernels of a folder to this package's, for the calls from now on: how many, or -1 where there is no index.
extern "C" inline __attribute__((used, visibility("default"))) int32_t rnncc_add_kernels(const char* folder) {
  return rnncc::fused_index().add(folder);
}
