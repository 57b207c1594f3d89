// The fused kernels that there are, and how one of them shares out a call's batch columns: plain C++, without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace rnncc {

// A line of a folder's `fused.txt`:
//   program dtype units heads family blocks threads shared_bytes columns pass_ns launch_ns name
// `units` of a head; `heads` that it is meant for; `blocks`: thread blocks of a cluster, or for one head and group of columns;
// `columns`: most of a group, or stepwise the fewest of a call, from where on it is the quickest; `pass_ns`: what a step of all
// groups that run side by side is expected to take; `launch_ns`: of the grid, that of a launch in which every group has as many
// columns as it can, 0 where more columns do not take several launches. `name` is the kernel's, and with an architecture its file's.
struct FusedKernel {
  std::string folder, program, dtype, family, name;
  int64_t units = 0, heads = 0;
  int blocks = 0, threads = 0, shared_bytes = 0, columns = 0;
  int64_t pass_ns = 0, launch_ns = 0;
  bool is_grid() const { return family == "grid"; }
  bool is_stepwise() const { return family == "stepwise"; }
};

// Kernels stay where they are: a call may use one while others are added.
class FusedIndex {
 public:
  // Adds the kernels of a folder: how many, or -1 where there is no index, or one that cannot be read.
  int add(const std::string& folder) {
    // C's functions: the library holds a C++ library of its own, whose streams would need its locales. Whole numbers only:
    // how a fraction is written depends on the locale of the process.
    std::FILE* file = std::fopen((folder + "/fused.txt").c_str(), "r");
    if (!file) return -1;
    std::vector<FusedKernel> added;
    char line[1024];
    bool readable = true;
    while (readable && std::fgets(line, sizeof line, file)) {
      FusedKernel k;
      readable = read(line, k);
      k.folder = folder;
      added.push_back(k);
    }
    readable = readable && !std::ferror(file);
    std::fclose(file);
    if (!readable) return -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    kernels_.insert(kernels_.end(), added.begin(), added.end());
    return int(added.size());
  }
  std::vector<const FusedKernel*> find(const std::string& program, const std::string& dtype, int64_t units) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const FusedKernel*> found;
    for (const FusedKernel& k : kernels_)
      if (k.program == program && k.dtype == dtype && k.units == units) found.push_back(&k);
    return found;
  }

 private:
  static bool read(const char* line, FusedKernel& k) {
    char program[256], dtype[16], family[16], name[256];
    long long units, heads, pass_ns, launch_ns;
    int end = 0;
    const int found = std::sscanf(line, "%255s %15s %lld %lld %15s %d %d %d %d %lld %lld %255s%n", program, dtype, &units, &heads, family,
                                  &k.blocks, &k.threads, &k.shared_bytes, &k.columns, &pass_ns, &launch_ns, name, &end);
    if (found != 12 || line[end] != '\n') return false;
    k.program = program;
    k.dtype = dtype;
    k.family = family;
    k.name = name;
    k.units = units;
    k.heads = heads;
    k.pass_ns = pass_ns;
    k.launch_ns = launch_ns;
    return units > 0 && heads > 0 && k.blocks > 0 && k.threads > 0 && k.shared_bytes >= 0 && k.columns > 0 && pass_ns > 0 && launch_ns >= 0;
  }

  std::mutex mutex_;
  std::deque<FusedKernel> kernels_;
};

// A call's columns, `groups` times (for the last one at most) `group`; `at_once`: how many groups a launch has, the last one at
// most. No passes: the kernel cannot run the call.
struct FusedShare {
  int64_t group = 0, groups = 0, at_once = 0, passes = 0;
  int64_t launches() const { return at_once > 0 ? (groups + at_once - 1) / at_once : 0; }
};

// `places`: how many groups of a head run side by side, all heads together. As many groups as there is room for; wide enough
// that one pass is enough, if that can be. Blocks of a grid wait for each other: all of a launch must run at once, and where a
// kernel may, several launches follow each other, of groups no wider than they need.
inline FusedShare fused_share(const FusedKernel& kernel, int64_t heads, int64_t columns, int64_t places) {
  if (places < 1 || (kernel.is_grid() && heads > places)) return {};
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (kernel.is_stepwise()) return columns < kernel.columns ? FusedShare{} : FusedShare{columns, 1, 1, 1};
  const int64_t seats = std::max<int64_t>(1, places / heads);
  const int64_t launches = kernel.is_grid() ? std::max<int64_t>(1, ceil(columns, seats * kernel.columns)) : 1;
  if (launches > 1 && kernel.launch_ns == 0) return {};
  FusedShare share;
  share.group = std::min<int64_t>(kernel.columns, std::max<int64_t>(1, ceil(columns, seats * launches)));
  share.groups = ceil(columns, share.group);
  share.at_once = kernel.is_grid() ? std::min(seats, share.groups) : share.groups;
  share.passes = kernel.is_grid() ? ceil(share.groups, seats) : ceil(heads * share.groups, places);
  return share;
}

// What a step of a call is expected to take.
inline int64_t fused_step_ns(const FusedKernel& kernel, const FusedShare& share) {
  return share.passes * (share.launches() > 1 ? kernel.launch_ns : kernel.pass_ns);
}

}  // namespace rnncc
