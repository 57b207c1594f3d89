// Asks for large pages for large new memory (Linux). The first touch of each small page is a trap into the kernel, and
// all these traps together take a tenth of the time of a large call.
#pragma once

#include <stddef.h>
#include <stdint.h>

// sys/mman.h's; declared here so that files compiled for an instruction set include no header of the library.
extern "C" int madvise(void* address, size_t bytes, int advice) noexcept;

namespace rnncc {

// This is advice: a system that does not take it still serves small pages.
static inline void want_large_pages(void* data, int64_t bytes) {
  constexpr int64_t least = int64_t(4) << 20;
  constexpr uintptr_t page = 4096;
  constexpr int madv_hugepage = 14;
  if (bytes < least) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~(page - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) & ~(page - 1);
  madvise(reinterpret_cast<void*>(begin), size_t(end - begin), madv_hugepage);
}

}  // namespace rnncc
