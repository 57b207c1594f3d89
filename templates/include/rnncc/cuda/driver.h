// The driver's functions that a launch needs. They are found at run time, so that the library opens on a machine
// without a GPU too. Structures and values are those of NVIDIA's cuda.h. They are declared here so that no toolkit is
// needed.
#pragma once

#include <dlfcn.h>

#include "../torch/tensor.h"

namespace rnncc {

typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;

constexpr int CU_SM_COUNT = 16, CU_MAJOR = 75, CU_MINOR = 76, CU_COOPERATIVE = 95, CU_SHARED_OPTIN = 97;
constexpr int CU_FUNC_DYNAMIC_SHARED = 8, CU_FUNC_LARGE_CLUSTER = 14;  // the latter allows more than 8 CTAs
constexpr int CU_LAUNCH_COOPERATIVE = 2, CU_LAUNCH_CLUSTER = 4;
constexpr int CU_CAPTURE_RELAXED = 2, CU_STREAM_NON_BLOCKING = 1;

struct CUlaunchAttribute {
  int32_t id;
  int32_t padding;
  uint32_t value[16];
};

struct CUlaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  int (*cuGetErrorName)(int, const char**);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuCtxGetCurrent)(CUcontext*);
  int (*cuCtxSetCurrent)(CUcontext);
  int (*cuDevicePrimaryCtxRetain)(CUcontext*, int);
  int (*cuModuleLoad)(CUmodule*, const char*);
  int (*cuModuleGetFunction)(CUfunction*, CUmodule, const char*);
  int (*cuFuncSetAttribute)(CUfunction, int, int);
  int (*cuThreadExchangeStreamCaptureMode)(int*);
  int (*cuLaunchCooperativeKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   CUstream, void**);
  int (*cuLaunchKernelEx)(const CUlaunchConfig*, CUfunction, void**, void**);
  int (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int*, CUfunction, int, size_t);
  int (*cuOccupancyMaxActiveClusters)(int*, CUfunction, const CUlaunchConfig*);
  int (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, CUstream);
  int (*cuMemsetD32Async)(uint64_t, unsigned, size_t, CUstream);
  int (*cuStreamCreate)(CUstream*, unsigned);
  int (*cuStreamIsCapturing)(CUstream, int*);
  int (*cuStreamBeginCapture_v2)(CUstream, int);
  int (*cuStreamEndCapture)(CUstream, CUgraph*);
  int (*cuGraphInstantiateWithFlags)(CUgraphExec*, CUgraph, unsigned long long);
  int (*cuGraphLaunch)(CUgraphExec, CUstream);
  int (*cuGraphDestroy)(CUgraph);
  int (*cuGraphExecDestroy)(CUgraphExec);
};

inline const Driver& driver() {
  static const Driver found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(std::string("the CUDA driver cannot be opened: ") + dlerror());
    Driver d = {};
    const auto find = [&](auto& function, const char* name) {
      void* symbol = dlsym(library, name);
      if (!symbol) fail(std::string("the CUDA driver has no ") + name + "; it is too old");
      function = reinterpret_cast<std::decay_t<decltype(function)>>(symbol);
    };
    find(d.cuGetErrorName, "cuGetErrorName");
    find(d.cuDeviceGet, "cuDeviceGet");
    find(d.cuDeviceGetAttribute, "cuDeviceGetAttribute");
    find(d.cuCtxGetCurrent, "cuCtxGetCurrent");
    find(d.cuCtxSetCurrent, "cuCtxSetCurrent");
    find(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(d.cuModuleLoad, "cuModuleLoad");
    find(d.cuModuleGetFunction, "cuModuleGetFunction");
    find(d.cuFuncSetAttribute, "cuFuncSetAttribute");
    find(d.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
    find(d.cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel");
    find(d.cuLaunchKernelEx, "cuLaunchKernelEx");
    find(d.cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    find(d.cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters");
    find(d.cuMemsetD8Async, "cuMemsetD8Async");
    find(d.cuMemsetD32Async, "cuMemsetD32Async");
    find(d.cuStreamCreate, "cuStreamCreate");
    find(d.cuStreamIsCapturing, "cuStreamIsCapturing");
    find(d.cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2");
    find(d.cuStreamEndCapture, "cuStreamEndCapture");
    find(d.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags");
    find(d.cuGraphLaunch, "cuGraphLaunch");
    find(d.cuGraphDestroy, "cuGraphDestroy");
    find(d.cuGraphExecDestroy, "cuGraphExecDestroy");
    return d;
  }();
  return found;
}

inline void check_cuda(int code, const std::string& what) {
  if (code == 0) return;
  const char* name = nullptr;
  driver().cuGetErrorName(code, &name);
  fail(what + ": " + (name ? name : "an unknown CUDA error"));
}

}  // namespace rnncc
