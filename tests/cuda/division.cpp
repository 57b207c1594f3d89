// C functions over rnncc/cuda/schedule.h and the kernel's parameter, of the LSTM's backward, for tests.
#include "rnncc/cuda/run.h"

#include "lstm_tables.h"

using namespace rnncc;

namespace {
struct Program {
  static constexpr Tables tables = lstm_0_masked_backward::tables;
};

Schedule divided(int64_t head_dim, int64_t heads, int64_t batch, int scalar_bytes, int sms, int directions) {
  Gpu gpu;
  gpu.sms = sms;
  gpu.shared_bytes = 227 * 1024;
  const int64_t sizes[] = {3, head_dim * heads, heads};
  std::vector<int64_t> dims(Program::tables.dim_count);
  Program::tables.dims(sizes, heads, dims.data());
  return make_schedule(Program::tables, dims.data(), batch, scalar_bytes, gpu, directions);
}
}  // namespace

extern "C" {
// How one of two directions is divided, and one alone: CTAs, bytes of shared memory, and of each joint the chunks of a
// warp; whether two launches are no quicker.
int64_t divide(int64_t head_dim, int64_t heads, int64_t batch, int scalar_bytes, int sms, int64_t* half,
               int64_t* whole) {
  const Schedule schedules[] = {divided(head_dim, heads, batch, scalar_bytes, sms, 2),
                                divided(head_dim, heads, batch, scalar_bytes, sms, 1)};
  for (int i = 0; i < 2; ++i) {
    int64_t* const result = i == 0 ? half : whole;
    *result = schedules[i].ctas;
    result[1] = schedules[i].shared_bytes;
    for (int p = 0; p < Program::tables.product_count; ++p) result[2 + p] = schedules[i].joints[p].per_warp;
  }
  return is_as_quick(schedules[0], schedules[1]);
}

// How a stage is divided: the fields of _Division in rnncc/stages/schedule/alternating.py.
void divide_stage(int64_t head_dim, int64_t heads, int64_t batch, int sms, int64_t* fields) {
  StageInfo stage = {};
  stage.width = 0, stage.blocks = 1, stage.parts = 1;
  const int64_t dims[] = {head_dim * heads, heads};
  const StagePlan plan = plan_stage(stage, dims, batch, sms);
  fields[0] = plan.unit_blocks, fields[1] = ceil_divide(plan.tiles, plan.tile_lanes);
  fields[2] = plan.entry_blocks, fields[3] = ceil_divide(plan.entry_chunks, plan.entry_lanes);
}

// Bytes of a direction on the device, and of shared memory up to what the host puts after it.
void direction(int64_t* device, int64_t* host) {
  *device = sizeof(Direction<Program>);
  *host = divided(64, 1, 16, 2, 132, 1).shared.sums;
}

// Bytes of the parameter up to the second direction and to its end, as the device has it and as the host does.
void layout(int64_t* device, int64_t* host) {
  using A = Arguments<Program>;
  static_assert(A::DIRECTIONS == 2);
  const A arguments = {};
  const char* const start = reinterpret_cast<const char*>(&arguments);
  const Direction<Program>& second = arguments.directions[1];
  const char* const parts[] = {
      reinterpret_cast<const char*>(arguments.constants), reinterpret_cast<const char*>(&second),
      reinterpret_cast<const char*>(second.places),       reinterpret_cast<const char*>(second.outputs),
      reinterpret_cast<const char*>(second.records),      reinterpret_cast<const char*>(second.matrices),
      reinterpret_cast<const char*>(second.finals)};
  for (const char* part : parts) *device++ = part - start;
  ArgumentBuffer buffer(Program::tables);
  const ArgumentBuffer::OfDirection& other = buffer.directions.at(1);
  const void* const filled[] = {buffer.constants, other.header,   other.places, other.outputs,
                                other.records,    other.matrices, other.finals};
  for (const void* part : filled) *host++ = static_cast<const char*>(part) - static_cast<const char*>(buffer.data());
}
}
