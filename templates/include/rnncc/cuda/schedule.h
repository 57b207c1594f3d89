// How a GPU divides the work of a loop: tiles, batch entries, and which weights stay in shared memory.
#pragma once

#include <algorithm>

#include "arguments.h"
#include "module.h"

namespace rnncc {

constexpr int64_t SHARED_PART = 128;  // each part of shared memory begins at a multiple of it

inline int64_t ceil_divide(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
inline int64_t round_up(int64_t n, int64_t unit) { return ceil_divide(n, unit) * unit; }

// The parts of a product's operand; 1 where the matrix is dense.
inline int32_t operand_parts(const Tables& tables, const ProductInfo& product, const int64_t* dims) {
  const MatrixInfo& matrix = tables.matrices[tables.product_matrices[product.matrix]];
  return dims[matrix.blocks] == 1 ? 1 : product.parts;
}

inline StagePlan plan_stage(const StageInfo& stage, const int64_t* dims, int64_t batch, int sms) {
  StagePlan plan = {};
  plan.heads = int32_t(dims[stage.blocks]);
  plan.blocks = plan.heads == 1 ? 1 : stage.parts * plan.heads;
  plan.depth = int32_t(dims[stage.width] / plan.blocks);
  const int64_t unit_blocks = ceil_divide(plan.depth, UNIT_BLOCK);
  plan.unit_blocks = unit_blocks * plan.blocks > sms ? 2 : 1;
  plan.tiles_per_block = int32_t(ceil_divide(unit_blocks, plan.unit_blocks));
  plan.tiles = plan.blocks * plan.tiles_per_block;
  const int64_t entry_blocks = ceil_divide(batch, ENTRY_BLOCK);
  // Wide chunks use each weight for more entries. Narrow chunks give every SM something to do.
  plan.entry_blocks = entry_blocks > 1 && plan.tiles * entry_blocks > sms ? 2 : 1;
  plan.entry_chunks = int32_t(ceil_divide(entry_blocks, plan.entry_blocks));
  plan.tile_lanes = std::min(plan.tiles, sms);
  plan.entry_lanes = std::max(1, std::min(plan.entry_chunks, sms / plan.tile_lanes));
  return plan;
}

// The work of the busiest CTA: its unit blocks times its entry blocks.
inline int64_t busiest_work(const StagePlan& plan) {
  return ceil_divide(plan.tiles, plan.tile_lanes) * plan.unit_blocks *
         ceil_divide(plan.entry_chunks, plan.entry_lanes) * plan.entry_blocks;
}

struct Schedule {
  std::vector<StagePlan> stages;
  std::vector<JointPlan> joints;
  std::vector<ProductPlan> products;
  Shared shared = {};
  int64_t packed_bytes = 0;
  int32_t shared_bytes = 0;
  int32_t ctas = 1;  // CTAs per direction
  // The work of the busiest CTA per stage: in a tile stage unit blocks times entry blocks, in a row stage rows.
  std::vector<int64_t> work;
  bool streams = false;  // whether some weights have no room in shared memory and come from L2 at each step
  int32_t entry_multiple = ENTRY_BLOCK;  // images have rows for a multiple of so many entries
};

// The unit blocks of a joint's tile, of all its matrices together.
inline int32_t joint_blocks(const Tables& tables, const StagePlan& stage, int p) {
  return tables.products[p].count * stage.unit_blocks;
}

// Fills in the products of stage s, and the chunks of its joints.
inline void plan_products(Schedule& schedule, const Tables& tables, int s, const int64_t* dims, int scalar_bytes) {
  const StageInfo& stage = tables.stages[s];
  for (int p = stage.first_product; p < stage.first_product + stage.products; ++p) {
    const ProductInfo& info = tables.products[p];
    const MatrixInfo& matrix = tables.matrices[tables.product_matrices[info.matrix]];
    ProductPlan& product = schedule.products[p];
    product.heads = int32_t(dims[matrix.blocks]);
    product.parts = operand_parts(tables, info, dims);
    product.row_length = dims[matrix.columns] / product.heads;
    product.depth =
        int32_t((info.transposed ? dims[matrix.rows] : dims[matrix.columns]) / (product.parts * product.heads));
    product.chunks = int32_t(ceil_divide(product.depth, CHUNK));
    product.image = info.image;
    product.matrix = info.matrix;
    product.joint = joint_of(tables, stage.first_product, p);
    product.count = info.count;
    product.previous = tables.slots[info.operand].kind == Kind::previous;
    product.transposed = info.transposed;
    schedule.joints[product.joint].chunks += product.parts * product.chunks;
    if (product.joint != p) ++schedule.products[product.joint].more;
  }
  for (int p = stage.first_product; p < stage.first_product + stage.products; ++p) {
    const int joint = schedule.products[p].joint;
    if (joint == p) continue;
    int later = 0;
    for (int q = p + 1; q < stage.first_product + stage.products; ++q)
      later += joint_of(tables, stage.first_product, q) == joint;
    schedule.products[p].more = later;
  }
  for (int p = stage.first_product; p < stage.first_product + stage.products; ++p) {
    if (schedule.products[p].joint != p) continue;
    JointPlan& joint = schedule.joints[p];
    joint.per_warp = int32_t(ceil_divide(joint.chunks, WARPS));
    joint.tile_bytes = int64_t(joint.chunks) * joint_blocks(tables, schedule.stages[s], p) * block_bytes(scalar_bytes);
    joint.packed = schedule.packed_bytes;
    schedule.packed_bytes += joint.tile_bytes * schedule.stages[s].tiles;
  }
}

// Lays out shared memory: the CTA's direction, sums, own tiles, the warps' parts, the places of chunks, and weights as
// far as they fit. The same fraction of the weights stays there for each warp and joint. All but the weights may need
// more than is available; the launch then fails.
inline void plan_shared(Schedule& schedule, const Tables& tables, int scalar_bytes, int available) {
  int64_t sums = 0, partial = 128, staging = 0, streamed = 0, places = 0, weights = 0, used = 0;
  const auto each_joint = [&](const auto& visit) {
    for (int s = 0; s < tables.stage_count; ++s) {
      for (int p = tables.stages[s].first_product; p < tables.stages[s].first_product + tables.stages[s].products;
           ++p) {
        if (schedule.products[p].joint == p) visit(schedule.stages[s], tables.stages[s], p, schedule.joints[p]);
      }
    }
  };
  each_joint([&](const StagePlan& plan, const StageInfo& stage, int p, JointPlan& joint) {
    const int64_t entries = plan.entry_blocks * ENTRY_BLOCK;
    const int all = joint_blocks(tables, plan, p), blocks = pass_blocks(all, plan.entry_blocks, scalar_bytes);
    sums = std::max(sums, entries * stage.accumulators * plan.unit_blocks * UNIT_BLOCK * 4);
    for (int b = 1; b <= blocks; ++b) partial = std::max(partial, entries * partial_row(b) * 4);
    if (scalar_bytes == 4) streamed = std::max<int64_t>(streamed, STREAMED * blocks * block_bytes(scalar_bytes));
    staging = std::max<int64_t>(staging, staging_bytes(scalar_bytes, plan.entry_blocks));
    places += round_up(joint.chunks * int64_t(sizeof(ChunkPlace)), SHARED_PART);
    weights += ceil_divide(plan.tiles, plan.tile_lanes) * WARPS * joint.per_warp * all * block_bytes(scalar_bytes);
  });
  const auto take = [&](int64_t bytes) {
    const int64_t at = used;
    used += round_up(bytes, SHARED_PART);
    return int32_t(at);
  };
  Shared& shared = schedule.shared;
  take(direction_bytes(tables));
  shared.sums = take(sums);
  shared.own = take(tables.stage_count * OWN_TILE_BYTES);
  // Where all weights fit, none is on its way, and no room is needed for that.
  const int64_t fixed = used + places;
  if (fixed + WARPS * std::max(partial, round_up(staging, SHARED_PART)) + weights <= available) streamed = 0;
  shared.staging = int32_t(streamed);
  shared.warp_bytes = int32_t(round_up(std::max(partial, streamed + staging), SHARED_PART));
  shared.warps = take(WARPS * shared.warp_bytes);
  const int64_t room =
      available - used - places;  // chunks of weights need no rounding: they are multiples of SHARED_PART
  const double fraction = weights > 0 ? std::clamp(double(room) / double(weights), 0.0, 1.0) : 1.0;
  schedule.streams = fraction < 1.0;
  each_joint([&](const StagePlan& plan, const StageInfo&, int p, JointPlan& joint) {
    joint.table = take(joint.chunks * int64_t(sizeof(ChunkPlace)));
    joint.resident = int32_t(fraction * joint.per_warp);
    joint.shared_tile = WARPS * joint.resident * joint_blocks(tables, plan, p) * block_bytes(scalar_bytes);
    joint.shared = take(ceil_divide(plan.tiles, plan.tile_lanes) * joint.shared_tile);
  });
  schedule.shared_bytes = int32_t(used);
}

// Divides the work of one of so many directions side by side. Each has its share of the SMs.
inline Schedule make_schedule(const Tables& tables, const int64_t* dims, int64_t batch, int scalar_bytes,
                              const Gpu& gpu, int directions) {
  const int sms = std::max(1, gpu.sms / directions);
  Schedule schedule;
  schedule.stages.resize(tables.stage_count);
  schedule.joints.resize(tables.product_count);
  schedule.products.resize(tables.product_count);
  for (int s = 0; s < tables.stage_count; ++s) {
    StagePlan& plan = schedule.stages[s] = plan_stage(tables.stages[s], dims, batch, sms);
    const bool rows = tables.stages[s].row != RowOperator::none;
    const int64_t ctas = rows ? std::min<int64_t>(batch, sms) : plan.tile_lanes * plan.entry_lanes;
    schedule.ctas = std::max(schedule.ctas, int32_t(ctas));
    schedule.work.push_back(rows ? ceil_divide(batch, sms) : busiest_work(plan));
    if (!rows) schedule.entry_multiple = std::max(schedule.entry_multiple, plan.entry_blocks * ENTRY_BLOCK);
    plan_products(schedule, tables, s, dims, scalar_bytes);
  }
  plan_shared(schedule, tables, scalar_bytes, gpu.shared_bytes);
  return schedule;
}

// Whether two directions side by side, each divided by `half`, take no longer than one after the other, each divided by
// `whole`. Side by side both wait at the same time, and waits are most of a small loop's step. So it is enough that no
// CTA has more than twice the work, and that all weights of both stay in shared memory.
inline bool is_as_quick(const Schedule& half, const Schedule& whole) {
  const auto at_most_twice = [](int64_t a, int64_t b) { return a <= 2 * b; };
  return !half.streams && std::equal(half.work.begin(), half.work.end(), whole.work.begin(), at_most_twice);
}

}  // namespace rnncc
