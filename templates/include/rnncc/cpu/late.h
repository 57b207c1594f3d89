// The files of CPU kernels that were not compiled with the package. Python compiles one when a call first needs it: a
// call with lengths or resets, or with tensors of another dtype (rnncc/runtime/kernels/first_use.py). Each has a library
// of its own.
#pragma once

#include <dlfcn.h>

#include <vector>

#include "../core/handler.h"

namespace rnncc {

// The libraries that were compiled since the package was opened.
class LateLibraries {
 public:
  static LateLibraries& of_package() {
    static LateLibraries only;
    return only;
  }

  void add(void* library) {
    const std::lock_guard<std::mutex> lock(mutex_);
    libraries_.push_back(library);
  }

  // A function, or null where no library has it.
  void* find(const std::string& symbol) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (void* library : libraries_)
      if (void* found = dlsym(library, symbol.c_str())) return found;
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::vector<void*> libraries_;
};

// What the kernels of a file are for: `f64_masked` is "that compute in float64 for lengths and resets".
inline std::string about_cpu_file(const std::string& file) {
  const bool is_masked = file.find("_masked") != std::string::npos;
  return "that compute in float" + file.substr(1, 2) + (is_masked ? " for lengths and resets" : "");
}

// Asks for the kernels where no library has the function. No lock may be held.
inline void* late_function(const std::string& name, const std::string& set, const std::string& file) {
  const std::string symbol = name + "_" + set + "_" + file;
  LateLibraries& libraries = LateLibraries::of_package();
  void* found = libraries.find(symbol);
  if (!found && KernelHandler::of_package().ask_cpu_file(set, file)) found = libraries.find(symbol);
  if (!found)
    throw std::runtime_error("this package has no CPU kernels " + about_cpu_file(file) +
                             "; `rnncc build` makes a package that has kernels for every call");
  return found;
}

}  // namespace rnncc

// From now on the package finds functions in this library, a handle of dlopen, too.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_add_library(void* library) {
  rnncc::LateLibraries::of_package().add(library);
}
