// C functions over rnncc/cuda/fused/host/index.h and rnncc/cuda/scan/share.h for tests.
#include "rnncc/cuda/fused/host/index.h"
#include "rnncc/cuda/scan/share.h"

using namespace rnncc;

extern "C" {
void* index_new() { return new FusedIndex; }
void index_delete(void* index) { delete static_cast<FusedIndex*>(index); }
int index_add(void* index, const char* folder) { return static_cast<FusedIndex*>(index)->add(folder); }

// The tables for these sizes, as an index has them, and before each its folder.
int64_t index_find(void* index, const char* program, const char* dtype, int64_t head_dim, char* text, int64_t size) {
  std::string found;
  const auto add = [&](const char* key, const std::string& value) { found += " " + std::string(key) + "=" + value; };
  const auto tables = static_cast<FusedIndex*>(index)->find(program, dtype, head_dim);
  for (const FusedTable* t : tables) {
    found += t->folder + "\ntable";
    add("program", t->program), add("dtype", t->dtype), add("head_dim", std::to_string(t->head_dim));
    add("heads", std::to_string(t->heads)), add("architecture", t->architecture);
    for (const FusedKernel& k : t->kernels) {
      found += "\nkernel";
      add("name", k.name), add("family", k.family), add("scope", FUSED_SCOPES[int(k.scope)]);
      const std::pair<const char*, int> numbers[] = {{"ctas", k.ctas},
                                                     {"cluster", k.cluster},
                                                     {"threads", k.threads},
                                                     {"shared_bytes", k.shared_bytes},
                                                     {"group_batch", k.group_batch},
                                                     {"multiple", k.multiple},
                                                     {"concurrent_groups", k.concurrent_groups},
                                                     {"exchange_steps", k.exchange_steps},
                                                     {"relayed_head_dim", k.relayed_head_dim},
                                                     {"for_zeros", k.for_zeros},
                                                     {"directions", k.directions}};
      for (const auto& [key, number] : numbers) add(key, std::to_string(number));
    }
    for (const FusedRow& row : t->rows) {
      std::string names, times;
      for (const FusedRow::Choice& choice : row.choices) {
        names += (names.empty() ? "" : ",") + t->kernels[choice.kernel].name;
        times += (times.empty() ? "" : ",") + std::to_string(choice.pass_ns);
      }
      found += "\nrow";
      add("batch", std::to_string(row.batch)), add("kernels", names), add("pass_ns", times);
    }
    found += "\n";
  }
  std::snprintf(text, size_t(size), "%s", found.c_str());
  return int64_t(tables.size());
}

// The first batch of the row for a batch of so many heads, in the first table of these sizes.
int64_t index_row(void* index, const char* program, const char* dtype, int64_t head_dim, int64_t heads, int64_t batch) {
  return static_cast<FusedIndex*>(index)->find(program, dtype, head_dim).at(0)->row(batch, heads).batch;
}

void share(const char* scope, int group_batch, int multiple, int64_t heads, int64_t batch, int64_t places,
           int64_t* result) {
  FusedKernel kernel;
  find_scope(scope, kernel.scope);
  kernel.group_batch = group_batch;
  kernel.multiple = multiple;
  const FusedShare share = fused_share(kernel, heads, batch, places);
  result[0] = share.group;
  result[1] = share.groups;
  result[2] = share.passes;
  result[3] = share.at_once;
  result[4] = share.launches();
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
