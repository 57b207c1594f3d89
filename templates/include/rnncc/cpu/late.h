// The kernels of a compute type that were not compiled with the package. Python compiles them when a tensor of such a
// dtype first comes (rnncc/runtime/kernels/first_use.py), into a library of their own.
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

// Asks for the kernels where no library has the function. No lock may be held.
inline void* late_function(const std::string& name, const std::string& set, const std::string& type) {
  const std::string symbol = name + "_" + set + "_" + type;
  LateLibraries& libraries = LateLibraries::of_package();
  void* found = libraries.find(symbol);
  if (!found && KernelHandler::of_package().ask(set, {type}, -1)) found = libraries.find(symbol);
  if (!found)
    throw std::runtime_error("this package has no CPU kernels that compute in float" + type.substr(1) +
                             "; `rnncc build` makes a package that has kernels for every dtype");
  return found;
}

}  // namespace rnncc

// From now on the package finds functions in this library, a handle of dlopen, too.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_add_library(void* library) {
  rnncc::LateLibraries::of_package().add(library);
}
