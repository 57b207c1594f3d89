// Runs a loop by a fused kernel, where the package has one for its sizes: finds it, places what it reads and writes, and
// launches it. What is left for after the last step is after.h's.
#pragma once

#include <cstdio>

#include "../after.h"

namespace rnncc {

enum class FusedFamily { gather, scatter, grid };

// A line of the file `cuda/fused.txt` beside the library:
//   program dtype units family blocks threads shared_bytes columns file kernel
// `units` of a head; `blocks`: thread blocks of a cluster, or for one head and group of columns; `columns`: most of a group.
struct FusedKernel {
  std::string program, dtype, family, file, kernel;
  int64_t units = 0;
  int blocks = 0, threads = 0, shared_bytes = 0, columns = 0;
};

class FusedKernels {
 public:
  static FusedKernels& all() {
    static FusedKernels kernels;
    return kernels;
  }
  void read() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<FusedKernel> found;
    // C's functions: the library holds a C++ library of its own, whose streams would need its locales.
    if (std::FILE* file = std::fopen((own_folder() + "/cuda/fused.txt").c_str(), "r")) {
      char program[256], dtype[16], family[16], unit[256], kernel[256];
      long long units;
      FusedKernel k;
      while (std::fscanf(file, "%255s %15s %lld %15s %d %d %d %d %255s %255s", program, dtype, &units, family, &k.blocks,
                         &k.threads, &k.shared_bytes, &k.columns, unit, kernel) == 10) {
        k.program = program;
        k.dtype = dtype;
        k.family = family;
        k.file = unit;
        k.kernel = kernel;
        k.units = units;
        found.push_back(k);
      }
      std::fclose(file);
    }
    kernels_ = std::move(found);
  }
  // The kernels for these sizes, for few batch columns first.
  std::vector<const FusedKernel*> find(const std::string& program, rnncc_dtype dtype, int64_t units) {
    const char* name = dtype == RNNCC_BFLOAT16 ? "bf16" : dtype == RNNCC_FLOAT16 ? "f16" : "f32";
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const FusedKernel*> found;
    for (const FusedKernel& k : kernels_)
      if (k.program == program && k.dtype == name && k.units == units) found.push_back(&k);
    return found;
  }

 private:
  FusedKernels() { read(); }
  std::mutex mutex_;
  std::vector<FusedKernel> kernels_;
};

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

class FusedRun {
 public:
  FusedRun(const Tables& tables, const FusedInfo& info, const FusedKernel& kernel, const Call& call, const int64_t* dims,
           CallTensors& tensors, bool training)
      : tables_(tables), info_(info), kernel_(kernel), call_(call), dims_(dims), tensors_(tensors), training_(training) {}

  // False where the columns are too many or a tensor lies in a way that the kernel does not take; nothing was launched then.
  bool run(std::map<int, rnncc_tensor>& records) {
    const int index = tensors_.device.index;
    const CUfunction function = find_kernel(index, kernel_.file, kernel_.kernel);
    const bool grid = kernel_.family == "grid";
    const int64_t heads = call_.heads, most = kernel_.columns;
    const int64_t seats = std::max<int64_t>(1, (grid ? gpu(index).multiprocessors / kernel_.blocks : clusters(function)) / heads);
    if (grid && kernel_.blocks * heads > gpu(index).multiprocessors) return false;
    // As many groups as run side by side; wide enough that one pass is enough, if that can be.
    const int64_t group = std::min(most, std::max<int64_t>(1, ceil_divide(call_.columns, seats)));
    const int64_t groups = ceil_divide(call_.columns, group);
    if (grid && groups > seats) return false;
    if (!fill(group, grid, records)) return false;
    launch(function, unsigned(kernel_.blocks * heads * groups), grid);
    return true;
  }

 private:
  int64_t dim(int16_t index) const { return dims_[index]; }

  CUlaunchConfig config(unsigned blocks, bool grid, CUlaunchAttribute& attribute) const {
    attribute = {};
    attribute.id = grid ? CU_LAUNCH_COOPERATIVE : CU_LAUNCH_CLUSTER;
    attribute.value[0] = grid ? 1 : unsigned(kernel_.blocks);
    attribute.value[1] = attribute.value[2] = 1;
    return {{blocks, 1, 1}, {unsigned(kernel_.threads), 1, 1}, unsigned(kernel_.shared_bytes), current_stream(tensors_.device.index),
            &attribute, 1};
  }

  int64_t clusters(CUfunction function) const {
    check_cuda(driver().cuFuncSetAttribute(function, CU_FUNC_LARGE_CLUSTER, 1), "allowing clusters of " + kernel_.kernel);
    CUlaunchAttribute attribute;
    const CUlaunchConfig launch = config(unsigned(kernel_.blocks), false, attribute);
    int count = 0;
    check_cuda(driver().cuOccupancyMaxActiveClusters(&count, function, &launch), "counting clusters of " + kernel_.kernel);
    if (count < 1)
      fail(kernel_.kernel + " needs " + std::to_string(kernel_.blocks) + " thread blocks of " + std::to_string(kernel_.threads) +
           " threads and " + std::to_string(kernel_.shared_bytes) + " bytes of shared memory in a cluster, this GPU runs none");
    return count;
  }

  void launch(CUfunction function, unsigned blocks, bool grid) {
    if (grid) require_residency(tensors_.device.index, function, kernel_.kernel, blocks, kernel_.threads, kernel_.shared_bytes);
    CUlaunchAttribute attribute;
    const CUlaunchConfig how = config(blocks, grid, attribute);
    void* parameters[] = {bytes_.data()};
    check_cuda(driver().cuLaunchKernelEx(&how, function, parameters, nullptr), "launching " + kernel_.kernel);
  }

  template <class U>
  U* take(int count) {
    const size_t at = bytes_.size();
    bytes_.resize(at + at_least_one(count) * sizeof(U));
    return reinterpret_cast<U*>(bytes_.data() + at);
  }

  // A tensor [T, B, ...] from `offset` elements on, along the loop's order.
  FusedPlace along(const rnncc_tensor& t, int64_t offset, int64_t ahead = 0) const {
    if (!t.data) return {};
    const int64_t bytes = dtype_bytes(t.dtype), first = call_.descending ? call_.steps - 1 : 0;
    const int64_t step = (call_.descending ? -t.step : t.step) * bytes;
    return {static_cast<char*>(t.data) + (first * t.step + offset) * bytes + ahead * step, step, t.column * bytes};
  }
  FusedEdge edge(Table table, int index) {
    const rnncc_tensor& t = tensors_.at(table, index);
    return {static_cast<char*>(t.data), t.column * dtype_bytes(t.dtype), t.dtype == RNNCC_FLOAT32, 0};
  }
  static bool is_aligned(const FusedPlace& place) {
    return (reinterpret_cast<uintptr_t>(place.base) | uintptr_t(place.step) | uintptr_t(place.column)) % 16 == 0;
  }

  bool fill(int64_t group, bool grid, std::map<int, rnncc_tensor>& records) {
    bytes_.reserve(32 * 1024);  // addresses of parts stay
    *take<FusedHeader>(1) = {int32_t(call_.steps), int32_t(call_.columns), int32_t(call_.heads), int32_t(group)};
    const void** matrices = take<const void*>(info_.sums * info_.operands);
    for (int m = 0; m < info_.sums * info_.operands; ++m) {
      const MatrixInfo& matrix = tables_.matrices[info_.matrices[m]];
      const rnncc_tensor& weight = tensors_.at(WEIGHTS, matrix.index);
      matrices[m] = static_cast<char*>(weight.data) + dim(matrix.row) * (dim(matrix.columns) / dim(matrix.blocks)) * dtype_bytes(weight.dtype);
      if (reinterpret_cast<uintptr_t>(matrices[m]) % 16 != 0) return false;
    }
    FusedPlace* reads = take<FusedPlace>(info_.reads);
    FusedEdge* read_edges = take<FusedEdge>(info_.reads);
    for (int r = 0; r < info_.reads; ++r) {
      const SlotInfo& slot = tables_.slots[info_.read_slots[r]];
      const bool shifted = slot.kind != Kind::read;
      const SlotInfo& source = shifted ? tables_.slots[slot.link] : slot;
      reads[r] = along(tensors_.at(source.table, source.index), dim(source.offset), shifted);
      read_edges[r] = shifted ? edge(slot.table, slot.index) : FusedEdge{};
      if (!is_aligned(reads[r])) return false;
    }
    FusedPlace* rows = take<FusedPlace>(info_.rows);
    for (int r = 0; r < info_.rows; ++r) {
      const SlotInfo& slot = tables_.slots[info_.row_slots[r]];
      rows[r] = along(tensors_.at(slot.table, slot.index), dim(slot.offset));
    }
    std::vector<FusedPlace> writes;
    for (int w = 0; w < info_.writes; ++w) {
      const int s = info_.write_slots[w];
      const SlotInfo& slot = tables_.slots[s];
      if (info_.write_places[w] < 0) {
        if (training_) writes.push_back(record(s, records));
        continue;
      }
      const Destination& to = tables_.destinations[slot.first_destination + info_.write_places[w]];
      if (is_saved(to.table) && !training_) continue;
      const rnncc_tensor& t = tensors_.at(to.table, to.index);
      const FusedPlace place = along(t, dim(to.offset));
      // A returned sequence that is also what was saved is written once.
      const bool again = std::any_of(writes.begin(), writes.end(), [&](const FusedPlace& w) { return w.base == place.base; });
      writes.push_back(again ? FusedPlace{} : place);
      if (writes.back().base && reinterpret_cast<uintptr_t>(writes.back().base) % 4 != 0) return false;
      if (writes.back().column * call_.columns > UINT32_MAX) return false;
      if (t.data && !records.count(s)) records[s] = {static_cast<char*>(t.data) + dim(to.offset) * dtype_bytes(t.dtype), t.step, t.column, t.dtype};
    }
    std::copy(writes.begin(), writes.end(), take<FusedPlace>(int(writes.size())));
    FusedEdge* initial = take<FusedEdge>(info_.edges);
    FusedEdge* last = take<FusedEdge>(info_.edges);
    for (int e = 0; e < info_.edges; ++e) {
      const SlotInfo& slot = tables_.slots[info_.edge_slots[e]];
      initial[e] = edge(slot.table, slot.index);
      const int end = info_.edge_finals[e];
      last[e] = end < 0 ? FusedEdge{} : edge(tables_.finals[end].table, tables_.finals[end].index);
    }
    FusedEdge* vectors = take<FusedEdge>(info_.vectors);
    for (int v = 0; v < info_.vectors; ++v) {
      const SlotInfo& slot = tables_.slots[info_.vector_slots[v]];
      const rnncc_tensor& weight = tensors_.at(WEIGHTS, slot.index);
      vectors[v] = {static_cast<char*>(weight.data) + dim(slot.offset) * dtype_bytes(weight.dtype), dim(slot.width) > 1,
                    weight.dtype == RNNCC_FLOAT32, 0};
    }
    float* constants = take<float>((at_least_one(tables_.constant_count) + 1) / 2 * 2);
    for (int c = 0; c < tables_.constant_count; ++c) constants[c] = float(call_.constants[c]);
    FusedPlace* exchange = take<FusedPlace>(1);
    if (grid) {
      // As GridShape has it. A step's part is small: all blocks that have a place in it run at once.
      const int64_t column = call_.heads * info_.operands * round_up(kernel_.units, 32) * 2, step = column * call_.columns;
      if (step > UINT32_MAX) return false;
      exchange_ = empty({step * call_.steps}, aoti_torch_dtype_uint8(), tensors_.device);
      check_cuda(driver().cuMemsetD8Async(uint64_t(exchange_.data()), 0xff, size_t(step * call_.steps), current_stream(tensors_.device.index)),
                 "clearing the exchange");
      *exchange = {static_cast<char*>(exchange_.data()), step, column};
    }
    return true;
  }

  FusedPlace record(int s, std::map<int, rnncc_tensor>& records) {
    if (!After::reads(tables_, call_, s)) return {};
    const int64_t width = dim(tables_.slots[s].width);
    held_.push_back(empty({call_.steps, call_.columns, width}, torch_dtype(tensors_.scalar()), tensors_.device));
    records[s] = {held_.back().data(), call_.columns * width, width, tensors_.scalar()};
    return along(records[s], 0);
  }

  const Tables& tables_;
  const FusedInfo& info_;
  const FusedKernel& kernel_;
  const Call& call_;
  const int64_t* dims_;
  CallTensors& tensors_;
  const bool training_;
  std::vector<char> bytes_;
  std::vector<Tensor> held_;
  Tensor exchange_;
};

}  // namespace rnncc
