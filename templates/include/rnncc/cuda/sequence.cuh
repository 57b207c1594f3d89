// The driver of the alternating kernels. One launch runs a whole sequence, forward or backward, in one direction or in
// two side by side. A row of the grid of CTAs is a direction. Directions share nothing that they write.
//
// CTAs divide the units and the batch entries of every stage. They wait for each other only where the plan says that a
// stage reads what other CTAs wrote. Packed weights stay in shared memory as far as they fit; the rest streams from L2
// at each step.
#pragma once

#include "barrier.cuh"
#include "joint.cuh"
#include "pack.cuh"
#include "matrices.cuh"

namespace rnncc {

// The first tile and the first chunk of entries of a CTA in a stage. A CTA without work there has a `tile` beyond the
// last one.
struct Lane {
  int tile, chunk;
};

// The same with the tile itself, in shared memory. `lane` is the first tile's number.
struct OwnTile {
  int lane, chunk;
  Tile tile;
};

static_assert(sizeof(OwnTile) == OWN_TILE_BYTES, "the host makes room for them");

template <class R>
RNNCC_DEVICE OwnTile* own_tiles(const R& run) {
  return reinterpret_cast<OwnTile*>(run.shared + run.plan.shared.own);
}

RNNCC_DEVICE Lane lane_of(const StagePlan& plan) {
  const int lanes = plan.tile_lanes * plan.entry_lanes;
  if (int(blockIdx.x) >= lanes) return {plan.tiles, 0};
  return {int(blockIdx.x) % plan.tile_lanes, int(blockIdx.x) / plan.tile_lanes};
}

// The entry of element e within its chunk. A tile has one or two unit blocks.
RNNCC_DEVICE int entry_in_chunk(const StagePlan& plan, int e) { return e >> (plan.unit_blocks == 2 ? 4 : 3); }

// Element e of a tile and a chunk of entries. The units of an entry follow each other.
template <class R>
RNNCC_DEVICE Element element_of(const R& run, const StagePlan& plan, const Tile& tile, int chunk, int e) {
  const int units = plan.unit_blocks * UNIT_BLOCK, entries = plan.entry_blocks * ENTRY_BLOCK;
  Element at;
  at.unit = tile.begin + (e & (units - 1));
  at.entry = chunk * entries + entry_in_chunk(plan, e);
  at.head = tile.head;
  at.valid = at.unit < tile.end && at.entry < run.plan.batch && e < units * entries && run.has_rows(at.entry);
  // The compiler must not know that these are the same at each step: it would hold an address for every slot in
  // registers.
  asm volatile("" : "+r"(at.unit), "+r"(at.entry));
  return at;
}

constexpr int FEW_JOINTS = 4;

template <auto FUNCTION, class... Given>
__device__ __noinline__ auto call_apart(Given&&... given) {
  return FUNCTION(given...);
}

// Calls a function that works on one joint. Few joints have a copy of it each. More than that share one: their copies
// would take most of the time that the kernel compiles, and more instructions than an SM holds.
template <auto FUNCTION, class R, class... Given>
RNNCC_DEVICE auto call_per_joint(Given&&... given) {
  if constexpr (joints_of(R::Program::tables) > FEW_JOINTS)
    return call_apart<FUNCTION>(given...);
  else
    return FUNCTION(given...);
}

// Multiplies all joints of a stage from product p on. Returns where their sums are, with the distance between entries
// as `gap`. `slot` counts the CTA's tiles.
template <int stage, int p, class R>
RNNCC_DEVICE Sums contract(const R& run, const StagePlan& plan, int tile, int slot, int head, int entry, float* sums) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  if constexpr (p >= info.first_product + info.products) {
    return {sums, info.accumulators * plan.unit_blocks * UNIT_BLOCK, 1, 0};
  } else {
    if constexpr (joint_of(R::Program::tables, info.first_product, p) == p) {
      constexpr ProductInfo product = R::Program::tables.products[p];
      const JointPlan& joint = run.plan.joints[p];
      const int units = plan.unit_blocks * UNIT_BLOCK;
      const char* images = run.images() + entry * run.plan.image_row;
      const Pass pass = {run.plan.shared,
                         joint,
                         run.shared,
                         reinterpret_cast<const unsigned char*>(run.packed()) + joint.packed + tile * joint.tile_bytes,
                         run.shared + joint.shared + slot * joint.shared_tile,
                         images + (run.n & (RING - 1)) * run.plan.image_step,
                         images + ((run.n - 1) & (RING - 1)) * run.plan.image_step,
                         run.plan.image_row,
                         head,
                         sums + product.first * units,
                         info.accumulators * units};
      constexpr bool alone = joints_of(R::Program::tables, info.first_product, info.products) == 1;
      const Sums made = call_per_joint<contract_joint<typename R::Scalar, product.count, product.accumulate, alone>, R>(
          pass, plan.unit_blocks, plan.entry_blocks);
      __builtin_assume(__isShared(made.at));
      if constexpr (alone) return made;
    }
    return contract<stage, p + 1>(run, plan, tile, slot, head, entry, sums);
  }
}

// Whether the next stage, in this step or the next one, waits for other CTAs. Then this stage says when it is done.
template <int stage, class R>
constexpr bool is_awaited() {
  return R::Program::tables.stages[(stage + 1) % R::Program::tables.stage_count].barrier;
}

template <int stage, class F, class R>
RNNCC_DEVICE void tile_stage(R& run) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  const StagePlan& plan = run.plan.stages[stage];
  const OwnTile& own = own_tiles(run)[stage];
  const int thread = threadIdx.x;
  Tile tile = own.tile;
  Element at = {};
  typename F::Early early = {};
  if (own.lane < plan.tiles) {
    at = element_of(run, plan, tile, own.chunk, thread);
    if (at.valid) early = F::early(run, at);
  }
  if constexpr (info.barrier) wait(run.own.barrier, run.arrived);
  const int units = plan.unit_blocks * UNIT_BLOCK, entries = plan.entry_blocks * ENTRY_BLOCK;
  float* scratch = reinterpret_cast<float*>(run.shared + run.plan.shared.sums);
  typename F::Kept held = {};
  Element held_at = {};
  bool fresh = true;  // `tile`, `at` and `early` are set already
  int slot = 0;
  for (int t = own.lane; t < plan.tiles; t += plan.tile_lanes, ++slot) {
    if (slot > 0) tile = tile_of(plan, t);
    for (int chunk = own.chunk; chunk < plan.entry_chunks; chunk += plan.entry_lanes) {
      if (!fresh) {
        at = element_of(run, plan, tile, chunk, thread);
        if (at.valid) early = F::early(run, at);
      }
      fresh = false;
      typename F::Late late = {};
      if (at.valid) late = F::late(run, at);
      if constexpr (info.products > 0) {
        if (slot > 0 || chunk != own.chunk) __syncthreads();  // the sums of the tile before were read
      }
      const Sums sums = contract<stage, info.first_product>(run, plan, t, slot, tile.head, chunk * entries, scratch);
      for (int e = thread;;) {
        if (at.valid) {
          if (held_at.valid) F::store_rest(run, held_at, held);
          const float* first = sums.at + entry_in_chunk(plan, e) * sums.gap + (e & (units - 1));
          held = F::compute(run, at, early, late, Sums{first, units, sums.warps, sums.warp_gap});
          held_at = at;
        }
        e += THREADS;
        if (e >= units * entries) break;
        at = element_of(run, plan, tile, chunk, e);
        if (at.valid) {
          early = F::early(run, at);
          late = F::late(run, at);
        }
      }
    }
  }
  if constexpr (is_awaited<stage, R>()) {
    arrive(run.own.barrier, run.arrived);
  } else {
    __syncthreads();  // shared memory is free again
  }
  // Nobody waits for these stores, so they come last.
  if (held_at.valid) F::store_rest(run, held_at, held);
}

template <int stage, class R>
RNNCC_DEVICE void row_stage(R& run) {
  constexpr StageInfo info = R::Program::tables.stages[stage];
  if constexpr (info.barrier) wait(run.own.barrier, run.arrived);
  float* scratch = reinterpret_cast<float*>(run.shared + run.plan.shared.warps);
  for (int entry = blockIdx.x; entry < run.plan.batch; entry += gridDim.x)
    if (run.has_rows(entry)) row_or_elements<stage>(run, entry, scratch);
  if constexpr (is_awaited<stage, R>()) {
    arrive(run.own.barrier, run.arrived);
  } else {
    __syncthreads();
  }
}

template <int stage, class R>
RNNCC_DEVICE void run_stages(R& run) {
  if constexpr (stage < R::Program::tables.stage_count) {
    if constexpr (R::Program::tables.stages[stage].row != RowOperator::none)
      row_stage<stage>(run);
    else
      tile_stage<stage, stage_of<typename R::Program, stage>>(run);
    run_stages<stage + 1>(run);
  }
}

// Packs the weights of all stages from `stage` on. CTAs divide the tiles.
template <int stage, int p, class R>
RNNCC_DEVICE void pack(const R& run) {
  if constexpr (stage < R::Program::tables.stage_count) {
    constexpr StageInfo info = R::Program::tables.stages[stage];
    if constexpr (p < info.first_product + info.products) {
      if constexpr (joint_of(R::Program::tables, info.first_product, p) == p) {
        using S = typename R::Scalar;
        const JointPlan& joint = run.plan.joints[p];
        for (int tile = blockIdx.x; tile < run.plan.stages[stage].tiles; tile += gridDim.x) {
          call_per_joint<pack_tile<S>, R>(run.plan.products, p, run.plan.stages[stage], run.own.matrices, tile,
                                          reinterpret_cast<S*>(run.packed() + joint.packed + tile * joint.tile_bytes));
        }
      }
      pack<stage, p + 1>(run);
    } else if constexpr (stage + 1 < R::Program::tables.stage_count) {
      pack<stage + 1, R::Program::tables.stages[stage + 1].first_product>(run);
    }
  }
}

// Loads the weights that stay in shared memory.
template <int stage, int p, class R>
RNNCC_DEVICE void settle(const R& run) {
  if constexpr (stage < R::Program::tables.stage_count) {
    constexpr StageInfo info = R::Program::tables.stages[stage];
    if constexpr (p < info.first_product + info.products) {
      if constexpr (joint_of(R::Program::tables, info.first_product, p) == p) {
        using S = typename R::Scalar;
        const JointPlan& joint = run.plan.joints[p];
        const StagePlan& plan = run.plan.stages[stage];
        const int chunk = R::Program::tables.products[p].count * plan.unit_blocks * BLOCK_BYTES<S> / 16;
        call_per_joint<place_chunks<S>, R>(run.plan.products, p, run.plan.image_places,
                                           reinterpret_cast<ChunkPlace*>(run.shared + joint.table));
        const Lane lane = lane_of(plan);
        int slot = 0;
        for (int tile = lane.tile; tile < plan.tiles; tile += plan.tile_lanes, ++slot) {
          const uint4* from = reinterpret_cast<const uint4*>(run.packed() + joint.packed + tile * joint.tile_bytes);
          uint4* to = reinterpret_cast<uint4*>(run.shared + joint.shared + slot * joint.shared_tile);
          for (int i = threadIdx.x; i < WARPS * joint.resident * chunk; i += THREADS) {
            const int warp = i / (joint.resident * chunk), within = i % (joint.resident * chunk);
            const int64_t source = int64_t(warp) * joint.per_warp * chunk + within;
            if (source < int64_t(joint.chunks) * chunk) to[i] = from[source];
          }
        }
      }
      settle<stage, p + 1>(run);
    } else if constexpr (stage + 1 < R::Program::tables.stage_count) {
      settle<stage + 1, R::Program::tables.stages[stage + 1].first_product>(run);
    }
  }
}

// Makes the images of initial values, which are operands of the first step.
template <int p, class R>
RNNCC_DEVICE void initial_images(const R& run) {
  if constexpr (p < R::Program::tables.product_count) {
    constexpr ProductInfo product = R::Program::tables.products[p];
    if constexpr (R::Program::tables.slots[product.operand].kind == Kind::previous) {
      using S = typename R::Scalar;
      const ImagePlace& image = run.plan.image_places[product.image];
      const SlotPlace& place = place_of<product.operand>(run);
      const int64_t width = run.plan.dims[R::Program::tables.slots[product.operand].width],
                    all = width * run.plan.batch;
      for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < all; i += int64_t(gridDim.x) * THREADS) {
        const int64_t entry = i / width, unit = i % width;
        const int64_t at = image.blocks > 1 ? unit / image.depth * image.padded + unit % image.depth : unit;
        char* row = run.images() + image.offset + (RING - 1) * run.plan.image_step + entry * run.plan.image_row;
        reinterpret_cast<S*>(row)[at] = from_float<S>(global<const float>(place.base)[entry * place.row + unit]);
      }
    }
    initial_images<p + 1>(run);
  }
}

template <int f, class R>
RNNCC_DEVICE void finals(const R& run) {
  if constexpr (f < R::Program::tables.final_count) {
    constexpr int slot = R::Program::tables.finals[f].slot;
    const OutputPlace& place = run.own.finals[f];
    const int64_t width = run.plan.dims[R::Program::tables.slots[slot].width],
                  all = place.base ? width * run.plan.batch : 0;
    for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < all; i += int64_t(gridDim.x) * THREADS) {
      const int entry = int(i / width);
      R end = run;
      end.n = run.steps_of(entry);
      global<float>(place.base)[entry * place.row + i % width] = load<slot>(end, entry, i % width);
    }
    finals<f + 1>(run);
  }
}

// Copies the CTA's direction to the beginning of shared memory, a place that the compiler knows. Each step takes
// addresses from it. To take them from the parameter by an index made a step of an LSTM some 0.4 us longer.
template <class P>
RNNCC_DEVICE const Direction<P>& own_direction(const Arguments<P>& plan, unsigned char* shared) {
  static_assert(sizeof(Direction<P>) == direction_bytes(P::tables), "the host makes room for it");
  const int64_t* from = reinterpret_cast<const int64_t*>(plan.directions + blockIdx.y);
  int64_t* to = reinterpret_cast<int64_t*>(shared);
  for (int i = threadIdx.x; i < int(sizeof(Direction<P>) / sizeof *to); i += THREADS) to[i] = from[i];
  __syncthreads();
  return *reinterpret_cast<const Direction<P>*>(shared);
}

template <class P, class S>
RNNCC_DEVICE void run_sequence(const Arguments<P>& plan) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const Direction<P>& own = own_direction(plan, shared_memory);
  Run<P, S> run = {plan, own, shared_memory, 0, 0, 0};
  pack<0, P::tables.stages[0].first_product>(run);
  initial_images<0>(run);
  grid_barrier(own.barrier, run.arrived);
  settle<0, P::tables.stages[0].first_product>(run);
  if (threadIdx.x < P::tables.stage_count) {
    const StagePlan& stage = plan.stages[threadIdx.x];
    const Lane lane = lane_of(stage);
    own_tiles(run)[threadIdx.x] = {lane.tile, lane.chunk, tile_of(stage, lane.tile)};
  }
  if constexpr (P::tables.stages[0].barrier) {
    arrive(own.barrier, run.arrived);
  } else {
    __syncthreads();
  }
  for (run.n = 0; run.n < plan.steps; ++run.n) {
    run.t = run.time(run.n);
    run_stages<0>(run);
  }
  if constexpr (P::tables.stages[0].barrier) wait(own.barrier, run.arrived);
  grid_barrier(own.barrier, run.arrived);
  finals<0>(run);
}

}  // namespace rnncc
