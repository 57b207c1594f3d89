"""A call of one step as packages with GPU kernels run it, on the CPU's tensors: what whole_on_gpu.py builds, with the
host's side of a GPU's loops in the place of the CPU's loops, and the kernels of a single step in the emulator."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Container
from functools import cache
from pathlib import Path

import torch

from tests.emulated.compiled import write_headers

# What a CPU's compiler and the emulator lack.
_BEFORE = """
#include "rnncc/cuda/scalar.cuh"
static uint3 gridDim;
"""
# Kernels of several dtypes have one name. A launch gets the parameter alone.
_KERNEL = """
#define {name} {symbol}
#include "{symbol}.cu"
#undef {name}
static void run_{symbol}(const void* call) {{
  {symbol}(*static_cast<const {parameter}*>(call));
}}
"""
_LAUNCH = """
struct Kernel {{ const char *module, *name; void (*run)(const void*); }};
static const Kernel kernels[] = {{ {kernels} }};
extern "C" const void* find_kernel(const char* module, const char* name) {{
  for (const Kernel& kernel : kernels)
    if (strcmp(kernel.module, module) == 0 && strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}}
extern "C" int launch(const unsigned* how, const void* kernel, void** parameters) {{
  gridDim = {{how[0], how[1], how[2]}};
  const auto run = static_cast<const Kernel*>(kernel)->run;
  emulated::launch({{int(how[0]), 1, 1, int(how[3]), int(how[6]), 7}}, run, parameters[0]);
  return 0;
}}
"""
_WORK = "MOST_SMALL_WORK = int64_t(1) << 27;"
# A CUDA driver that runs the kernels above. A module is the name of its file, up to the architecture.
_DRIVER = """
#include <stdlib.h>
#include <string.h>
const void* find_kernel(const char*, const char*);
int launch(const unsigned*, const void*, void**);
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 95 ? 1 : which == 16 ? 4 : 232448;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)1, 0; }
int cuCtxGetCurrent(void** context) { return *context = (void*)1, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return 0; }
int cuFuncSetAttribute(void* function, int which, int value) { return 0; }
int cuModuleLoad(void** module, const char* path) {
  char* name = strdup(strrchr(path, '/') + 1);
  *strstr(name, "_sm_90a") = 0;
  return *module = name, 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = (void*)find_kernel(module, name);
  return *function ? 0 : 500;
}
int cuLaunchKernelEx(const unsigned* how, void* function, void** parameters, void** extra) {
  return launch(how, function, parameters);
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void* stream) {
  return memset((void*)to, value, bytes), 0;
}
"""
_MISSING = """
#define NOT_CALLED(name) int name(void) { abort(); }
"""
# What torch without CUDA lacks. To cuBLAS, a matrix lies column by column. A product refuses what cuBLAS refuses.
_TORCH = """
#include <cstring>
#include "rnncc/torch/shim.h"
static float number(const void* data, int64_t at, int type) {
  if (type == 0) return static_cast<const float*>(data)[at];
  if (type == 2) return float(static_cast<const _Float16*>(data)[at]);
  const uint32_t bits = uint32_t(static_cast<const uint16_t*>(data)[at]) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
extern "C" {
int32_t torch_get_current_cuda_blas_handle(void** handle) { return *handle = nullptr, 0; }
int cublasSetStream_v2(void*, void*) { return 1; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 1; }
__attribute__((visibility("default"))) int64_t products_of_cublas;
int cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                 const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int, int) {
  if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || type_a != type_b || type_c != 0) return 7;
  ++products_of_cublas;
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0.0f;
      for (int64_t p = 0; p < k; ++p)
        sum += number(a, ta ? i * lda + p : p * lda + i, type_a) * number(b, tb ? p * ldb + j : j * ldb + p, type_b);
      float& out = static_cast<float*>(c)[j * ldc + i];
      const float before = *static_cast<const float*>(beta);
      out = *static_cast<const float*>(alpha) * sum + (before == 0 ? 0 : before * out);
    }
  return 0;
}
int32_t aoti_torch_get_current_cuda_stream(int32_t, void** stream) { return *stream = nullptr, 0; }
int32_t aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* guard) { return *guard = nullptr, 0; }
int32_t aoti_torch_delete_device_guard(DeviceGuardHandle) { return 0; }
}
"""


def build_loops(texts: dict[str, str], folder: Path, left_out: Container[str] = ()) -> list[str]:
    """Writes what takes the place of a GPU's loops to a folder that has the headers. Returns what to compile or link
    with the binding. `texts`: the files of the package; headers are changed there. `left_out`: kernels that no call
    asks for."""
    _build_driver(texts, folder, left_out)
    driver = "src/include/rnncc/cuda/driver.h"
    texts[driver] = texts[driver].replace("libcuda.so.1", str(folder / "libdriver.so"))
    for name in ("run.h", "single.h", "direction.h", "after.h"):
        path = f"src/include/rnncc/cuda/{name}"
        texts[path] = texts[path].replace("aoti_torch_device_type_cuda()", "aoti_torch_device_type_cpu()")
        texts[path] = re.sub(r"device\(\)\.index", "0", texts[path])
    texts["src/torch_cuda.cpp"] = _TORCH
    # Some products of tests are so large that cuBLAS makes them, or torch.
    work = "src/include/rnncc/cuda/step_products.h"
    assert _WORK in texts[work]
    texts[work] = texts[work].replace(_WORK, "MOST_SMALL_WORK = 3000;")
    return [path for path in texts if re.fullmatch(r"src/([a-z]\w*|_loops)_cuda\.cpp", path)]


def _build_driver(texts: dict[str, str], folder: Path, left_out: Container[str]) -> None:
    headers = folder / "emulated"
    write_headers(headers)
    source, rows = _BEFORE, []
    for path in sorted(texts):
        symbol = Path(path).stem
        if symbol in left_out:
            continue
        if found := re.fullmatch(r"src/((\w+)_single)_(f32|bf16|f16)\.cu", path):
            name, parameter = found[1], f"rnncc::SingleCall<rnncc::{found[2]}::Loop>"
        else:
            name, parameter = "small_products", "rnncc::SmallProductsCall"
        if found or symbol.startswith("_small_"):
            source += _KERNEL.format(name=name, symbol=symbol, parameter=parameter)
            rows.append(f'{{"{symbol}", "{name}", run_{symbol}}}')
            code = folder / "cuda" / f"{symbol}_sm_90a.cubin"
            code.parent.mkdir(exist_ok=True)
            code.touch()
    source += _LAUNCH.format(kernels=", ".join(rows))
    own = headers / "src"
    own.mkdir()
    for path, text in texts.items():
        if re.fullmatch(r"src/\w+\.(cu|cuh|h)", path):
            (headers / path).write_text(text, encoding="utf-8")
    (own / "kernels.cpp").write_text(source, encoding="utf-8")
    names = re.findall(r'find\(d\.\w+, "(\w+)"\)', texts["src/include/rnncc/cuda/driver.h"])
    rest = "".join(f"NOT_CALLED({name})\n" for name in names if f"int {name}(" not in _DRIVER)
    (own / "driver.c").write_text(_DRIVER + _MISSING + rest, encoding="utf-8")
    flags = ("-Og", "-fPIC", "-w", "-U_FORTIFY_SOURCE", f"-I{headers}", f"-I{headers}/rnncc/..")
    _run("gcc", *flags, "-c", str(own / "driver.c"), "-o", str(own / "driver.o"))
    _run("g++", "-std=c++17", *flags, "-shared", str(own / "kernels.cpp"), str(own / "driver.o"),
         "-Wl,-Bsymbolic", "-o", str(folder / "libdriver.so"))  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@cache
def take_products_of_16_bits() -> torch.library.Library:
    """From now on torch multiplies matrices of 16 bits with sums of floats on a CPU too, as it does on a GPU."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def multiply(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, *, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(a.to(dtype) @ b.to(dtype))

    library.impl("mm.dtype_out", multiply, "CPU")  # type: ignore[no-untyped-call]
    return library
