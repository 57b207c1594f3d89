// C functions over rnncc/cuda/fused/index.h and rnncc/cuda/scan/share.h for tests.
#include "rnncc/cuda/fused/index.h"
#include "rnncc/cuda/scan/share.h"

using namespace rnncc;

extern "C" {
void* index_new() { return new FusedIndex; }
void index_delete(void* index) { delete static_cast<FusedIndex*>(index); }
int index_add(void* index, const char* folder) { return static_cast<FusedIndex*>(index)->add(folder); }

// The kernels for these sizes, a line each: name, folder, and what the index says from the scope on.
int64_t index_find(void* index, const char* program, const char* dtype, int64_t head_dim, char* text, int64_t size) {
  int64_t used = 0;
  const auto found = static_cast<FusedIndex*>(index)->find(program, dtype, head_dim);
  for (const FusedKernel* k : found)
    used += std::snprintf(text + used, size_t(size - used), "%s %s %s %d %d %d %d %d %d %d %d %d %d %d %d %lld %lld %s\n", k->name.c_str(), k->folder.c_str(),
                          FUSED_SCOPES[int(k->scope)], k->ctas, k->cluster, k->threads, k->shared_bytes, k->group_batch, k->multiple, k->slots, k->narrow, k->smallest_batch, k->smallest_denser, k->most_launches, k->for_zeros,
                          (long long)(k->pass_ns), (long long)(k->launch_ns), k->architecture.c_str());
  return int64_t(found.size());
}

// A pass takes 1000 ns, and each of several launches `launch_ns`.
void share(const char* scope, int group_batch, int multiple, int smallest_batch, int smallest_denser, int most_launches, int64_t launch_ns, int64_t heads,
           int64_t batch, int64_t places, int denser, int64_t* result) {
  FusedKernel kernel;
  find_scope(scope, kernel.scope);
  kernel.group_batch = group_batch;
  kernel.multiple = multiple;
  kernel.smallest_batch = smallest_batch;
  kernel.pass_ns = 1000;
  kernel.smallest_denser = smallest_denser;
  kernel.most_launches = most_launches;
  kernel.launch_ns = launch_ns;
  const FusedShare share = fused_share(kernel, heads, batch, places, denser != 0);
  result[0] = share.group;
  result[1] = share.groups;
  result[2] = share.passes;
  result[3] = share.at_once;
  result[4] = share.launches();
  result[5] = fused_step_ns(kernel, share);
}

// Whether a GPU runs code for an architecture.
int runs_on(const char* architecture, int major, int minor) { return Architecture(architecture).runs_on(major, minor); }

// The architecture of the best file of the kernels `start` that a GPU runs.
void find(const char* start, int major, int minor, char* text, int64_t size) {
  std::snprintf(text, size_t(size), "%s", find_architecture(start, major, minor).c_str());
}

// The number of a file's architecture.
int number_of(const char* path) { return architecture_of(path).number; }

// For kernels whose CTAs work on `tile` steps at once.
int64_t ctas(int tile, int64_t clusters, int64_t steps, int64_t most, int64_t sms) {
  ScanForm form = {};
  form.steps = int16_t(tile);
  return scan_ctas(form, clusters, steps, most, sms);
}
}
