// Registers a package's ops while its library is opened, whether `dlopen`, torch.ops.load_library or an import opens it
// first. Where torch refuses, the reason is stored as text.
#pragma once

#include <string>

#include "ops.h"

namespace rnncc {

// A text that says what torch refused, and why.
inline const char* refused(const char* space, const rnncc_op& op, const char* step) {
  static std::string message;
  message = std::string(space) + "::" + op.name + ": " + step + ": " +
            (torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace()
                                                        : "torch printed the reason to stderr");
  return message.c_str();
}

// Defines the ops of the table as `space::name`, with their kernels for each device. Returns null, or a text that says
// what went wrong. Libraries are never deleted: an op lives as long as the process.
inline const char* register_ops(const rnncc_op* table, int64_t count, const char* space) {
  // A namespace has one owner. Its name tells what the ops are, so if it has one, another copy of this library was
  // opened before.
  LibraryHandle owner;
  if (aoti_torch_library_init_def(space, __FILE__, __LINE__, &owner)) return nullptr;
  for (const rnncc_op* op = table; op != table + count; ++op) {
    LibraryHandle definition;
    if (aoti_torch_library_init_fragment(space, __FILE__, __LINE__, &definition))
      return refused(space, *op, "opening the namespace");
    if (aoti_torch_library_def(definition, (std::string(op->name) + op->schema).c_str()))
      return refused(space, *op, "defining the op");
    for (const char* key : {"CPU", "CUDA"}) {
      const BoxedKernel kernel = std::string(key) == "CUDA" ? op->device_kernel : op->kernel;
      if (!kernel) continue;
      LibraryHandle implementation;
      if (aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &implementation))
        return refused(space, *op, "opening the namespace of a device");
      if (torch_library_impl(implementation, op->name, kernel, rnncc_torch_abi))
        return refused(space, *op, "adding the kernel");
    }
  }
  return nullptr;
}

}  // namespace rnncc
