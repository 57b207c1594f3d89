// Which GPU a call runs on, and the kernels of the package that fit it: files `cuda/<name>_<architecture>.cubin` beside the
// library, each loaded once a device.
#pragma once

#include <unistd.h>

#include <map>
#include <mutex>

#include "driver.h"

extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace rnncc {

struct Gpu {
  CUcontext context = nullptr;
  int multiprocessors = 0, shared_bytes = 0, major = 0, minor = 0;
};

inline const Gpu& gpu(int32_t index) {
  static std::mutex mutex;
  static std::map<int32_t, Gpu> known;
  const std::lock_guard<std::mutex> lock(mutex);
  Gpu& found = known[index];
  if (found.context) return found;
  const Driver& d = driver();
  int device, cooperative;
  check_cuda(d.cuDeviceGet(&device, index), "finding the GPU");
  const auto attribute = [&](int which, int& value) {
    check_cuda(d.cuDeviceGetAttribute(&value, which, device), "asking the GPU for its properties");
  };
  attribute(CU_MULTIPROCESSORS, found.multiprocessors);
  attribute(CU_SHARED_OPTIN, found.shared_bytes);
  attribute(CU_MAJOR, found.major);
  attribute(CU_MINOR, found.minor);
  attribute(CU_COOPERATIVE, cooperative);
  if (!cooperative) fail("this GPU cannot launch kernels cooperatively");
  CUcontext context;
  check_cuda(d.cuDevicePrimaryCtxRetain(&context, device), "the GPU's context");
  found.context = context;
  return found;
}

// Where this library is.
inline std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&gpu), &info) || !info.dli_fname) fail("the package's folder is unknown");
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The file of kernels for a GPU: that of its very architecture, or of an older one of its generation.
inline std::string kernel_file(const std::string& name, const Gpu& gpu) {
  const std::string start = own_folder() + "/cuda/" + name + "_sm_" + std::to_string(gpu.major);
  const std::string exact = start + std::to_string(gpu.minor) + "a.cubin";
  if (access(exact.c_str(), R_OK) == 0) return exact;
  for (int minor = gpu.minor; minor >= 0; --minor) {
    const std::string path = start + std::to_string(minor) + ".cubin";
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  fail("this package has no kernels for this GPU (sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) +
       "): build it with --target sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor));
}

// A kernel of a file, which may use all the shared memory that a CTA can have.
inline CUfunction find_kernel(int32_t device, const std::string& file_name, const std::string& kernel_name) {
  static std::mutex mutex;
  static std::map<std::pair<int32_t, std::string>, CUmodule> modules;
  static std::map<std::pair<int32_t, std::string>, CUfunction> kernels;
  const std::lock_guard<std::mutex> lock(mutex);
  CUfunction& kernel = kernels[{device, file_name + "/" + kernel_name}];
  if (kernel) return kernel;
  const Driver& d = driver();
  const Gpu& on = gpu(device);
  CUmodule& module = modules[{device, file_name}];
  if (!module) check_cuda(d.cuModuleLoad(&module, kernel_file(file_name, on).c_str()), "loading the kernels of " + file_name);
  CUfunction found;
  check_cuda(d.cuModuleGetFunction(&found, module, kernel_name.c_str()), "finding the kernel " + kernel_name);
  check_cuda(d.cuFuncSetAttribute(found, CU_FUNC_DYNAMIC_SHARED, on.shared_bytes), "shared memory of " + kernel_name);
  return kernel = found;
}

// Fails unless all thread blocks of a kernel run at once: they wait for each other.
inline void require_residency(int32_t device, CUfunction kernel, const std::string& name, int64_t blocks, int threads, int shared_bytes) {
  int each = 0;
  check_cuda(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, size_t(shared_bytes)),
             "counting thread blocks of " + name);
  const int multiprocessors = gpu(device).multiprocessors;
  if (blocks > int64_t(each) * multiprocessors)
    fail(name + " needs " + std::to_string(blocks) + " thread blocks of " + std::to_string(threads) + " threads and " +
         std::to_string(shared_bytes) + " bytes of shared memory at once, this GPU runs " + std::to_string(each) + " on each of its " +
         std::to_string(multiprocessors) + " multiprocessors");
}

// Makes the device current for torch and for the driver while it lives: threads of autograd may have no context yet.
class OnDevice {
 public:
  explicit OnDevice(int32_t index) {
    RNNCC_TORCH(aoti_torch_create_device_guard(index, &guard_));
    CUcontext current = nullptr;
    check_cuda(driver().cuCtxGetCurrent(&current), "the current context");
    if (current != gpu(index).context) check_cuda(driver().cuCtxSetCurrent(gpu(index).context), "setting the context");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { aoti_torch_delete_device_guard(guard_); }

 private:
  DeviceGuardHandle guard_ = nullptr;
};

inline CUstream current_stream(int32_t device) {
  if (!aoti_torch_get_current_cuda_stream) fail("this PyTorch has no CUDA support");
  void* stream;
  RNNCC_TORCH(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<CUstream>(stream);
}

}  // namespace rnncc
