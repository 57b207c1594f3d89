// Registration by an explicit call, so that nothing runs when the library is opened and torch's complaint about a schema
// comes back as text.
#pragma once

#include <string>

#include "ops.h"

namespace rnncc {

inline const char* refused(const char* step) {
  static thread_local std::string message;
  message = std::string(step) + ": " +
            (torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace()
                                                        : "torch printed the reason to stderr");
  return message.c_str();
}

// Defines the op `space::schema` and its kernel for a device, the table's op called `name`. Null, or what went wrong.
// Libraries are never deleted: an op lives as long as the process.
inline const char* register_op(const rnncc_op* table, int64_t count, const char* space, const char* schema,
                               const char* name) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::string(table[i].name) != name) continue;
    LibraryHandle definition;
    if (aoti_torch_library_init_fragment(space, __FILE__, __LINE__, &definition)) return refused("opening the namespace");
    if (aoti_torch_library_def(definition, schema)) return refused("defining the op");
    for (const char* key : {"CPU", "CUDA"}) {
      if (std::string(key) == "CUDA" && !table[i].on_device) continue;
      LibraryHandle implementation;
      if (aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &implementation))
        return refused("opening the namespace of a device");
      if (torch_library_impl(implementation, name, table[i].kernel, rnncc_torch_abi)) return refused("adding the kernel");
    }
    return nullptr;
  }
  return "this library has no op of that name";
}

}  // namespace rnncc
