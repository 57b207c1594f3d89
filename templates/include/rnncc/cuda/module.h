// The GPU that a call runs on, and the kernels of the package that fit it. They are files in the folder `cuda` beside the
// library, and each is loaded once per device.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "../core/handler.h"
#include "architecture.h"
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

// The folder of this library.
inline std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&gpu), &info) || !info.dli_fname) fail("the package's folder is unknown");
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// While it lives, the thread may do what is forbidden while a stream is captured: load kernels, and make streams and
// graphs.
class DuringCapture {
 public:
  DuringCapture() {
    check_cuda(driver().cuThreadExchangeStreamCaptureMode(&mode_), "preparing while a graph is captured");
  }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;
  ~DuringCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  int mode_ = CU_CAPTURE_RELAXED;  // after the exchange: the mode from before
};

// Loads a file of kernels: a cubin, or PTX, which the driver compiles.
inline CUmodule load_module(const std::string& path) {
  const DuringCapture allowed;
  CUmodule module = nullptr;
  check_cuda(driver().cuModuleLoad(&module, path.c_str()), "loading " + path);
  return module;
}

// Returns a kernel of a module. It may use all the shared memory that a CTA can have.
inline CUfunction get_kernel(CUmodule module, const std::string& name, const Gpu& gpu) {
  CUfunction found;
  check_cuda(driver().cuModuleGetFunction(&found, module, name.c_str()), "finding the kernel " + name);
  check_cuda(driver().cuFuncSetAttribute(found, CU_FUNC_DYNAMIC_SHARED, gpu.shared_bytes), "shared memory of " + name);
  return found;
}

// The folders with kernels that take every size: the package's own, and those with kernels that were compiled since.
class KernelFolders {
 public:
  static KernelFolders& of_package() {
    static KernelFolders only;
    return only;
  }

  void add(const std::string& folder) {
    const std::lock_guard<std::mutex> lock(mutex_);
    folders_.push_back(folder);
  }

  // The path of a file of kernels for a GPU; empty where there is none.
  std::string find(const std::string& file_name, const Gpu& gpu) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& folder : folders_) {
      const std::string start = folder + "/" + file_name, found = find_architecture(start, gpu.major, gpu.minor);
      if (!found.empty()) return code_file(start, found);
    }
    return "";
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> folders_ = {own_folder() + "/cuda"};
};

// The path of a file of kernels that take every size, for a GPU. A package that `rnncc.load` made has none of its own:
// they are compiled when they are first needed. No lock may be held.
inline std::string kernel_path(const std::string& file_name, int32_t device, const Gpu& on) {
  KernelFolders& folders = KernelFolders::of_package();
  std::string path = folders.find(file_name, on);
  if (path.empty() && KernelHandler::of_package().ask_file(file_name, device)) path = folders.find(file_name, on);
  const std::string name = "sm_" + std::to_string(on.major) + std::to_string(on.minor);
  if (path.empty()) fail("this package has no kernels for this GPU (" + name + "): build it with --target " + name);
  return path;
}

// Tells, once, that a file of kernels will be needed soon. Where there is none, it is compiled meanwhile.
inline void announce(const std::string& file_name, int32_t device, const Gpu& on) {
  static std::mutex mutex;
  static std::set<std::pair<int32_t, std::string>> told;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!told.insert({device, file_name}).second) return;
  }
  if (KernelFolders::of_package().find(file_name, on).empty())
    KernelHandler::of_package().ask_file(file_name, device, true);
}

// Finds a kernel that takes every size. Each file and kernel is loaded once.
inline CUfunction find_kernel(int32_t device, const std::string& file_name, const std::string& kernel_name) {
  static std::mutex mutex;
  static std::map<std::pair<int32_t, std::string>, CUmodule> modules;
  static std::map<std::pair<int32_t, std::string>, CUfunction> kernels;
  const std::pair<int32_t, std::string> key = {device, file_name + "/" + kernel_name};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = kernels.find(key);
    if (found != kernels.end()) return found->second;
  }
  const Gpu& on = gpu(device);
  const std::string path = kernel_path(file_name, device, on);
  const std::lock_guard<std::mutex> lock(mutex);
  CUmodule& module = modules[{device, file_name}];
  if (!module) module = load_module(path);
  return kernels[key] = get_kernel(module, kernel_name, on);
}

// How many CTAs of a kernel an SM runs at once. The driver is asked once; kernels are never unloaded.
inline int ctas_of_an_sm(CUfunction kernel, const std::string& name, int threads, int shared_bytes) {
  static std::mutex mutex;
  static std::map<std::tuple<CUfunction, int, int>, int> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.try_emplace({kernel, threads, shared_bytes}, -1).first;
  if (found->second < 0)
    check_cuda(
        driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&found->second, kernel, threads, size_t(shared_bytes)),
        "counting CTAs of " + name);
  return found->second;
}

// Fails unless all CTAs of a kernel can run at once, since they wait for each other.
inline void require_residency(int32_t device, CUfunction kernel, const std::string& name, int64_t ctas, int threads,
                              int shared_bytes) {
  const int each = ctas_of_an_sm(kernel, name, threads, shared_bytes);
  const int sms = gpu(device).sms;
  if (ctas > int64_t(each) * sms)
    fail(name + " needs " + std::to_string(ctas) + " CTAs of " + std::to_string(threads) + " threads and " +
         std::to_string(shared_bytes) + " bytes of shared memory at once, this GPU runs " + std::to_string(each) +
         " on each of its " + std::to_string(sms) + " SMs");
}

// While it lives, the device is current for torch and for the driver. Threads of autograd may have no context yet.
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

// The shape of a launch: a grid of `ctas` by `rows` CTAs.
struct LaunchShape {
  int64_t ctas;
  int threads, shared_bytes = 0;
  unsigned rows = 1;
};

// Launches a kernel with one argument, `call`, on the stream that torch uses now.
inline void launch_kernel(const std::string& name, CUfunction kernel, const LaunchShape& shape, int32_t device,
                          void* call) {
  if (shape.ctas > INT32_MAX) fail(name + ": these are more rows than one launch takes");
  const CUlaunchConfig how = {{unsigned(shape.ctas), shape.rows, 1},
                              {unsigned(shape.threads), 1, 1},
                              unsigned(shape.shared_bytes),
                              current_stream(device),
                              nullptr,
                              0};
  void* parameters[] = {call};
  check_cuda(driver().cuLaunchKernelEx(&how, kernel, parameters, nullptr), "launching " + name);
}

// Makes so many bytes zeros, on the stream that torch uses now. The driver's own function takes the host less time than
// torch's.
inline void clear(void* data, int64_t bytes, int32_t device) {
  check_cuda(driver().cuMemsetD8Async(uint64_t(data), 0, size_t(bytes), current_stream(device)), "clearing memory");
}

}  // namespace rnncc

// From now on the folder's kernels that take every size are the package's too.
extern "C" inline __attribute__((used, visibility("default"))) void rnncc_add_folder(const char* folder) {
  rnncc::KernelFolders::of_package().add(folder);
}
