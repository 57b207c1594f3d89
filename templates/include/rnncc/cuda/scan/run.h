// Runs a loop without products by its scan, by its walk or by Newton's iterations. It chooses how many CTAs share the
// steps of the same channels, says where the kernel's tensors are, and launches it. after.h does what is left after the
// last step.
#pragma once

#include "../fused/host/run.h"
#include "share.h"

namespace rnncc {

inline CUlaunchConfig scan_config(const ScanForm& form, int64_t clusters, int64_t ctas, unsigned directions,
                                  CUstream stream, CUlaunchAttribute& attribute) {
  attribute = {};
  attribute.id = CU_LAUNCH_CLUSTER;
  attribute.value[0] = unsigned(ctas);
  attribute.value[1] = attribute.value[2] = 1;
  return {{unsigned(clusters * ctas), directions, 1},
          {unsigned(form.threads), 1, 1},
          unsigned(scan_shared_bytes(form, ctas)),
          stream,
          &attribute,
          ctas > 1 ? 1u : 0u};
}

// A kernel on a device. `most_ctas`: how many CTAs a cluster can have there.
struct ScanLoaded {
  CUfunction function = nullptr;
  int64_t most_ctas = 1;
};

inline ScanLoaded load_scan(const ScanForm& form, const std::string& file, const std::string& name, int32_t device) {
  ScanLoaded loaded = {find_kernel(device, file, name), 1};
  if (form.steps == 0 || !architecture_of(kernel_path(file, device, gpu(device))).has_clusters()) return loaded;
  // An error says that this GPU has no clusters of that size.
  int64_t most = driver().cuFuncSetAttribute(loaded.function, CU_FUNC_LARGE_CLUSTER, 1) == 0 ? MOST_SCAN_CTAS : 8;
  for (; most > 1; most /= 2) {
    CUlaunchAttribute attribute;
    const CUlaunchConfig launch = scan_config(form, 1, most, 1, nullptr, attribute);
    int count = 0;
    if (scan_shared_bytes(form, most) <= gpu(device).shared_bytes &&
        driver().cuOccupancyMaxActiveClusters(&count, loaded.function, &launch) == 0 && count > 0)
      break;
  }
  loaded.most_ctas = most;
  return loaded;
}

inline const ScanLoaded& loaded_scan(const ScanForm& form, const std::string& file, const std::string& name,
                                     int32_t device) {
  static std::mutex mutex;
  static std::map<std::tuple<int32_t, std::string, std::string>, ScanLoaded> known;
  const auto key = std::make_tuple(device, file, name);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  const ScanLoaded loaded = load_scan(form, file, name, device);  // may ask for the kernel: no lock is held
  const std::lock_guard<std::mutex> lock(mutex);
  return known[key] = loaded;
}

struct ScanHeader {
  int32_t steps, batch, units, unused;
};

// The directions of a layer, side by side: at most as many as lanes.cuh has. They differ in their tensors and their
// order alone.
class ScanRun : LoopParameter {
 public:
  // `aligned`: the form takes only tensors whose rows begin at multiples of 16 bytes.
  ScanRun(const Tables& tables, const LoopInfo& info, const ScanForm& form, bool aligned, const int64_t* dims)
      : LoopParameter(tables, info, dims, true), form_(form), aligned_(aligned) {}

  // Runs by a kernel. Returns false where a tensor lies in memory in a way that the kernel does not take, or where the
  // kernel would be of no use. Then nothing was launched.
  bool run(const std::vector<LoopDirection>& directions, const std::string& name) {
    const Call& call = directions[0].call;
    const CallTensors& tensors = directions[0].tensors;
    const int32_t device = tensors.device.index;
    const int64_t units = dim(info_.units), bytes = dtype_bytes(tensors.scalar());
    if (aligned_ && units * bytes % 16 != 0) return false;
    const int64_t groups = call.batch * (units / form_.vector), clusters = ceil_divide(groups, int64_t(form_.groups));
    // A kernel counts steps in 32 bits, and its last tile may reach beyond them. It counts channels in 32 bits, too.
    if (call.steps > INT32_MAX / 2 || call.batch * units > INT32_MAX)
      fail(name + " takes at most 1073741823 steps, and 2147483647 units of all batch entries together");
    *take<ScanHeader>(1) = {int32_t(call.steps), int32_t(call.batch), int32_t(units), 0};
    take_extents(call);
    take_constants(call);
    const ScanLoaded& loaded = loaded_scan(form_, name + "_" + dtype_name(tensors.scalar()), name, device);
    const int64_t all = clusters * int64_t(directions.size()), sms = gpu(device).sms;
    const int64_t ctas = scan_ctas(form_, all, call.steps, loaded.most_ctas, sms);
    if (!is_of_use(form_, all, ctas, sms)) return false;
    for (const LoopDirection& direction : directions) {
      if (!fill_tensors(direction, aligned_ ? begins_at_pieces : takes_all)) return false;
      fill_totals(direction, ctas * call.batch);
    }
    CUlaunchAttribute attribute;
    const CUlaunchConfig how =
        scan_config(form_, clusters, ctas, unsigned(directions.size()), current_stream(device), attribute);
    void* parameters[] = {data()};
    check_cuda(driver().cuLaunchKernelEx(&how, loaded.function, parameters, nullptr), "launching " + name);
    return true;
  }

 private:
  // Whether all rows of a tensor begin at multiples of 16 bytes.
  static bool begins_at_pieces(const FusedPlace& place, int64_t) {
    return (reinterpret_cast<uintptr_t>(place.base) | uintptr_t(place.step) | uintptr_t(place.entry)) % 16 == 0;
  }
  static bool takes_all(const FusedPlace&, int64_t) { return true; }

  // Fills in the end of ScanTensors: the tensors of totals.
  void fill_totals(const LoopDirection& direction, int64_t rows) {
    float** const totals = take<float*>(info_.totals.count);
    for (int i = 0; i < info_.totals.count; ++i) {
      const int slot = info_.totals[i];
      if (!After::reads(tables_, direction.call, slot)) continue;
      Tensor made = empty({rows, dim(tables_.slots[slot].width)}, aoti_torch_dtype_float32(), direction.tensors.device);
      totals[i] = static_cast<float*>(made.data());
      direction.totals.insert_or_assign(slot, std::move(made));
    }
  }

  const ScanForm& form_;
  const bool aligned_;
};

}  // namespace rnncc
