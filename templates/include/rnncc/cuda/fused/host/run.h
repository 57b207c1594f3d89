// Runs a loop by a fused kernel, where the package has one for its sizes: finds the kernel, says where its tensors are,
// and launches it. after.h does what is left after the last step.
#pragma once

#include <cmath>

#include "../../cublas.h"
#include "../../graph.h"
#include "../../parameter.h"
#include "index.h"

namespace rnncc {

// The kernels that the package was built with, and the kernels that were added since.
inline FusedIndex& fused_index() {
  static FusedIndex index;
  static const int own = index.add(own_folder() + "/cuda");
  (void)own;
  return index;
}

// A kernel on a device. `places` is what fused_share takes, and 0 where the kernel cannot run.
struct FusedLoaded {
  CUfunction function = nullptr;
  int64_t places = 0;
};

inline CUlaunchConfig fused_config(const FusedKernel& kernel, unsigned ctas, unsigned directions, CUstream stream,
                                   CUlaunchAttribute (&attributes)[2]) {
  unsigned count = 0;
  const auto add = [&](int id, unsigned value) {
    attributes[count] = {};
    attributes[count].id = id;
    attributes[count].value[0] = value;
    attributes[count].value[1] = attributes[count].value[2] = 1;
    ++count;
  };
  if (kernel.scope == FusedScope::grid) add(CU_LAUNCH_COOPERATIVE, 1);
  if (kernel.cluster > 1) add(CU_LAUNCH_CLUSTER, unsigned(kernel.cluster));
  return {{ctas, directions, 1},
          {unsigned(kernel.threads), 1, 1},
          unsigned(kernel.shared_bytes),
          stream,
          attributes,
          count};
}

// A kernel is laid out for one GPU of an architecture. Another one may have fewer SMs, less shared memory or smaller
// clusters; it has no places where it cannot run the kernel. A CTA has an SM to itself, as it was laid out: two on one
// SM would each take up to twice as long, for smaller groups than one pass needs. It has no more places than were
// planned, since the times of the table are for those.
inline FusedLoaded load_fused(const FusedKernel& kernel, int32_t device) {
  const Gpu& on = gpu(device);
  const Architecture architecture(kernel.architecture);
  if (!architecture.runs_on(on.major, on.minor) || kernel.shared_bytes > on.shared_bytes) return {};
  const std::string path = code_file(kernel.folder + "/" + kernel.name, kernel.architecture);
  if (access(path.c_str(), R_OK) != 0) return {};
  const CUfunction function = get_kernel(load_module(path), kernel.name, on);
  if (kernel.scope == FusedScope::step) return {function, 1};
  int count = 0;
  if (kernel.cluster == 1) {
    check_cuda(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, kernel.threads,
                                                                    size_t(kernel.shared_bytes)),
               "counting CTAs of " + kernel.name);
    return {function, count > 0 ? std::min<int64_t>(kernel.concurrent_groups, on.sms / kernel.ctas) : 0};
  }
  CUlaunchAttribute attributes[2];
  CUlaunchConfig launch = fused_config(kernel, unsigned(kernel.ctas), 1, nullptr, attributes);
  // With so much shared memory an SM has one CTA. Not all SMs are within the clusters that then fit, but one cluster more
  // would share SMs with others.
  launch.shared_bytes = std::max(launch.shared_bytes, unsigned(on.shared_bytes / 2 + 1));
  // An error says that this GPU has no clusters of that size.
  if (driver().cuFuncSetAttribute(function, CU_FUNC_LARGE_CLUSTER, 1) != 0 ||
      driver().cuOccupancyMaxActiveClusters(&count, function, &launch) != 0)
    count = 0;
  const int64_t places = std::min(count, on.sms / kernel.cluster) * kernel.cluster / kernel.ctas;
  return {function, std::min<int64_t>(kernel.concurrent_groups, places)};
}

inline const FusedLoaded& loaded_fused(const FusedKernel& kernel, int32_t device) {
  static std::mutex mutex;
  static std::map<std::pair<const FusedKernel*, int32_t>, FusedLoaded> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({&kernel, device});
  return found != known.end() ? found->second : known[{&kernel, device}] = load_fused(kernel, device);
}

// A kernel that can run a call. `step_ns`: the expected time of a step.
struct FusedChoice {
  const FusedKernel* kernel;
  CUfunction function;
  FusedShare share;
  int64_t step_ns;
};

// The tables for a call on a device: those of the best architecture, and among these those for as many heads side by
// side, or for any other number where there is none.
inline std::vector<const FusedTable*> fused_tables(const std::string& program, const std::string& dtype,
                                                   int64_t head_dim, int64_t heads, int32_t device) {
  const Gpu& on = gpu(device);
  std::vector<const FusedTable*> found;
  std::pair<int, bool> best;
  for (const FusedTable* table : fused_index().find(program, dtype, head_dim)) {
    const Architecture architecture(table->architecture);
    if (!architecture.runs_on(on.major, on.minor)) continue;
    const std::pair<int, bool> rank = {architecture.rank(), table->heads == heads};
    if (rank > best) found.clear();
    best = std::max(best, rank);
    if (rank == best) found.push_back(table);
  }
  return found;
}

// The kernels that can run a call, in the order of the tables' rows; where a table is for another number of heads, the
// quickest first. There the kernels of larger batches count, too: a group has entries of one head, so that two heads of
// 4 entries are two groups, where a batch of 8 is one. `heads` counts the heads of one direction, and so many
// `directions` run side by side. `by_steps`: whether kernels whose launch is a step may run the call. They take one
// head, and no packed tensors, since the host does not know how many steps these have. `denser`: whether matrices may
// have more elements than kernels for mostly zeros are planned for. All kernels of the tables are loaded, so that
// another batch needs nothing new while a graph is captured.
inline std::vector<FusedChoice> fused_choices(const std::string& program, const std::string& dtype, int64_t head_dim,
                                              int64_t heads, int64_t directions, int64_t batch, bool by_steps,
                                              bool denser, int32_t device) {
  std::vector<FusedChoice> found;
  const int64_t of_all = heads * directions;
  for (const FusedTable* table : fused_tables(program, dtype, head_dim, of_all, device)) {
    for (const FusedKernel& kernel : table->kernels) loaded_fused(kernel, device);
    const bool is_planned = table->heads == of_all;
    const size_t before = found.size();
    const FusedRow* const first = &table->row(batch, of_all);
    const FusedRow* const end = is_planned ? first + 1 : table->rows.data() + table->rows.size();
    for (const FusedRow* row = first; row != end; ++row) {
      for (const FusedRow::Choice& choice : row->choices) {
        const FusedKernel& kernel = table->kernels[choice.kernel];
        if ((kernel.scope == FusedScope::step && !by_steps) || (kernel.for_zeros && denser)) continue;
        if (kernel.directions < directions) continue;
        const FusedLoaded& loaded = loaded_fused(kernel, device);
        const FusedShare share = fused_share(kernel, of_all, batch, loaded.places);
        if (share.passes > 0) found.push_back({&kernel, loaded.function, share, share.passes * choice.pass_ns});
      }
    }
    const auto is_quicker = [](const FusedChoice& a, const FusedChoice& b) { return a.step_ns < b.step_ns; };
    if (!is_planned) std::stable_sort(found.begin() + int64_t(before), found.end(), is_quicker);
  }
  return found;
}

// Whether two directions are expected to take longer side by side (`together`) than one after the other (`apart`).
inline bool are_quicker_apart(const std::vector<FusedChoice>& together, const std::vector<FusedChoice>& apart) {
  return together.empty() || (!apart.empty() && together[0].step_ns > 2 * apart[0].step_ns);
}

// The beginning of FusedCall in call.cuh. The head_dims of all widths follow.
struct FusedHeader {
  int32_t steps, batch, heads, group_batch;
};

// The directions of a layer, side by side: at most as many as step.cuh has. They differ in their tensors and their
// order alone.
class FusedRun : LoopParameter {
 public:
  FusedRun(const Tables& tables, const LoopInfo& info, const FusedChoice& choice, const int64_t* dims, bool training)
      : LoopParameter(tables, info, dims, training), choice_(choice), kernel_(*choice.kernel) {}

  // Returns false where a tensor lies in memory in a way that the kernel does not take. Then nothing was launched.
  bool run(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    stream_ = current_stream(directions[0].tensors.device.index);
    const bool is_grid = kernel_.scope == FusedScope::grid, by_steps = kernel_.scope == FusedScope::step;
    if (kernel_.relayed_head_dim > 0 && dim(info_.widths[info_.relayed_width]) != kernel_.relayed_head_dim * call.heads)
      return false;
    if (is_grid && !make_exchange(directions)) return false;
    if (by_steps) {
      if (!Cublas::exists()) return false;
      make_handed(directions);
    }
    FusedHeader* const header = take<FusedHeader>(1);
    *header = {int32_t(call.steps), int32_t(call.batch), int32_t(call.heads), int32_t(choice_.share.group)};
    int32_t* const head_dims = take<int32_t>(int(round_up(info_.widths.count, 2)));
    for (int w = 0; w < info_.widths.count; ++w) head_dims[w] = int32_t(dim(info_.widths[w]) / call.heads);
    take_extents(call);
    take_constants(call);
    for (const LoopDirection& direction : directions)
      if (!fill(direction)) return false;
    if (by_steps) {
      run_steps(directions);
      return true;
    }
    // A launch is a call with the next entries of the batch. The kernel knows no others.
    const int64_t most = choice_.share.at_once * choice_.share.group;
    for (int64_t first = 0; first < call.batch; first += most) {
      if (first > 0) move_on(most);
      header->batch = int32_t(std::min(most, call.batch - first));
      if (is_grid) clear_exchange();
      const int64_t groups = (header->batch + choice_.share.group - 1) / choice_.share.group;
      const int64_t ctas = kernel_.ctas * call.heads * groups;
      if (is_grid)
        require_residency(directions[0].tensors.device.index, choice_.function, kernel_.name,
                          ctas * int64_t(directions.size()), kernel_.threads, kernel_.shared_bytes);
      const void* parameters[] = {data()};
      launch(stream_, unsigned(ctas), unsigned(directions.size()), parameters);
    }
    return true;
  }

 private:
  // The fewest steps for which a graph is worth its making. A graph has the square root of the steps, so that it is
  // launched about as many times as it has steps.
  static constexpr int64_t FEWEST_FOR_A_GRAPH = 32;
  static int64_t steps_of_a_graph(int64_t steps) { return int64_t(std::sqrt(double(steps))); }

  // A launch and a product by turns, in the order of the steps (stepwise.cuh). The host needs 12 to 20 us for each of
  // them, more than the GPU. So a graph of some steps is launched again and again, and the steps that are left are
  // launched one by one. Where a graph is captured already, all steps are launched one by one.
  void run_steps(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const Device device = directions[0].tensors.device;
    const unsigned count = unsigned(directions.size());
    const unsigned ctas = unsigned(ceil_divide(call.batch * kernel_.head_dim, int64_t(kernel_.threads)));
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
      launch(stream, ctas, count, parameters);
    };
    Cublas cublas;
    cublas.use(stream_, workspace);
    const auto take_turn = [&](CUstream stream, int64_t index) {
      launch_step(stream, index);
      for (const FloatProduct& product : products_) product.run(cublas);
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

  void launch(CUstream stream, unsigned ctas, unsigned directions, const void** parameters) const {
    CUlaunchAttribute attributes[2];
    const CUlaunchConfig how = fused_config(kernel_, ctas, directions, stream, attributes);
    check_cuda(driver().cuLaunchKernelEx(&how, choice_.function, const_cast<void**>(parameters), nullptr),
               "launching " + kernel_.name);
  }

  // Whether kernels can move the rows of a tensor in pieces of 16 bytes, and go from step to step by an offset of 32
  // bits.
  static bool has_pieces(const FusedPlace& place, int64_t) {
    return (reinterpret_cast<uintptr_t>(place.base) | uintptr_t(place.step) | uintptr_t(place.entry)) % 16 == 0 &&
           std::abs(place.step) <= INT32_MAX;
  }

  // Fills in the record of a direction, as FusedTensors has it.
  bool fill(const LoopDirection& direction) {
    CallTensors& tensors = direction.tensors;
    const void** matrices = take<const void*>(info_.matrices.count);
    for (int m = 0; m < info_.matrices.count; ++m) {
      matrices[m] = info_.matrices[m].matrix < 0 ? nullptr : matrix(tensors, info_.matrices[m]);
      if (reinterpret_cast<uintptr_t>(matrices[m]) % 16 != 0) return false;
    }
    if (!fill_tensors(direction, has_pieces)) return false;
    *take<FusedPlace>(1) = exchange_;
    exchange_.base += exchange_bytes_;
    return true;
  }

  // The memory through which the CTAs of a grid send each other operands, as GridLayout and WideShape have it. It holds the
  // groups of one launch, and the next launch takes it over. It holds `exchange_steps` steps by turns. Returns false
  // where an offset of 32 bits is too small for a step.
  bool make_exchange(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const CallTensors& tensors = directions[0].tensors;
    const int64_t narrow = kernel_.relayed_head_dim > 0 ? info_.relayed : 0, wide = info_.operands - narrow;
    const int64_t terms = wide * round_up(kernel_.head_dim, 32) + narrow * round_up(kernel_.relayed_head_dim, 32);
    const int64_t operands = terms * dtype_bytes(tensors.scalar()),
                  reductions = info_.reductions * round_up(kernel_.head_dim / 8, 4) * 4;
    const int64_t step = choice_.share.at_once * kernel_.group_batch * call.heads * (operands + reductions);
    if (step > UINT32_MAX) return false;
    exchange_bytes_ = step * std::min<int64_t>(kernel_.exchange_steps, call.steps);
    held_.push_back(empty({exchange_bytes_ * int64_t(directions.size())}, aoti_torch_dtype_uint8(), tensors.device));
    exchanges_ = static_cast<char*>(held_.back().data());
    exchange_ = {exchanges_, step, 0};
    return true;
  }

  // The memory in which launches of single steps leave each other values, as stepwise.cuh has it, and the products
  // between them.
  void make_handed(const std::vector<LoopDirection>& directions) {
    const Call& call = directions[0].call;
    const rnncc_dtype scalar = directions[0].tensors.scalar();
    const Device device = directions[0].tensors.device;
    const bool transposed = tables_.products[0].transposed;
    const int64_t head_dim = kernel_.head_dim, elements = call.batch * head_dim, gates = info_.sums * info_.operands;
    const int64_t carried = round_up((info_.edges.count + info_.handed) * elements * 4, 256);
    const int64_t operands = round_up(info_.operands * elements * dtype_bytes(scalar), 256);
    exchange_bytes_ = carried + operands + round_up(info_.sums * elements * 4, 256);
    held_.push_back(empty({exchange_bytes_ * int64_t(directions.size())}, aoti_torch_dtype_uint8(), device));
    exchanges_ = static_cast<char*>(held_.back().data());
    exchange_ = {exchanges_, carried, carried + operands};
    const int64_t first = transposed ? gates - 1 : 0;
    for (size_t d = 0; d < directions.size(); ++d) {
      char* const base = exchanges_ + d * exchange_bytes_;
      const int width = int(info_.sums * head_dim), terms = int(info_.operands * head_dim);
      const void* const weight = matrix(directions[d].tensors, info_.matrices[first]);
      products_.push_back({int(call.batch),
                           width,
                           terms,
                           {base + carried, terms, false},
                           {weight, transposed ? width : terms, !transposed},
                           reinterpret_cast<float*>(base + carried + operands),
                           width,
                           scalar});
    }
  }

  // Clears the exchange of all directions for the next launch.
  void clear_exchange() {
    const size_t bytes = size_t(exchange_.base - exchanges_);
    check_cuda(driver().cuMemsetD8Async(uint64_t(exchanges_), 0xff, bytes, stream_), "clearing the exchange");
  }

  const FusedChoice& choice_;
  const FusedKernel& kernel_;
  std::vector<FloatProduct> products_;  // one per direction, where a launch is a step
  CUstream stream_ = nullptr;
  char* exchanges_ = nullptr;   // the exchanges of all directions, or the values that launches leave each other
  FusedPlace exchange_ = {};    // the next direction's part of them
  int64_t exchange_bytes_ = 0;  // bytes per direction
};

}  // namespace rnncc

// Adds the kernels of a folder to this package's kernels, for the calls from now on. Returns how many, or -1 where
// there is no index that can be read.
extern "C" inline __attribute__((used, visibility("default"))) int32_t rnncc_add_kernels(const char* folder) {
  return rnncc::fused_index().add(folder);
}
