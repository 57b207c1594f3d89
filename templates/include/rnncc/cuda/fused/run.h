// Runs a loop by a fused kernel, where the package has one for its sizes: finds it, places what it reads and writes, and
// launches it. What is left for after the last step is after.h's.
#pragma once

#include <cmath>

#include "../graph.h"
#include "../parameter.h"
#include "index.h"
#include "product.h"

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
  const unsigned attributes = kernel.is_stepwise() ? 0 : 1;
  attribute.id = kernel.is_grid() ? CU_LAUNCH_COOPERATIVE : CU_LAUNCH_CLUSTER;
  attribute.value[0] = kernel.is_grid() ? 1 : unsigned(kernel.blocks);
  attribute.value[1] = attribute.value[2] = 1;
  return {{blocks, directions, 1}, {unsigned(kernel.threads), 1, 1}, unsigned(kernel.shared_bytes), stream, &attribute, attributes};
}

// Without places where the GPU cannot run it: kernels are laid out for one GPU of an architecture, and others have fewer
// multiprocessors, less shared memory or smaller clusters. A multiprocessor is one block's place, as it was laid out: of two
// that fit there each would take up to twice as long, for groups that need not be that narrow.
inline FusedLoaded load_fused(const FusedKernel& kernel, int32_t device) {
  const Gpu& on = gpu(device);
  const std::string path = find_cubin(kernel.folder + "/" + kernel.name, on);
  if (path.empty() || kernel.shared_bytes > on.shared_bytes) return {};
  const CUfunction function = get_kernel(load_module(path), kernel.name, on);
  if (kernel.is_stepwise()) return {function, 1};
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
  int64_t step_ns() const { return fused_step_ns(*kernel, share); }
  bool operator<(const FusedChoice& other) const {
    const bool is_stepwise = kernel->is_stepwise();
    return is_stepwise != other.kernel->is_stepwise() ? is_stepwise : step_ns() < other.step_ns();
  }
};

// As the index has it.
inline const char* dtype_name(rnncc_dtype dtype) {
  return dtype == RNNCC_FLOAT32 ? "f32" : dtype == RNNCC_BFLOAT16 ? "bf16" : "f16";
}

// The kernels that can run a call, the one that is expected to be quickest first; `heads` are those of all directions that run
// side by side; `by_steps`: whether stepwise ones can, which are for one head and no packed tensors, of which the host does not
// know how many steps there are. All are loaded, whatever the batch: a batch of another size then needs nothing new while a graph
// is captured.
inline std::vector<FusedChoice> fused_choices(const std::string& program, const std::string& dtype, int64_t units, int64_t heads,
                                              int64_t columns, bool by_steps, int32_t device) {
  std::vector<FusedChoice> found;
  for (const FusedKernel* kernel : fused_index().find(program, dtype, units)) {
    if (kernel->is_stepwise() && !by_steps) continue;
    const FusedLoaded& loaded = loaded_fused(*kernel, device);
    const FusedShare share = fused_share(*kernel, heads, columns, loaded.places);
    if (share.passes > 0) found.push_back({kernel, loaded.function, share});
  }
  std::stable_sort(found.begin(), found.end());
  return found;
}

// Of the kernels for two directions side by side, those that take no longer than the best one for one direction after the other.
inline std::vector<FusedChoice> no_slower(std::vector<FusedChoice> together, const std::vector<FusedChoice>& apart) {
  const auto is_slow = [&](const FusedChoice& choice) { return !apart.empty() && choice.step_ns() > 2 * apart[0].step_ns(); };
  together.erase(std::remove_if(together.begin(), together.end(), is_slow), together.end());
  return together;
}

struct FusedHeader {
  int32_t steps, columns, heads, group_columns;
};

// Directions of a layer, side by side: at most as many as step.cuh has, alike in all but their tensors and their order.
class FusedRun : LoopParameter {
 public:
  FusedRun(const Tables& tables, const LoopInfo& info, const FusedChoice& choice, const int64_t* dims, bool training)
      : LoopParameter(tables, info, dims, training), choice_(choice), kernel_(*choice.kernel) {}

  // False where a tensor lies in a way that the kernel does not take; nothing was launched then.
  bool run(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    stream_ = current_stream(directions[0].tensors.device.index);
    if (kernel_.is_grid() && !make_exchange(directions)) return false;
    if (kernel_.is_stepwise()) {
      if (!Cublas::exists()) return false;
      make_handed(directions);
    }
    FusedHeader* const header = take<FusedHeader>(1);
    *header = {int32_t(call.steps), int32_t(call.columns), int32_t(call.heads), int32_t(choice_.share.group)};
    take_extents(call);
    take_constants(call);
    for (const LoopDirection& direction : directions)
      if (!fill(direction)) return false;
    if (kernel_.is_stepwise()) {
      run_steps(directions);
      return true;
    }
    // Each launch is a call of the next columns, of which the kernel knows no others.
    const bool is_packed = call.starts != nullptr;
    const int64_t most = choice_.share.at_once * choice_.share.group;
    for (int64_t first = 0; first < call.columns; first += most) {
      if (first > 0) move_on(most);
      header->columns = int32_t(std::min(most, call.columns - first));
      if (kernel_.is_grid() && (first == 0 || !is_packed)) clear_exchange();
      const int64_t groups = (header->columns + choice_.share.group - 1) / choice_.share.group;
      const int64_t blocks = kernel_.blocks * call.heads * groups;
      if (kernel_.is_grid())
        require_residency(directions[0].tensors.device.index, choice_.function, kernel_.name, blocks * int64_t(directions.size()),
                          kernel_.threads, kernel_.shared_bytes);
      const void* parameters[] = {data()};
      launch(stream_, unsigned(blocks), unsigned(directions.size()), parameters);
    }
    return true;
  }

 private:
  // The fewest steps for which a graph is worth its making, and how many it then has: it is launched about as many times.
  static constexpr int64_t FEWEST_FOR_A_GRAPH = 32;
  static int64_t steps_of_a_graph(int64_t steps) { return int64_t(std::sqrt(double(steps))); }

  // Launch and product by turns, in the order of the steps (stepwise.cuh). Of each the host needs 12 to 20 us, more than the GPU:
  // where no graph is captured anyhow, a graph of some is launched again and again, and what is left over by itself.
  void run_steps(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const Device device = directions[0].tensors.device;
    const unsigned count = unsigned(directions.size());
    const unsigned blocks = unsigned(ceil_divide(call.columns * kernel_.units, int64_t(kernel_.threads)));
    const auto hold = [&](int64_t bytes) {
      held_.push_back(empty({bytes}, aoti_torch_dtype_uint8(), device));
      return held_.back().data();
    };
    void* const before = hold(sizeof(int32_t));
    void* const workspace = hold(Cublas::WORKSPACE_BYTES);
    const auto set_before = [&](int64_t steps) {
      check_cuda(driver().cuMemsetD32Async(uint64_t(before), unsigned(steps), 1, stream_), "counting steps");
    };
    // The driver copies parameters before it returns.
    const auto launch_step = [&](CUstream stream, int64_t index) {
      const int32_t step = int32_t(index) - 1;
      const void* parameters[] = {data(), &before, &step};
      launch(stream, blocks, count, parameters);
    };
    Cublas cublas;
    cublas.use(stream_, workspace);
    const auto take_turn = [&](CUstream stream, int64_t index) {
      launch_step(stream, index);
      for (const StepProduct& product : products_) product.run(cublas);
    };
    int64_t done = 0;
    if (call.steps >= FEWEST_FOR_A_GRAPH && !is_captured(stream_)) {
      const int64_t length = steps_of_a_graph(call.steps);
      const LaunchGraph graph(device.index, [&](CUstream stream) {
        cublas.use(stream, workspace);
        for (int64_t i = 0; i < length; ++i) take_turn(stream, i);
      });
      cublas.use(stream_, workspace);
      for (; done + length <= call.steps; done += length) {
        set_before(done);
        graph.launch(stream_);
      }
    }
    set_before(0);
    for (; done < call.steps; ++done) take_turn(stream_, done);
    launch_step(stream_, call.steps);
  }

  void launch(CUstream stream, unsigned blocks, unsigned directions, const void** parameters) const {
    CUlaunchAttribute attribute;
    const CUlaunchConfig how = fused_config(kernel_, blocks, directions, stream, attribute);
    check_cuda(driver().cuLaunchKernelEx(&how, choice_.function, const_cast<void**>(parameters), nullptr), "launching " + kernel_.name);
  }

  // Whether kernels can move a tensor's rows in pieces of 16 bytes, from step to step by an offset of 32 bits.
  static bool has_pieces(const FusedPlace& place, int64_t) {
    return (reinterpret_cast<uintptr_t>(place.base) | uintptr_t(place.step) | uintptr_t(place.column)) % 16 == 0 &&
           std::abs(place.step) <= INT32_MAX;
  }

  // The m-th of LoopInfo's.
  const char* matrix(CallTensors& tensors, int64_t m) const {
    const MatrixInfo& info = tables_.matrices[info_.matrices[m]];
    const rnncc_tensor& weight = tensors.at(WEIGHTS, info.index);
    return static_cast<char*>(weight.data) + dim(info.row) * (dim(info.columns) / dim(info.blocks)) * dtype_bytes(weight.dtype);
  }

  // As FusedTensors has it.
  bool fill(const LoopDirection& direction) {
    CallTensors& tensors = direction.tensors;
    const void** matrices = take<const void*>(info_.sums * info_.operands);
    for (int m = 0; m < info_.sums * info_.operands; ++m) {
      matrices[m] = matrix(tensors, m);
      if (reinterpret_cast<uintptr_t>(matrices[m]) % 16 != 0) return false;
    }
    if (!fill_tensors(direction, has_pieces)) return false;
    *take<FusedPlace>(1) = exchange_;
    exchange_.base += exchange_bytes_;
    return true;
  }

  // What blocks of the grid send each other, as GridShape has it: the columns of a launch, whose memory the next one has once it
  // has ended; of packed tensors all rows, since only the GPU knows which are a column's. False where a step's part, of packed
  // tensors all of it, has no offsets of 32 bits.
  bool make_exchange(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const CallTensors& tensors = directions[0].tensors;
    const int64_t column = call.heads * info_.operands * round_up(kernel_.units, 32) * dtype_bytes(tensors.scalar());
    const int64_t step = column * std::min(choice_.share.at_once * choice_.share.group, call.columns);
    exchange_bytes_ = call.starts ? column * call.rows : step * call.steps;
    if ((call.starts ? exchange_bytes_ : step) > UINT32_MAX) return false;
    held_.push_back(empty({exchange_bytes_ * int64_t(directions.size())}, aoti_torch_dtype_uint8(), tensors.device));
    exchanges_ = static_cast<char*>(held_.back().data());
    exchange_ = {exchanges_, call.starts ? column : step, column};
    return true;
  }

  // What launches of single steps leave each other, as stepwise.cuh has it, and the products between them.
  void make_handed(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const rnncc_dtype scalar = directions[0].tensors.scalar();
    const Device device = directions[0].tensors.device;
    const bool transposed = tables_.products[0].transposed;
    const int64_t units = kernel_.units, elements = call.columns * units, gates = info_.sums * info_.operands;
    const int64_t carried = round_up((info_.edges + info_.kept) * elements * 4, 256);
    const int64_t operands = round_up(info_.operands * elements * dtype_bytes(scalar), 256);
    exchange_bytes_ = carried + operands + round_up(info_.sums * elements * 4, 256);
    held_.push_back(empty({exchange_bytes_ * int64_t(directions.size())}, aoti_torch_dtype_uint8(), device));
    exchanges_ = static_cast<char*>(held_.back().data());
    exchange_ = {exchanges_, carried, carried + operands};
    for (size_t d = 0; d < directions.size(); ++d) {
      char* const base = exchanges_ + d * exchange_bytes_;
      products_.push_back({reinterpret_cast<float*>(base + carried + operands), base + carried,
                           matrix(directions[d].tensors, transposed ? gates - 1 : 0), scalar, transposed, int(call.columns),
                           int(info_.sums * units), int(info_.operands * units)});
    }
  }

  // Once all directions were filled, for the next launch; for all of them where each has rows of its own.
  void clear_exchange() {
    const size_t bytes = size_t(exchange_.base - exchanges_);
    check_cuda(driver().cuMemsetD8Async(uint64_t(exchanges_), 0xff, bytes, stream_), "clearing the exchange");
  }

  const FusedChoice& choice_;
  const FusedKernel& kernel_;
  std::vector<StepProduct> products_;  // of all directions, stepwise
  CUstream stream_ = nullptr;
  char* exchanges_ = nullptr;  // of all directions
  FusedPlace exchange_ = {};  // of the next direction
  int64_t exchange_bytes_ = 0;  // of a direction
};

}  // namespace rnncc

// Adds the kernels of a folder to this package's, for the calls from now on: how many, or -1 where there is no index.
extern "C" inline __attribute__((used, visibility("default"))) int32_t rnncc_add_kernels(const char* folder) {
  return rnncc::fused_index().add(folder);
}
