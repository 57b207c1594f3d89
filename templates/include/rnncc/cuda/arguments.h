// The parameter of an alternating kernel: the host writes it (direction.h), and the device reads it (sequence.cuh).
// Sizes of all members are multiples of eight bytes, so that the arrays follow each other without gaps.
#pragma once

#include "../core/tables.h"

namespace rnncc {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int RING = 4;          // steps for which a value of the workspace lives; threads are less than one step apart
constexpr int UNIT_BLOCK = 8;    // units of one tensor-core operand; a tile has one or two unit blocks
constexpr int ENTRY_BLOCK = 16;  // batch entries of the other operand; a CTA works on one or two entry blocks at a time
constexpr int CHUNK = 32;        // terms of a product that one load of 16-bit operands brings

// Where the values of a slot lie. Element (step, entry, unit) stands at base + step * `step` + entry * `row` + unit,
// counted in elements of the slot's type. In a ring the step is its number modulo RING, elsewhere its place t. The
// place of an edge is a tensor [B, width], which stands in beyond the loop. In packed tensors, which are no rings, an
// entry has rows of its own (place.cuh).
struct SlotPlace {
  void* base;
  int64_t step;
  int64_t row;
  int64_t ring;
};

// A further tensor [T, B, ...] to which a stored slot goes; null where it is not wanted.
struct OutputPlace {
  void* base;
  int64_t step;
  int64_t row;
};

// The image of a slot, from which products read it. Element (step, entry, block, unit) stands at images + offset +
// (step % RING) * image_step + entry * image_row bytes + (block * padded + unit) elements. Entries and units beyond the
// slot's are zero. A block is one part of one head, or all of a slot that dense matrices multiply.
struct ImagePlace {
  int64_t offset;
  int64_t blocks;
  int64_t depth;
  int64_t padded;
};

// Where a chunk of a product's operand is, in shared memory of each CTA. `offset` counts 16 bytes from the beginning of
// the step's images, and `head` says how many each head adds. The highest bit of `head` says that the operand is of the
// step before.
struct ChunkPlace {
  uint32_t offset;
  uint32_t head;
};

// How a tile stage is divided. Tiles of `unit_blocks` * UNIT_BLOCK units go to `tile_lanes` groups of CTAs, and chunks
// of `entry_blocks` * ENTRY_BLOCK batch entries go to the `entry_lanes` CTAs of a group. No tile goes beyond a block,
// which is one part of one head, or everything where there is one head. The division depends on the width, the blocks,
// the batch and the GPU alone. So a thread finds its own values in the next stage of the same width.
struct StagePlan {
  int32_t blocks, heads;
  int32_t depth;  // units per block
  int32_t unit_blocks, tiles_per_block, tiles, tile_lanes;
  int32_t entry_blocks, entry_chunks, entry_lanes;
};

// A joint: the products that add to the same sums. Their weights lie packed, tile by tile, chunk by chunk, unit block
// by unit block. Warp w takes `per_warp` chunks from chunk w * per_warp on. The first `resident` of them stay in shared
// memory.
struct JointPlan {
  int64_t packed;       // bytes from the start of the packed weights
  int64_t tile_bytes;   // bytes per tile there
  int32_t shared;       // bytes from the start of shared memory
  int32_t shared_tile;  // bytes per tile there
  int32_t chunks, per_warp, resident;
  int32_t table;  // bytes from the start of shared memory: the chunks' places
};

// A product. Where its matrix has the element (row of a tile, term of a part) follows from `row_length`, `depth` and
// `heads` (pack.cuh). `joint`: the first product that adds to the same sums.
struct ProductPlan {
  int32_t parts, heads;   // the operand's layout; 1 and 1 where the matrix is dense
  int32_t depth;          // terms per part and head
  int32_t chunks;         // chunks per part and head
  int64_t row_length;     // the row length of the matrix as stored
  int32_t image, matrix;  // indices; `matrix` is the first of `count`
  int32_t joint, count;
  int32_t previous;  // whether the operand is the image of the step before
  int32_t more;      // how many products of the joint follow
  int32_t transposed, unused;
};

// The layout of shared memory, in bytes from its beginning, where the CTA's direction lies. `sums` is where the sums of
// a tile lie, and `own` where the CTA's own tiles lie. From `warps` on each warp has `warp_bytes`. They first hold its
// weights on their way and, from `staging` on, its operands. Then they hold its partial sums.
struct Shared {
  int32_t sums, own;
  int32_t warps, warp_bytes, staging, unused;
};

// The first product of its stage that adds to the same sums as product p.
constexpr int joint_of(const Tables& tables, int first, int p) {
  for (int q = first; q < p; ++q) {
    if (tables.products[q].first == tables.products[p].first && tables.products[q].count == tables.products[p].count)
      return q;
  }
  return p;
}

// The number of joints among `count` products from `first` on.
constexpr int joints_of(const Tables& tables, int first, int count) {
  int joints = 0;
  for (int p = first; p < first + count; ++p) joints += joint_of(tables, first, p) == p;
  return joints;
}

// How many joints all stages have.
constexpr int joints_of(const Tables& tables) {
  int joints = 0;
  for (int i = 0; i < tables.stage_count; ++i)
    joints += joints_of(tables, tables.stages[i].first_product, tables.stages[i].products);
  return joints;
}

// Bytes per chunk and unit block of packed weights.
constexpr int block_bytes(int scalar_bytes) { return UNIT_BLOCK * CHUNK * scalar_bytes; }

// How many of the unit blocks that are left a warp multiplies in one pass: their sums must fit its registers.
constexpr int pass_blocks(int left, int entry_blocks, int scalar_bytes) {
  const int most = (scalar_bytes == 4 ? 4 : 8) / entry_blocks;
  return left < most ? left : most;
}

// The distance between the partial sums of two entries. An odd multiple of 8 keeps the stores of a warp apart.
constexpr int partial_row(int unit_blocks) { return UNIT_BLOCK * unit_blocks + (unit_blocks % 2 == 0 ? 8 : 0); }

// Bytes of shared memory in which a warp transposes its operands. Operands of 16 bits need none.
constexpr int staging_bytes(int scalar_bytes, int entry_blocks) {
  return scalar_bytes == 4 ? entry_blocks * ENTRY_BLOCK * CHUNK * scalar_bytes : 0;
}

constexpr int OWN_TILE_BYTES = 24;
constexpr int STREAMED = 2;  // how many chunks of float weights are on their way to a warp, where they are not resident

constexpr int at_least_one(int count) { return count > 0 ? count : 1; }

// The index of a slot's record. Products and sums after the loop read the records of stored slots.
constexpr int records_before(const Tables& tables, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += tables.slots[s].kind == Kind::stored && tables.slots[s].lasting;
  return count;
}

// Whether a slot's values have a place of their own. A stored slot that nobody reads has destinations alone.
constexpr bool has_place(const SlotInfo& slot) {
  return slot.kind == Kind::stored ? slot.read : slot.kind != Kind::view && slot.kind != Kind::tile;
}

// Whether a slot is read from a stream.
constexpr bool is_stream(const SlotInfo& slot) { return slot.kind == Kind::read && slot.table == STREAMS; }

// The index of a slot's place: it counts the slots before it that have one.
constexpr int places_before(const Tables& tables, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += has_place(tables.slots[s]);
  return count;
}

// The sizes of a call. `starts`, `rows` and `lengths` are the members of Extents (packed.cuh).
struct Header {
  int64_t steps, batch, heads;
  const int64_t* starts;
  int64_t rows;
  const int64_t* lengths;
  int64_t image_step, image_row;  // bytes
  Shared shared;
};

// The part of the parameter that the directions of a launch share: all sizes, and the division of the work. P::tables
// are the program's tables.
template <class P>
struct Common : Header {
  ImagePlace image_places[at_least_one(P::tables.image_count)];
  StagePlan stages[at_least_one(P::tables.stage_count)];
  JointPlan joints[at_least_one(P::tables.product_count)];
  ProductPlan products[at_least_one(P::tables.product_count)];
  int64_t dims[at_least_one(P::tables.dim_count)];
  float constants[(at_least_one(P::tables.constant_count) + 1) / 2 * 2];
};

// A direction's order and its workspace. `barrier` points at a zero when the kernel begins.
struct DirectionHeader {
  int64_t descending;
  uint32_t* barrier;
  char* packed;
  char* images;
};

// One direction: its order, its workspace and its tensors. `records` are tensors [T, B, width], which the products
// after the loop read.
template <class P>
struct Direction : DirectionHeader {
  SlotPlace places[at_least_one(places_before(P::tables, P::tables.slot_count))];
  OutputPlace outputs[at_least_one(P::tables.destination_count)];
  OutputPlace records[at_least_one(records_before(P::tables, P::tables.slot_count))];
  const void* matrices[at_least_one(P::tables.product_matrix_count)];
  OutputPlace finals[at_least_one(P::tables.final_count)];
};

// The size of a Direction, computed on the host.
constexpr int64_t direction_bytes(const Tables& tables) {
  return sizeof(DirectionHeader) + at_least_one(places_before(tables, tables.slot_count)) * sizeof(SlotPlace) +
         at_least_one(tables.destination_count) * sizeof(OutputPlace) +
         at_least_one(records_before(tables, tables.slot_count)) * sizeof(OutputPlace) +
         at_least_one(tables.final_count) * sizeof(OutputPlace) +
         at_least_one(tables.product_matrix_count) * sizeof(void*);
}

// How many directions a kernel can run side by side: two, where its parameter is then no larger than every toolkit
// takes.
constexpr int64_t PARAMETER_BYTES = 4096;
constexpr int most_directions(int64_t common, int64_t direction) {
  return common + 2 * direction <= PARAMETER_BYTES ? 2 : 1;
}

template <class P>
struct Arguments : Common<P> {
  static constexpr int DIRECTIONS = most_directions(sizeof(Common<P>), sizeof(Direction<P>));
  Direction<P> directions[DIRECTIONS];
};

}  // namespace rnncc
