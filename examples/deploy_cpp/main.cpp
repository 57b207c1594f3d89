// Runs a model that AOTInductor compiled, with layers of rnncc in it, in a program without Python and without rnncc.
//
//     run MODEL.pt2 STEPS BATCH INPUTS LIBRARY.so... < NUMBERS
//
// MODEL takes one tensor of floats [STEPS, BATCH, INPUTS]. The program reads its numbers from standard input, those of the last
// dimension side by side. Each LIBRARY is the lib….so of a package that `rnncc build` made; every cell of the model needs its
// own. The program prints the model's results: for each a line `# SHAPE`, then its numbers, where a line has a row of the last
// dimension. It exits with 2 for wrong arguments or numbers, and with 1 where the model or a library cannot be loaded or run.
#include <ATen/ops/from_blob.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>
#include <optional>
#include <vector>

namespace {

constexpr const char* USAGE = "usage: run MODEL.pt2 STEPS BATCH INPUTS LIBRARY.so... < NUMBERS\n";

// A size, at least 1; nothing where the text is something else.
std::optional<int64_t> read_size(const char* text) {
  int64_t size = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, size);
  if (error != std::errc() || rest != end || size < 1 || size > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return size;
}

// All numbers of standard input; nothing where one of its words is no number.
std::optional<std::vector<float>> read_numbers() {
  std::vector<float> numbers;
  for (float number; std::cin >> number;) numbers.push_back(number);
  if (!std::cin.eof()) return std::nullopt;
  return numbers;
}

void print(const at::Tensor& result) {
  std::printf("#");
  for (const int64_t size : result.sizes()) std::printf(" %lld", static_cast<long long>(size));
  std::printf("\n");
  const at::Tensor values = result.to(at::kCPU, at::kFloat).contiguous();
  const int64_t width = values.dim() > 0 ? values.size(-1) : 1;
  const float* value = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) std::printf("%.9g%c", value[i], (i + 1) % width == 0 ? '\n' : ' ');
}

}  // namespace

int main(int count, char** given) {
  if (count < 5) return std::fputs(USAGE, stderr), 2;
  std::vector<int64_t> shape;
  for (int i = 2; i < 5; ++i) {
    const std::optional<int64_t> size = read_size(given[i]);
    if (!size) return std::fprintf(stderr, "'%s' is no size\n%s", given[i], USAGE), 2;
    shape.push_back(*size);
  }
  std::optional<std::vector<float>> numbers = read_numbers();
  if (!numbers) return std::fputs("what was read from standard input is not a number\n", stderr), 2;
  const uint64_t rows = uint64_t(shape[0]) * uint64_t(shape[1]);
  if (numbers->size() % rows != 0 || numbers->size() / rows != uint64_t(shape[2])) {
    std::fprintf(stderr, "expected %s * %s * %s numbers, got %zu\n", given[2], given[3], given[4], numbers->size());
    return 2;
  }

  // A library makes its ops known to torch when it is opened. This has to happen before a model that calls them is loaded. It
  // is never closed: torch keeps pointers to its functions.
  for (int i = 5; i < count; ++i) {
    if (!dlopen(given[i], RTLD_NOW)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  }
  try {
    torch::inductor::AOTIModelPackageLoader model(given[1]);
    // The device that the model was compiled for: "cpu" or "cuda".
    const at::Device device(model.get_metadata().at("AOTI_DEVICE_KEY"));
    const at::Tensor x = at::from_blob(numbers->data(), shape, at::kFloat).to(device);
    for (const at::Tensor& result : model.run({x})) print(result);
  } catch (const c10::Error& error) {
    return std::fprintf(stderr, "%s: %s\n", given[1], error.what_without_backtrace()), 1;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s: %s\n", given[1], error.what()), 1;
  }
}
