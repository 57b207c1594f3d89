// What device code was compiled for, and which GPUs run it. Plain C++: it needs no GPU. rnncc/ir/target.py says what the
// names mean.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace rnncc {

// An architecture by its name: `sm_80`, `sm_90a` or `compute_80`. `number` is 0 where it is no name of one.
struct Architecture {
  int number = 0;
  bool is_ptx = false, is_exact = false;

  explicit Architecture(const std::string& name) {
    is_ptx = name.compare(0, 8, "compute_") == 0;
    if (!is_ptx && name.compare(0, 3, "sm_") != 0) return;
    const char* const digits = name.c_str() + (is_ptx ? 8 : 3);
    char* end = nullptr;
    const long found = std::strtol(digits, &end, 10);
    is_exact = *end == 'a';
    if (end != digits && end[is_exact] == 0 && found >= 80 && found < 1000) number = int(found);
  }

  // PTX runs on all later GPUs, other code on those of the same generation, or on one compute capability alone.
  bool runs_on(int major, int minor) const {
    const int gpu = 10 * major + minor;
    if (is_ptx || is_exact) return number > 0 && (is_ptx ? number <= gpu : number == gpu);
    return number / 10 == major && number % 10 <= minor;
  }
  // A GPU that runs several is best served by the one with the largest rank.
  int rank() const { return number + (is_ptx ? 0 : 1000) + (is_exact ? 1000 : 0); }
  // Whether the code uses clusters of CTAs: transport.cuh asks the same.
  bool has_clusters() const { return number >= 90; }
};

// The file of the kernels `start` for an architecture; code_file in rnncc/ir/target.py has the same rule.
inline std::string code_file(const std::string& start, const std::string& architecture) {
  return start + "_" + architecture + (Architecture(architecture).is_ptx ? ".ptx" : ".cubin");
}

// The architecture that the name of such a file ends with.
inline Architecture architecture_of(const std::string& path) {
  const bool is_ptx = path.size() > 4 && path.compare(path.size() - 4, 4, ".ptx") == 0;
  const size_t begin = path.rfind(is_ptx ? "_compute_" : "_sm_"), end = path.rfind('.');
  return Architecture(begin == std::string::npos || end < begin ? "" : path.substr(begin + 1, end - begin - 1));
}

// The architecture of the best file of the kernels `start` that a GPU runs; empty where there is none.
inline std::string find_architecture(const std::string& start, int major, int minor) {
  const auto exists = [&](const std::string& name) { return access(code_file(start, name).c_str(), R_OK) == 0; };
  const std::string own = "sm_" + std::to_string(major);
  if (const std::string exact = own + std::to_string(minor) + "a"; exists(exact)) return exact;
  for (int older = minor; older >= 0; --older)
    if (const std::string name = own + std::to_string(older); exists(name)) return name;
  for (int number = 10 * major + minor; number >= 80; --number)
    if (const std::string name = "compute_" + std::to_string(number); exists(name)) return name;
  return "";
}

}  // namespace rnncc
