// The index of the fused kernels that there are, and how a kernel divides the batch of a call. Plain C++: it needs no
// GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "../architecture.h"

namespace rnncc {

// The head_dim of a value in a fused kernel is a multiple of this.
constexpr int64_t FUSED_BLOCK = 8;

// The threads of a kernel that exchange values within a step. It decides how the kernel is launched, and which batches
// a launch takes. rnncc/ir/family.py has the same names, and says what they mean.
enum class FusedScope { cluster, grid, step };
constexpr const char* FUSED_SCOPES[] = {"cluster", "grid", "step"};

// Returns false where there is no scope of that name.
inline bool find_scope(const char* name, FusedScope& scope) {
  const auto found = std::find(std::begin(FUSED_SCOPES), std::end(FUSED_SCOPES), std::string(name));
  scope = FusedScope(found - std::begin(FUSED_SCOPES));
  return found != std::end(FUSED_SCOPES);
}

// A line of a folder's `fused.txt`:
//   program dtype head_dim heads family scope ctas cluster threads shared_bytes group_batch multiple slots narrow
//   smallest_batch smallest_denser most_launches for_zeros pass_ns launch_ns architecture name
//
// heads           the number of heads that the kernel is laid out for
// family          the family's name, for messages
// ctas            the CTAs that hold one copy of a head's matrix: those of a cluster, or some of a grid
// cluster         the CTAs of a cluster, with which the kernel is launched: all of them, or a part of those of a grid
// threads         threads per CTA
// shared_bytes    shared memory per CTA
// group_batch     the largest batch of a group; 0: the whole batch is one group
// multiple        each group but the last has a multiple of so many batch entries
// slots           for how many steps the exchange of a grid has room. It then has room for groups of group_batch entries. 0:
//                 it has room for all steps, and for the call's groups
// narrow          the head_dim of relayed sums, for which the kernel is made (call.cuh); 0: it takes any
// smallest_batch  the smallest batch that the kernel runs
// smallest_denser the smallest batch where masks are denser than planned: there kernels for zeros do not run
// most_launches   how many launches a batch may take, one after the other; 0: any number
// for_zeros       1: the kernel is for matrices of which most elements are zero
// pass_ns         the expected time of a step of all groups that run side by side
// launch_ns       where a batch may take several launches, the expected time of a step of one with full groups
// architecture    what it is compiled for, and planned for a GPU of
// name            the kernel's name, with which the name of its file begins
struct FusedKernel {
  std::string folder, program, dtype, family, architecture, name;
  FusedScope scope = FusedScope::cluster;
  int64_t head_dim = 0, heads = 0;
  int ctas = 0, cluster = 1, threads = 0, shared_bytes = 0, group_batch = 0, multiple = 1, slots = 0, narrow = 0,
      smallest_batch = 1, smallest_denser = 1, most_launches = 1, for_zeros = 0;
  int64_t pass_ns = 0, launch_ns = 0;
};

// Kernels stay where they are in memory: a call may use one while others are added.
class FusedIndex {
 public:
  // Adds the kernels of a folder. Returns how many, or -1 where there is no index, or one that cannot be read.
  int add(const std::string& folder) {
    // C's functions: the library holds a C++ library of its own, whose streams would need its locales. Whole numbers
    // only: the text of a fraction depends on the locale of the process.
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
  std::vector<const FusedKernel*> find(const std::string& program, const std::string& dtype, int64_t head_dim) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const FusedKernel*> found;
    for (const FusedKernel& k : kernels_)
      if (k.program == program && k.dtype == dtype && k.head_dim == head_dim) found.push_back(&k);
    return found;
  }

 private:
  static bool read(const char* line, FusedKernel& k) {
    char program[256], dtype[16], family[16], scope[16], architecture[16], name[256];
    long long head_dim, heads, pass_ns, launch_ns;
    int end = 0;
    const int found =
        std::sscanf(line, "%255s %15s %lld %lld %15s %15s %d %d %d %d %d %d %d %d %d %d %d %d %lld %lld %15s %255s%n",
                    program, dtype, &head_dim, &heads, family, scope, &k.ctas, &k.cluster, &k.threads, &k.shared_bytes,
                    &k.group_batch, &k.multiple, &k.slots, &k.narrow, &k.smallest_batch, &k.smallest_denser,
                    &k.most_launches, &k.for_zeros, &pass_ns, &launch_ns, architecture, name, &end);
    if (found != 22 || line[end] != '\n' || !find_scope(scope, k.scope)) return false;
    k.program = program;
    k.dtype = dtype;
    k.family = family;
    k.architecture = architecture;
    k.name = name;
    k.head_dim = head_dim;
    k.heads = heads;
    k.pass_ns = pass_ns;
    k.launch_ns = launch_ns;
    return head_dim > 0 && heads > 0 && k.cluster > 0 && k.ctas > 0 && k.ctas % k.cluster == 0 && k.threads > 0 &&
           k.shared_bytes >= 0 && k.group_batch >= 0 && k.multiple > 0 && k.slots >= 0 && k.narrow >= 0 &&
           k.smallest_batch > 0 && k.smallest_denser > 0 && k.most_launches >= 0 &&
           (k.most_launches == 1 || launch_ns > 0) && (k.for_zeros == 0 || k.for_zeros == 1) && pass_ns > 0 &&
           launch_ns >= 0 && Architecture(k.architecture).number > 0;
  }

  std::mutex mutex_;
  std::deque<FusedKernel> kernels_;
};

// The division of a call's batch.
//
// group    the batch of each group but the last, which takes what is left
// groups   the number of groups
// at_once  the groups of each launch but the last, which takes what is left
// passes   how many times the kernel must run until all groups have run; 0: the kernel cannot run the call
struct FusedShare {
  int64_t group = 0, groups = 0, at_once = 0, passes = 0;
  int64_t launches() const { return at_once > 0 ? (groups + at_once - 1) / at_once : 0; }
};

// `places`: the number of groups, of all heads together, that run side by side; `denser`: whether masks are denser than
// planned. There are as many groups as there is room for, and they are large enough that one pass is enough, if that can
// be. The CTAs of a grid wait for each other, so all CTAs of a launch must run at once: a larger batch takes several
// launches, as many as the kernel may, with groups no larger than they must be, but for `multiple`.
inline FusedShare fused_share(const FusedKernel& kernel, int64_t heads, int64_t batch, int64_t places, bool denser) {
  const bool is_grid = kernel.scope == FusedScope::grid;
  if (places < 1 || batch < (denser ? kernel.smallest_denser : kernel.smallest_batch) || (is_grid && heads > places))
    return {};
  if (kernel.group_batch == 0) return {batch, 1, 1, 1};
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t seats = std::max<int64_t>(1, places / heads);
  const int64_t launches = is_grid ? std::max<int64_t>(1, ceil(batch, seats * kernel.group_batch)) : 1;
  if (kernel.most_launches > 0 && launches > kernel.most_launches) return {};
  FusedShare share;
  const int64_t least = std::max<int64_t>(1, ceil(batch, seats * launches));
  share.group = std::min<int64_t>(kernel.group_batch, ceil(least, kernel.multiple) * kernel.multiple);
  share.groups = ceil(batch, share.group);
  share.at_once = is_grid ? std::min(seats, share.groups) : share.groups;
  share.passes = is_grid ? ceil(share.groups, seats) : ceil(heads * share.groups, places);
  return share;
}

// The expected time of a step of a call.
inline int64_t fused_step_ns(const FusedKernel& kernel, const FusedShare& share) {
  return share.passes * (share.launches() > 1 ? kernel.launch_ns : kernel.pass_ns);
}

}  // namespace rnncc
