// The fused kernels that there are, the tables that say which of them runs a batch, and how a kernel divides the batch
// of a call. Plain C++: it needs no GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../../architecture.h"

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

// A kernel of a folder.
//
// family          the family's name, for messages
// ctas            the CTAs that hold one copy of a head's matrix: those of a cluster, or some of a grid
// cluster         the CTAs of a cluster, with which the kernel is launched: all of them, or a part of those of a grid
// threads         threads per CTA
// shared_bytes    shared memory per CTA
// group_batch     the largest batch of a group; 0: the whole batch is one group
// multiple        each group but the last has a multiple of so many batch entries
// concurrent_groups
//                 the number of groups, of all heads together, that run side by side on the GPU it was planned for
// exchange_steps  for how many steps the exchange of a grid has room, which take turns; 0: there is no exchange
// relayed_head_dim
//                 the head_dim of relayed sums, for which the kernel is made (call.cuh); 0: it takes any
// for_zeros       1: the kernel is for matrices of which most elements are zero
// directions      the most directions of a launch
// name            the kernel's name, with which the name of its file begins
struct FusedKernel {
  std::string folder, architecture, name, family;
  FusedScope scope = FusedScope::cluster;
  int64_t head_dim = 0;
  int ctas = 0, cluster = 1, threads = 0, shared_bytes = 0, group_batch = 0, multiple = 1, concurrent_groups = 1,
      exchange_steps = 0, relayed_head_dim = 0, for_zeros = 0, directions = 2;
};

// The kernels of a table that run the batches from `batch` on, up to the next row's, by their places in the table. The
// first one is the quickest, and each other one runs calls that those before it cannot run. Where there is none, the
// alternating kernel is. `pass_ns`: the expected time of a step of the groups that run side by side.
struct FusedRow {
  struct Choice {
    size_t kernel = 0;
    int64_t pass_ns = 0;
  };
  int64_t batch = 0;
  std::vector<Choice> choices;
};

// Which kernels run a program, planned for a GPU of `architecture`, and for so many heads side by side.
struct FusedTable {
  std::string folder, program, dtype, architecture;
  int64_t head_dim = 0, heads = 0;
  std::vector<FusedKernel> kernels;
  std::vector<FusedRow> rows;  // their batches increase from 1 on

  // The row for a batch. Another number of heads counts as a batch with as many entries of all heads.
  const FusedRow& row(int64_t batch, int64_t of_heads) const {
    const int64_t alike = (batch * of_heads + heads - 1) / heads;
    const auto is_after = [&](const FusedRow& row) { return row.batch > alike; };
    return *std::prev(std::find_if(rows.begin() + 1, rows.end(), is_after));
  }
};

// A line of a folder's `fused.txt`: what it is about, and words `key=value`. After a table come its kernels, and then
// its rows. rnncc/stages/render/cuda/fused.py writes it, and rnncc/runtime/kernels/index.py reads it, too.
class FusedLine {
 public:
  // `line` ends with a newline.
  explicit FusedLine(const std::string& line) {
    size_t end = line.find_first_of(" \n");
    kind_ = line.substr(0, end);
    while (line[end] == ' ') {
      const size_t begin = end + 1;
      end = line.find_first_of(" \n", begin);
      const std::string word = line.substr(begin, end - begin);
      const size_t equals = word.find('=');
      if (equals == std::string::npos || !words_.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
        readable_ = false;
    }
  }
  const std::string& kind() const { return kind_; }
  // Whether it has all that was asked for.
  bool is_readable() const { return readable_; }

  std::string text(const char* key) {
    const auto found = words_.find(key);
    if (found != words_.end() && !found->second.empty()) return found->second;
    readable_ = false;
    return {};
  }
  int64_t number(const char* key, int64_t least) { return number_of(text(key), least); }
  // What commas divide; nothing where there is no text.
  std::vector<std::string> list(const char* key) {
    const auto found = words_.find(key);
    if (found == words_.end()) readable_ = false;
    std::vector<std::string> parts;
    if (!readable_ || found->second.empty()) return parts;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = found->second.find(',', begin);
      parts.push_back(found->second.substr(begin, end - begin));
    }
    return parts;
  }
  // Whole numbers only: the text of a fraction depends on the locale of the process.
  int64_t number_of(const std::string& digits, int64_t least) {
    const bool is_whole =
        !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos;
    const int64_t value = is_whole ? std::atoll(digits.c_str()) : -1;
    if (value < least) readable_ = false;
    return value;
  }
  void require(bool holds) { readable_ = readable_ && holds; }

 private:
  std::string kind_;
  std::map<std::string, std::string> words_;
  bool readable_ = true;
};

// Tables stay where they are in memory: a call may use one while others are added.
class FusedIndex {
 public:
  // Adds the kernels of a folder. Returns how many, or -1 where there is no index, or one that cannot be read.
  int add(const std::string& folder) {
    std::deque<FusedTable> added;
    if (!read(folder, added)) return -1;
    size_t count = 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto table = added.rbegin(); table != added.rend(); ++table) {
      count += table->kernels.size();
      tables_.push_front(std::move(*table));
    }
    return int(count);
  }
  // The tables of these sizes: those of the folder that was added last come first.
  std::vector<const FusedTable*> find(const std::string& program, const std::string& dtype, int64_t head_dim) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const FusedTable*> found;
    for (const FusedTable& table : tables_)
      if (table.program == program && table.dtype == dtype && table.head_dim == head_dim) found.push_back(&table);
    return found;
  }

 private:
  static bool read(const std::string& folder, std::deque<FusedTable>& tables) {
    // C's functions: the library holds a C++ library of its own, whose streams would need its locales.
    std::FILE* file = std::fopen((folder + "/fused.txt").c_str(), "r");
    if (!file) return false;
    std::string line;
    bool readable = true;
    for (int next = std::fgetc(file); readable && next != EOF; next = std::fgetc(file)) {
      line += char(next);
      if (next != '\n') continue;
      FusedLine words(line);
      readable = read(words, folder, tables);
      line.clear();
    }
    readable = readable && line.empty() && !std::ferror(file);
    std::fclose(file);
    const auto is_whole = [](const FusedTable& table) { return !table.rows.empty(); };
    return readable && std::all_of(tables.begin(), tables.end(), is_whole);
  }

  static bool read(FusedLine& line, const std::string& folder, std::deque<FusedTable>& tables) {
    if (line.kind() == "table")
      tables.push_back(table(line, folder));
    else if (line.kind() == "kernel" && !tables.empty() && tables.back().rows.empty())
      tables.back().kernels.push_back(kernel(line, tables.back()));
    else if (line.kind() == "row" && !tables.empty())
      tables.back().rows.push_back(row(line, tables.back()));
    else
      return false;
    return line.is_readable();
  }

  static FusedTable table(FusedLine& line, const std::string& folder) {
    FusedTable found;
    found.folder = folder;
    found.program = line.text("program");
    found.dtype = line.text("dtype");
    found.architecture = line.text("architecture");
    found.head_dim = line.number("head_dim", 1);
    found.heads = line.number("heads", 1);
    line.require(Architecture(found.architecture).number > 0);
    return found;
  }

  static FusedKernel kernel(FusedLine& line, const FusedTable& table) {
    FusedKernel k;
    k.folder = table.folder;
    k.architecture = table.architecture;
    k.head_dim = table.head_dim;
    k.name = line.text("name");
    k.family = line.text("family");
    line.require(find_scope(line.text("scope").c_str(), k.scope));
    k.ctas = int(line.number("ctas", 1));
    k.cluster = int(line.number("cluster", 1));
    k.threads = int(line.number("threads", 1));
    k.shared_bytes = int(line.number("shared_bytes", 0));
    k.group_batch = int(line.number("group_batch", 0));
    k.multiple = int(line.number("multiple", 1));
    k.concurrent_groups = int(line.number("concurrent_groups", 1));
    k.exchange_steps = int(line.number("exchange_steps", 0));
    k.relayed_head_dim = int(line.number("relayed_head_dim", 0));
    k.for_zeros = int(line.number("for_zeros", 0));
    k.directions = int(line.number("directions", 1));
    line.require(k.for_zeros <= 1 && k.directions <= 2 && line.is_readable() && k.ctas % k.cluster == 0);
    line.require(k.scope != FusedScope::grid || (k.exchange_steps > 0 && k.group_batch > 0));
    return k;
  }

  static FusedRow row(FusedLine& line, const FusedTable& table) {
    FusedRow found;
    found.batch = line.number("batch", 1);
    line.require(table.rows.empty() ? found.batch == 1 : found.batch > table.rows.back().batch);
    const std::vector<std::string> names = line.list("kernels"), times = line.list("pass_ns");
    line.require(names.size() == times.size());
    for (size_t i = 0; line.is_readable() && i < names.size(); ++i) {
      const auto is_named = [&](const FusedKernel& k) { return k.name == names[i]; };
      const auto kernel = std::find_if(table.kernels.begin(), table.kernels.end(), is_named);
      line.require(kernel != table.kernels.end());
      found.choices.push_back({size_t(kernel - table.kernels.begin()), line.number_of(times[i], 1)});
    }
    return found;
  }

  std::mutex mutex_;
  std::deque<FusedTable> tables_;
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

// `places`: the number of groups, of all heads together, that run side by side on this GPU. There are as many groups as
// there is room for, and they are large enough that one pass is enough, if that can be. The CTAs of a grid wait for each
// other, so all CTAs of a launch must run at once: a larger batch takes several launches, with groups no larger than
// they must be, but for `multiple`. FusedSchedule in rnncc/ir/layout.py has the same rule.
inline FusedShare fused_share(const FusedKernel& kernel, int64_t heads, int64_t batch, int64_t places) {
  const bool is_grid = kernel.scope == FusedScope::grid;
  if (places < 1 || batch < 1 || (is_grid && heads > places)) return {};
  if (kernel.group_batch == 0) return {batch, 1, 1, 1};
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t seats = std::max<int64_t>(1, places / heads);
  const int64_t launches = is_grid ? ceil(batch, seats * kernel.group_batch) : 1;
  FusedShare share;
  share.group =
      std::min<int64_t>(kernel.group_batch, ceil(ceil(batch, seats * launches), kernel.multiple) * kernel.multiple);
  share.groups = ceil(batch, share.group);
  share.at_once = is_grid ? std::min(seats, share.groups) : share.groups;
  share.passes = is_grid ? ceil(share.groups, seats) : ceil(heads * share.groups, places);
  return share;
}

}  // namespace rnncc
