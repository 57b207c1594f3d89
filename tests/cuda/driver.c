// A CUDA driver without a GPU, which says of one what the environment says: GPU_NAME, GPU_<attribute>. Kernels are
// loaded from any file, and one CTA of each runs on an SM.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int attribute(int which) {
  char name[32];
  snprintf(name, sizeof name, "GPU_%d", which);
  const char* found = getenv(name);
  return found ? atoi(found) : 0;
}

int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int device) { return snprintf(name, size, "%s", getenv("GPU_NAME")), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 16000000000, 0; }
int cuDeviceGetAttribute(int* value, int which, int device) { return *value = which == 95 ? 1 : attribute(which), 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)1, 0; }
int cuModuleLoad(void** module, const char* path) {
  *module = strdup(path);
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = module, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void* function, int threads, size_t bytes) {
  return *count = 1, 0;
}
// GPUs before compute capability 9.0 know nothing of clusters: both of these are errors there.
int cuFuncSetAttribute(void* function, int which, int value) { return which == 14 && attribute(75) < 9 ? 1 : 0; }
// There is room for 8 clusters where an SM has one CTA, and for more where several fit into its shared memory: each takes
// 1024 bytes besides.
int cuOccupancyMaxActiveClusters(int* count, void* function, const unsigned* config) {
  const unsigned shared_bytes = config[6];
  return *count = 8 * ((attribute(97) + 1024) / (shared_bytes + 1024)), attribute(75) < 9 ? 801 : 0;
}

#define NOT_CALLED(name) \
  int name(void) { abort(); }
NOT_CALLED(cuGetErrorName)
NOT_CALLED(cuCtxGetCurrent)
NOT_CALLED(cuCtxSetCurrent)
NOT_CALLED(cuLaunchCooperativeKernel)
NOT_CALLED(cuLaunchKernelEx)
NOT_CALLED(cuMemsetD8Async)
NOT_CALLED(cuMemsetD32Async)
NOT_CALLED(cuStreamCreate)
NOT_CALLED(cuStreamIsCapturing)
NOT_CALLED(cuStreamBeginCapture_v2)
NOT_CALLED(cuStreamEndCapture)
NOT_CALLED(cuGraphInstantiateWithFlags)
NOT_CALLED(cuGraphLaunch)
NOT_CALLED(cuGraphDestroy)
NOT_CALLED(cuGraphExecDestroy)
