// C functions over rnncc/cuda/head_norm.cuh for tests, on the CPU: every thread of a launch runs (device.h), in place of
// the kernels of templates/cuda/head_norm.cu.j2.
#include "rnncc/cuda/head_norm_op.h"
#include "rnncc/cuda/device.h"

inline float rsqrtf(float x) { return 1 / sqrtf(x); }

#include "rnncc/cuda/head_norm.cuh"

namespace {

using rnncc::HeadNormCall;
using rnncc::HeadNormSums;

template <class Call, void (*kernel)(const Call&)>
void launch(const Call& call, int64_t ctas, int y, int threads, int shared) {
  const auto run = [](const void* given) { kernel(*static_cast<const Call*>(given)); };
  emulated::launch({int(ctas), y, 1, threads, shared, 1}, run, &call);
}

template <class Value, class Result>
void run(HeadNormCall& call, HeadNormSums& sums, int64_t ctas_at_once, int64_t least_turns) {
  rnncc::choose_team(call, sizeof(Value), sizeof(Result));
  const int64_t ctas = rnncc::take_turns(call, ctas_at_once, least_turns);
  if (!call.d_normalised)
    return launch<HeadNormCall, rnncc::head_norm<Value, Result>>(call, ctas, 1, call.threads, rnncc::HEAD_NORM_SHARED);
  std::vector<float> partials(call.rows_at_once * 2 * sums.width, NAN);
  call.partials = partials.data();
  launch<HeadNormCall, rnncc::head_norm_backward<Value, Result>>(call, ctas, 1, call.threads, rnncc::HEAD_NORM_SHARED);
  sums.partials = partials.data();
  sums.parts = call.rows_at_once;
  launch<HeadNormSums, rnncc::head_norm_sums<Result>>(sums, (sums.width + 31) / 32, 2, 32 * rnncc::HEAD_NORM_SUM_WARPS,
                                                      rnncc::HEAD_NORM_SUM_SHARED);
}

}  // namespace

// `tensors`: value, weight, bias, normalised, d_normalised, d_value, means, scales, d_weight, d_bias. `numbers`: rows,
// heads, k, head_dim, CTAs at once, least turns. The dtype of value and result: 0 float32, 1 bfloat16, 2 bfloat16 and
// float32, 3 float16, 4 float16 and float32. `team`: gets the team, the turns and whether pieces are aligned. Returns
// what went wrong, or null.
extern "C" const char* head_norm(void** tensors, const int64_t* numbers, float epsilon, int64_t dtype, int64_t* team) {
  static std::string problem;
  HeadNormCall call = {};
  call.value = tensors[0];
  call.weight = tensors[1];
  call.bias = tensors[2];
  call.normalised = tensors[3];
  call.d_normalised = tensors[4];
  call.d_value = tensors[5];
  call.means = static_cast<float*>(tensors[6]);
  call.scales = static_cast<float*>(tensors[7]);
  call.rows = numbers[0];
  call.heads = int32_t(numbers[1]);
  call.k = int32_t(numbers[2]);
  call.head_dim = int32_t(numbers[3]);
  call.epsilon = epsilon;
  call.reciprocal = 1.0f / float(call.k * call.head_dim);
  HeadNormSums sums = {nullptr, tensors[8], tensors[9], 0, numbers[1] * numbers[2] * numbers[3]};
  const auto runs = {run<float, float>, run<rnncc::bfloat16, rnncc::bfloat16>, run<rnncc::bfloat16, float>,
                     run<rnncc::float16, rnncc::float16>, run<rnncc::float16, float>};
  try {
    runs.begin()[dtype](call, sums, numbers[4], numbers[5]);
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
  team[0] = call.team;
  team[1] = call.turns;
  team[2] = call.aligned;
  return nullptr;
}
