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
  int sms = 0, shared_bytes = 0, major = 0, minor = 0;
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
  attribute(CU_SM_COUNT, found.sms);
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

// A file of kernels for a GPU, `start` and an architecture: that of its very architecture, or of an older one of its
// generation; empty where there is none.
inline std::string find_cubin(const std::string& start, const Gpu& gpu) {
  const std::string generation = start + "_sm_" + std::to_string(gpu.major);
  const std::string exact = generation + std::to_string(gpu.minor) + "a.cubin";
  if (access(exact.c_str(), R_OK) == 0) return exact;
  for (int minor = gpu.minor; minor >= 0; --minor) {
    const std::string path = generation + std::to_string(minor) + ".cubin";
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

// Allows, while it lives, what is forbidden while some stream is captured: to load kernels, to make streams and graphs.
class DuringCapture {
 public:
  DuringCapture() { check_cuda(driver().cuThreadExchangeStreamCaptureMode(&mode_), "preparing while a graph is captured"); }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;
  ~DuringCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  int mode_ = CU_CAPTURE_RELAXED;  // then the one before
};

// Its kernels.
inline CUmodule load_module(const std::string& path) {
  const DuringCapture allowed;
  CUmodule module = nullptr;
  check_cuda(driver().cuModuleLoad(&module, path.c_str()), "loading " + path);
  return module;
}

// One of them, which may use all the shared memory that a CTA can have.
inline CUfunction get_kernel(CUmodule module, const std::string& name, const Gpu& gpu) {
  CUfunction found;
  check_cuda(driver().cuModuleGetFunction(&found, module, name.c_str()), "finding the kernel " + name);
  check_cuda(driver().cuFuncSetAttribute(found, CU_FUNC_DYNAMIC_SHARED, gpu.shared_bytes), "shared memory of " + name);
  return found;
}

// A kernel of the package for every size, by the name of its file.
inline CUfunction find_kernel(int32_t device, const std::string& file_name, const std::string& kernel_name) {
  static std::mutex mutex;
  static std::map<std::pair<int32_t, std::string>, CUmodule> modules;
  static std::map<std::pair<int32_t, std::string>, CUfunction> kernels;
  const std::lock_guard<std::mutex> lock(mutex);
  CUfunction& kernel = kernels[{device, file_name + "/" + kernel_name}];
  if (kernel) return kernel;
  const Gpu& on = gpu(device);
  CUmodule& module = modules[{device, file_name}];
  if (!module) {
    const std::string path = find_cubin(own_folder() + "/cuda/" + file_name, on);
    const std::string name = "sm_" + std::to_string(on.major) + std::to_string(on.minor);
    if (path.empty()) fail("this package has no kernels for this GPU (" + name + "): build it with --target " + name);
    module = load_module(path);
  }
  return kernel = get_kernel(module, kernel_name, on);
}

// Fails unless all thread ctas of a kernel run at once: they wait for each other.
inline void require_residency(int32_t device, CUfunction kernel, const std::string& name, int64_t ctas, int threads, int shared_bytes) {
  int each = 0;
  check_cuda(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, size_t(shared_bytes)),
             "counting thread blocks of " + name);
  const int sms = gpu(device).sms;
  if (ctas > int64_t(each) * sms)
    fail(name + " needs " + std::to_string(ctas) + " thread blocks of " + std::to_string(threads) + " threads and " +
         std::to_string(shared_bytes) + " bytes of shared memory at once, this GPU runs " + std::to_string(each) + " on each of its " +
         std::to_string(sms) + " multiprocessors");
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
