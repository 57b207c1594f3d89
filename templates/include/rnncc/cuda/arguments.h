// What a kernel is told about a call: one parameter, written by the host (run.h) and read by the device (sequence.cuh).
// Only entries of eight bytes and their multiples, so that the arrays follow each other without gaps.
#pragma once

#include "../core/tables.h"

namespace rnncc {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int RING = 4;          // steps that a value of the workspace lives; two threads are less than one step apart
constexpr int UNIT_BLOCK = 8;    // units of one tensor-core operand: tiles are one or two of them
constexpr int ENTRY_BLOCK = 16; // batch columns of the other operand: a CTA works on one or two of them at a time
constexpr int CHUNK = 32;        // terms of a product that one load of 16-bit operands brings

// Where slot values lie: element (step index, column, unit) at base + index * step + column * row + unit, of the slot's
// element type. Of an edge: what stands in beyond the loop, [B, width]. `ring`: indexed by the number of the step, else by t.
// In packed tensors, which are no ring, a column has rows of its own (place.cuh).
struct SlotPlace {
  void* base;
  int64_t step;
  int64_t row;
  int64_t ring;
};

// A further tensor [T, B, ...] that takes a stored slot; null where it is not wanted.
struct OutputPlace {
  void* base;
  int64_t step;
  int64_t row;
};

// A slot for products: element (step, column, block, unit) at images + offset + (step % RING) * image_step + column *
// image_row + (block * padded + unit) elements. Rows and units beyond the slot's are zero.
struct ImagePlace {
  int64_t offset;
  int64_t blocks;
  int64_t depth;
  int64_t padded;
};

// Where a chunk of a product's operand is, as each CTA keeps it in shared memory: in units of 16 bytes from the image
// step, and what a head adds. The highest bit of `head`: of the step before.
struct ChunkPlace {
  uint32_t offset;
  uint32_t head;
};

// How a tile stage is divided. Tiles of `unit_blocks` * UNIT_BLOCK units go to `tile_lanes` groups of CTAs, batch columns
// in chunks of `entry_blocks` * ENTRY_BLOCK to `entry_lanes` CTAs of a group. Depends on width, blocks, batch and GPU
// only: what a thread wrote in one stage it finds itself in the next of the same width.
struct StagePlan {
  int32_t blocks, heads;
  int32_t depth;  // units of a block
  int32_t unit_blocks, tiles_per_block, tiles, tile_lanes;
  int32_t entry_blocks, entry_chunks, entry_lanes;
};

// Products that add to the same sums. Their weights lie packed, tile by tile, chunk by chunk, unit block by unit block;
// warp w takes chunks [w * per_warp, ...), of which the first `resident` stay in shared memory.
struct JointPlan {
  int64_t packed;       // bytes from the start of the packed weights
  int64_t tile_bytes;   // of one tile there
  int32_t shared;       // bytes from the start of shared memory
  int32_t shared_tile;  // bytes of one tile there
  int32_t chunks, per_warp, resident;
  int32_t table;  // bytes from the start of shared memory: the chunks' places
};

// Element (row r of a tile, term k of a part) of a product's matrix is found through `row_length`, `depth` and `blocks`
// (pack.cuh). `joint`: the first product that adds to the same sums.
struct ProductPlan {
  int32_t parts, heads;   // of the operand: 1 and 1 where the matrix is dense
  int32_t depth;          // terms of a part
  int32_t chunks;         // of a part
  int64_t row_length;     // of the matrix as stored
  int32_t image, matrix;  // indices; `matrix`: the first
  int32_t joint, count;
  int32_t previous;    // the operand is the image of the step before
  int32_t more;        // products of the joint that follow
  int32_t transposed, unused;
};

// Offsets of the parts of shared memory, which begins with the CTA's direction: sums of a tile, a CTA's own tiles, and
// `warp_bytes` for each warp, which hold first its weights on their way and (from `staging` on) its operands, then its partial
// sums.
struct Shared {
  int32_t sums, own;
  int32_t warps, warp_bytes, staging, unused;
};

// The first product of its stage that adds to the same sums as product p.
constexpr int joint_of(const Tables& tables, int first, int p) {
  for (int q = first; q < p; ++q) {
    if (tables.products[q].first == tables.products[p].first && tables.products[q].count == tables.products[p].count) return q;
  }
  return p;
}

// Joints among `count` products from `first` on.
constexpr int joints_of(const Tables& tables, int first, int count) {
  int joints = 0;
  for (int p = first; p < first + count; ++p) joints += joint_of(tables, first, p) == p;
  return joints;
}

// Bytes of one chunk of one unit block of packed weights.
constexpr int block_bytes(int scalar_bytes) { return UNIT_BLOCK * CHUNK * scalar_bytes; }

// Unit blocks, of those left, whose sums a warp holds in registers at once.
constexpr int pass_blocks(int left, int entry_blocks, int scalar_bytes) {
  const int most = (scalar_bytes == 4 ? 4 : 8) / entry_blocks;
  return left < most ? left : most;
}

// Distance of a warp's partial sums of two columns: an offset of 8 banks a column keeps stores of a warp apart.
constexpr int partial_row(int unit_blocks) { return UNIT_BLOCK * unit_blocks + (unit_blocks % 2 == 0 ? 8 : 0); }

// Bytes of shared memory in which a warp turns its operands around; 16-bit ones need none.
constexpr int staging_bytes(int scalar_bytes, int entry_blocks) {
  return scalar_bytes == 4 ? entry_blocks * ENTRY_BLOCK * CHUNK * scalar_bytes : 0;
}

constexpr int OWN_TILE_BYTES = 24;
constexpr int STREAMED = 2;  // chunks of float weights that are not resident on their way to a warp

constexpr int at_least_one(int count) { return count > 0 ? count : 1; }

// Stored slots below `slot` that the products and sums after the loop read: the place of a slot among the records.
constexpr int records_before(const Tables& tables, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += tables.slots[s].kind == Kind::stored && tables.slots[s].kept;
  return count;
}

// Whether a slot's values lie somewhere of their own; those of a stored one may only go to its destinations.
constexpr bool has_place(const SlotInfo& slot) {
  return slot.kind == Kind::stored ? slot.read : slot.kind != Kind::view && slot.kind != Kind::tile;
}

// Such slots below `slot`: its place among them.
constexpr int places_before(const Tables& tables, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += has_place(tables.slots[s]);
  return count;
}

// `starts`, `rows`, `lengths`: as Extents (packed.cuh).
struct Header {
  int64_t steps, batch, heads;
  const int64_t* starts;
  int64_t rows;
  const int64_t* lengths;
  int64_t image_step, image_row;  // bytes
  Shared shared;
};

// What the directions of a launch have in common: the division of their work, and all sizes. P::tables are the program's
// tables.
template <class P>
struct Common : Header {
  ImagePlace image_places[at_least_one(P::tables.image_count)];
  StagePlan stages[at_least_one(P::tables.stage_count)];
  JointPlan joints[at_least_one(P::tables.product_count)];
  ProductPlan products[at_least_one(P::tables.product_count)];
  int64_t dims[at_least_one(P::tables.dim_count)];
  float constants[(at_least_one(P::tables.constant_count) + 1) / 2 * 2];
};

// `barrier` is zero at the launch.
struct DirectionHeader {
  int64_t descending;
  uint32_t* barrier;
  char* packed;
  char* images;
};

// One direction: its order, its tensors and its workspace. `records`: tensors [T, B, width] of what the products after the
// loop read.
template <class P>
struct Direction : DirectionHeader {
  SlotPlace places[at_least_one(places_before(P::tables, P::tables.slot_count))];
  OutputPlace outputs[at_least_one(P::tables.destination_count)];
  OutputPlace records[at_least_one(records_before(P::tables, P::tables.slot_count))];
  const void* matrices[at_least_one(P::tables.product_matrix_count)];
  OutputPlace finals[at_least_one(P::tables.final_count)];
};

// Its size, by the host.
constexpr int64_t direction_bytes(const Tables& tables) {
  return sizeof(DirectionHeader) + at_least_one(places_before(tables, tables.slot_count)) * sizeof(SlotPlace) +
         at_least_one(tables.destination_count) * sizeof(OutputPlace) +
         at_least_one(records_before(tables, tables.slot_count)) * sizeof(OutputPlace) +
         at_least_one(tables.final_count) * sizeof(OutputPlace) +
         at_least_one(tables.product_matrix_count) * sizeof(void*);
}

// Directions that a kernel can run side by side: two, where its parameter is not larger then than what every toolkit takes.
constexpr int64_t PARAMETER_BYTES = 4096;
constexpr int most_directions(int64_t common, int64_t direction) { return common + 2 * direction <= PARAMETER_BYTES ? 2 : 1; }

template <class P>
struct Arguments : Common<P> {
  static constexpr int DIRECTIONS = most_directions(sizeof(Common<P>), sizeof(Direction<P>));
  Direction<P> directions[DIRECTIONS];
};

}  // namespace rnncc
