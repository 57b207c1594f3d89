// Runs a loop, forward or backward, on a GPU: it chooses a kernel and launches it, and then the products over all
// steps. Nothing here waits for the GPU.
#pragma once

#include "by_head/run.h"
#include "fused/host/first_use.h"
#include "loops.h"
#include "scan/run.h"
#include "single.h"

namespace rnncc {

// Runs the directions of a layer. They run in one launch, where a kernel can do that and is not expected to take
// longer, else one after the other. A loop in which no unit waits for another runs by its scans or walks. Any other loop
// runs by a fused kernel, or by the alternating kernel where no fused kernel takes it. A single step has a kernel of its
// own, where it has few parts.
class DeviceRuns {
 public:
  DeviceRuns(const LoopOnDevice& loop, const std::vector<Call>& calls, int32_t device)
      : tables_(loop.tables), info_(loop.info), loop_(loop), name_(loop.name), calls_(calls), device_(device) {
    for (const Call& call : calls_) runs_.emplace_back(tables_, call, device, loop.scans != nullptr);
  }

  void run() {
    const bool by_head = is_by_head();
    const bool is_single =
        !loop_.scans && !by_head && loop_.has_single && SingleRun::takes(tables_, first(), runs_[0].dims());
    if (first().products && !is_single) make_given();
    if (loop_.scans) {
      if (is_training_forward()) announce(backward_file(likely_scan_form()), device_, gpu(device_));
      return run_scans();
    }
    if (by_head) return run_by_head();
    if (is_single) {
      for (size_t i = 0; i < runs_.size(); ++i) SingleRun(tables_, calls_[i], runs_[i]).run(name_);
      return;
    }
    for (DeviceRun& run : runs_)
      if (can_be_fused() && has_whole_blocks(run))
        FirstUse::of_package().before(size_of(run), first().steps, [&] { return !choices(run, 1).empty(); });
    // After the forward's own kernels, which this call waits for.
    if (is_training_forward()) announce_products();
    if (are_two_alike()) {
      const std::vector<FusedChoice> together = choices(runs_[0], 2);
      if (!are_quicker_apart(together, choices(runs_[0], 1)) && run_fused(together, {&runs_[0], &runs_[1]})) return;
    }
    std::vector<DeviceRun*> others;
    for (DeviceRun& run : runs_) {
      const std::vector<FusedChoice> found = choices(run, 1);
      if (run_fused(found, {&run})) continue;
      if (!found.empty()) FirstUse::of_package().left_out(size_of(run), first().steps);
      others.push_back(&run);
    }
    run_alternating(others);
  }

 private:
  const Call& first() const { return calls_[0]; }
  bool is_forward() const { return first().table[SEQUENCES]; }

  bool is_training_forward() const { return is_forward() && is_training(); }

  // Tells which file of kernels the backward's products over all steps will need.
  void announce_products() const {
    if (first().heads > 1 && runs_[0].scalar() != RNNCC_FLOAT32)
      announce(std::string("_heads_") + dtype_name(runs_[0].scalar()), device_, gpu(device_));
  }
  std::string backward_file(const std::string& form = "") const {
    return name_.substr(0, name_.rfind('_')) + "_backward" + form + "_" + dtype_name(runs_[0].scalar());
  }
  // Makes the products that a forward needs first.
  void make_given() {
    if (!is_forward()) fail("products after a loop belong to calls of one step");
    StepProducts products = *static_cast<const StepProducts*>(first().products);
    make_products(products, runs_[0].scalar(), runs_[0].tensors().device);
  }

  bool are_two_alike() const { return runs_.size() == 2 && runs_[0].scalar() == runs_[1].scalar(); }

  // The place in a ScanForms' members: 0 for elements of 32 bits, 1 for 16.
  int scan_size() const { return runs_[0].scalar() == RNNCC_FLOAT32 ? 0 : 1; }
  bool is_tall_scan() const {
    const int64_t channels = int64_t(are_two_alike() ? 2 : 1) * first().batch * runs_[0].dims()[info_.units];
    return is_tall(loop_.scans->vectorised[scan_size()], channels, gpu(device_).sms);
  }

  // The form of the kernel that runs the backward's scan in most cases: that of the forward's.
  std::string likely_scan_form() const {
    const int64_t bytes = dtype_bytes(runs_[0].scalar());
    if (runs_[0].dims()[info_.units] * bytes % 16 != 0) return "_narrow";
    return is_tall_scan() ? "_tall" : "_vectorised";
  }

  void run_scans() {
    if (are_two_alike()) return run_scan({&runs_[0], &runs_[1]});
    for (DeviceRun& run : runs_) run_scan({&run});
  }

  void run_scan(const std::vector<DeviceRun*>& runs) const {
    std::vector<LoopDirection> directions;
    for (DeviceRun* run : runs) directions.push_back(run->direction());
    const int size = scan_size();
    const bool tall = is_tall_scan();
    const ScanForm& iterating = loop_.scans->newton[size];
    ScanRun newton(tables_, info_, iterating, true, runs[0]->dims());
    ScanRun pieces(tables_, info_, (tall ? loop_.scans->tall : loop_.scans->vectorised)[size], true, runs[0]->dims());
    ScanRun any(tables_, info_, loop_.scans->narrow[size], false, runs[0]->dims());
    if (!(iterating.least_ctas && newton.run(directions, name_ + "_newton")) &&
        !pieces.run(directions, name_ + (tall ? "_tall" : "_vectorised")))
      any.run(directions, name_ + "_narrow");
    for (DeviceRun* run : runs) run->finish();
  }

  // Whether CTAs have a head each. The launches of a single step add biases, which no other kernel does.
  bool is_by_head() {
    if (!loop_.by_head || first().products) return false;
    for (size_t i = 0; i < runs_.size(); ++i)
      if (!HeadsRun(loop_, calls_[i], runs_[i], device_).fits()) return false;
    return true;
  }

  void run_by_head() {
    for (size_t i = 0; i < runs_.size(); ++i) {
      HeadsRun run(loop_, calls_[i], runs_[i], device_);
      if (is_training_forward()) announce(backward_file(run.suffix()), device_, gpu(device_));
      run.run(name_);
    }
  }

  void run_alternating(const std::vector<DeviceRun*>& runs) const {
    if (runs.empty()) return;
    if (is_training_forward()) announce(backward_file(), device_, gpu(device_));
    ArgumentBuffer arguments(tables_);
    if (runs.size() == 2 && are_two_alike() && arguments.directions.size() == 2) {
      const Schedule half = runs[0]->schedule(2);
      if (2 * half.ctas <= gpu(device_).sms && is_as_quick(half, runs[0]->schedule(1))) {
        launch(runs, half, arguments);
        return;
      }
    }
    for (DeviceRun* run : runs) launch({run}, run->schedule(1), arguments);
  }

  // Launches the alternating kernel for directions side by side. `schedule` divides the work of each.
  void launch(const std::vector<DeviceRun*>& runs, const Schedule& schedule, ArgumentBuffer& arguments) const {
    const int available = gpu(device_).shared_bytes;
    if (schedule.shared_bytes > available)
      fail("the loop needs " + std::to_string(schedule.shared_bytes) + " bytes of shared memory per CTA, the GPU has " +
           std::to_string(available));
    const CUfunction kernel = find_kernel(device_, name_ + "_" + dtype_name(runs[0]->scalar()), name_);
    runs[0]->fill_common(schedule, arguments);
    for (size_t i = 0; i < runs.size(); ++i)
      runs[i]->fill(schedule, arguments.header->image_step, arguments.directions[i]);
    require_residency(device_, kernel, name_, int64_t(schedule.ctas) * int64_t(runs.size()), THREADS,
                      schedule.shared_bytes);
    void* parameters[] = {arguments.data()};
    check_cuda(
        driver().cuLaunchCooperativeKernel(kernel, unsigned(schedule.ctas), unsigned(runs.size()), 1, THREADS, 1, 1,
                                           unsigned(schedule.shared_bytes), current_stream(device_), parameters),
        "launching " + name_);
    for (DeviceRun* run : runs) run->finish();
  }

  // Whether there may be fused kernels for the loop.
  bool can_be_fused() const { return info_.widths.count && first().steps <= INT32_MAX; }
  // The head_dim that a fused kernel is made for: the widest of a step's values. fused_head_dims in
  // rnncc/runtime/spec.py has the same rule.
  int64_t head_dim(const DeviceRun& run) const {
    int64_t widest = 0;
    for (const int16_t width : info_.widths) widest = std::max(widest, run.dims()[width]);
    return widest / first().heads;
  }
  // Whether each value of a step has a whole number of blocks of units per head.
  bool has_whole_blocks(const DeviceRun& run) const {
    const int64_t block = FUSED_BLOCK * first().heads;
    return std::all_of(info_.widths.begin(), info_.widths.end(),
                       [&](int16_t width) { return run.dims()[width] % block == 0; });
  }

  // The program and the size for which fused kernels are asked for.
  FusedSize size_of(const DeviceRun& run) const {
    return {program(), dtype_name(run.scalar()), head_dim(run), first().heads, are_two_alike() ? 2 : 1, device_};
  }

  // The name of the program that fused kernels are for: a forward that saves nothing has one of its own.
  std::string program() const { return is_training() ? name_ : name_.substr(0, name_.rfind('_')) + "_inference"; }

  // The fused kernels for that many directions like `run` side by side.
  std::vector<FusedChoice> choices(const DeviceRun& run, int64_t directions) const {
    if (!can_be_fused() || !has_whole_blocks(run)) return {};
    const bool by_steps = first().heads == 1 && !first().starts, denser = run.dims()[info_.denser_dim] != 0;
    return fused_choices(program(), dtype_name(run.scalar()), head_dim(run), first().heads, directions, first().batch,
                         by_steps, denser, device_);
  }

  // Runs by the first kernel that takes the tensors as they lie. False where none does.
  bool run_fused(const std::vector<FusedChoice>& choices, const std::vector<DeviceRun*>& runs) {
    std::vector<LoopDirection> directions;
    for (DeviceRun* run : runs) directions.push_back(run->direction());
    for (const FusedChoice& choice : choices) {
      FusedRun fused(tables_, info_, choice, runs[0]->dims(), is_training());  // holds the records
      if (!fused.run(directions)) continue;
      for (DeviceRun* run : runs) {
        run->sum_late(info_);
        run->finish();
      }
      return true;
    }
    return false;
  }

  // Whether this is a backward, or a forward that saves something for one.
  bool is_training() const {
    if (!is_forward()) return true;
    for (int d = 0; d < tables_.destination_count; ++d) {
      const Destination& to = tables_.destinations[d];
      if (is_saved(to.table) && first().table[to.table][to.index].data) return true;
    }
    return false;
  }

  const Tables& tables_;
  const LoopInfo& info_;
  const LoopOnDevice& loop_;
  const std::string name_;
  const std::vector<Call>& calls_;
  const int32_t device_;
  std::deque<DeviceRun> runs_;
};

// Runs the calls of one layer, a direction each.
template <class C>
void run_calls(const LoopOnDevice& loop, const C* given, int32_t count, int32_t device, Call (*call_of)(const C&)) {
  const OnDevice current(device);
  std::vector<Call> calls;
  for (int32_t i = 0; i < count; ++i) calls.push_back(call_of(given[i]));
  DeviceRuns(loop, calls, device).run();
}

}  // namespace rnncc
