// Runs layers that AOTInductor compiled, in a program without Python: MODEL.pt2 STEPS BATCH INPUTS, then the LIBRARY of each
// package, which makes its ops known when it is opened.
// The input counts from -1 to 1; what the model returns is printed, a number a line.
#include <ATen/ops/linspace.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <string>

int main(int count, char** given) {
  if (count < 6) return 2;
  for (int i = 5; i < count; ++i) {
    if (!dlopen(given[i], RTLD_NOW)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  }

  torch::inductor::AOTIModelPackageLoader model(given[1]);
  const int64_t steps = std::stoll(given[2]), batch = std::stoll(given[3]), inputs = std::stoll(given[4]);
  const at::Tensor x = at::linspace(-1, 1, steps * batch * inputs).view({steps, batch, inputs});
  for (const at::Tensor& result : model.run({x})) {
    const at::Tensor flat = result.contiguous();
    for (int64_t i = 0; i < flat.numel(); ++i) std::printf("%.9g\n", flat.const_data_ptr<float>()[i]);
  }
}
