// Packs weights in the order in which warps read them, once per launch.
#pragma once

#include "contract_float.cuh"

namespace rnncc {

// Units [begin, end) of one block; a block is one part of one head.
struct Tile {
  int begin, end, head, block;
};

RNNCC_DEVICE Tile tile_of(const StagePlan& plan, int tile) {
  const int block = tile / plan.tiles_per_block, units = plan.unit_blocks * UNIT_BLOCK;
  const int begin = block * plan.depth + tile % plan.tiles_per_block * units;
  return {begin, ::min(begin + units, (block + 1) * plan.depth), block % plan.heads, block};
}

// The weight of a tile's row for term k of a part of the operand; zero beyond the tile's units and the part's terms.
template <class S>
RNNCC_DEVICE S weight_at(const ProductPlan& product, const StagePlan& stage, const Tile& tile, const S* matrix, int row,
                         int part, int k) {
  if (row >= tile.end - tile.begin || k >= product.depth) return from_float<S>(0.0f);
  if (!product.transposed) return matrix[(tile.begin + row) * product.row_length + part * product.depth + k];
  int64_t first_row = 0, column = tile.begin;
  if (product.heads > 1) {
    first_row = int64_t(part * product.heads + tile.head) * product.depth;
    column = tile.block / stage.heads * stage.depth + tile.begin - tile.block * stage.depth;
  }
  return matrix[(first_row + k) * product.row_length + column + row];
}

// Packs one tile of a joint. A thread moves sixteen bytes at a time: the terms that a lane of contract.cuh loads
// together.
template <class S>
RNNCC_DEVICE void pack_tile(const ProductPlan* products, int head_product, const StagePlan& stage,
                            const void* const* matrices, int tile_index, S* packed) {
  constexpr int TERMS = 16 / int(sizeof(S)), GROUPS = CHUNK / TERMS;
  const Tile tile = tile_of(stage, tile_index);
  const int units = stage.unit_blocks * UNIT_BLOCK;
  int left = 1;
  for (int p = head_product; left > 0; ++p) {
    const ProductPlan& product = products[p];
    if (product.joint != head_product) continue;
    left = product.more;
    const int blocks = product.count * stage.unit_blocks, chunks = product.parts * product.chunks;
    for (int v = threadIdx.x; v < chunks * blocks * UNIT_BLOCK * GROUPS; v += THREADS) {
      const int place = v % (UNIT_BLOCK * GROUPS), block = v / (UNIT_BLOCK * GROUPS) % blocks;
      const int chunk = v / (UNIT_BLOCK * GROUPS) / blocks;
      // In 16 bits, the terms of a row follow each other. In float, the rows of a quad of terms do.
      const int in_block = sizeof(S) == 2 ? place / GROUPS : place % UNIT_BLOCK;
      const int group = sizeof(S) == 2 ? place % GROUPS : place / UNIT_BLOCK;
      const int row = block * UNIT_BLOCK + in_block;
      const S* matrix = global<const S>(matrices[product.matrix + row / units]);
      S terms[TERMS];
#pragma unroll
      for (int i = 0; i < TERMS; ++i) {
        terms[i] = weight_at(product, stage, tile, matrix, row % units, chunk / product.chunks,
                             chunk % product.chunks * CHUNK + group * TERMS + i);
      }
      *reinterpret_cast<uint4*>(packed + int64_t(v) * TERMS) = *reinterpret_cast<const uint4*>(terms);
    }
    packed += int64_t(chunks) * blocks * UNIT_BLOCK * CHUNK;
  }
}

// Writes down where the operands of a joint's chunks are.
template <class S>
RNNCC_DEVICE void place_chunks(const ProductPlan* products, int head_product, const ImagePlace* images,
                               ChunkPlace* places) {
  int left = 1;
  for (int p = head_product; left > 0; ++p) {
    const ProductPlan& product = products[p];
    if (product.joint != head_product) continue;
    left = product.more;
    const ImagePlace& image = images[product.image];
    const int chunks = product.parts * product.chunks;
    for (int i = threadIdx.x; i < chunks; i += THREADS) {
      const int part = i / product.chunks, chunk = i % product.chunks;
      const int64_t unit = part * product.heads * image.padded + chunk * CHUNK;
      const int64_t head = product.heads > 1 ? image.padded * int64_t(sizeof(S)) / 16 : 0;
      places[i] = {uint32_t((image.offset + unit * int64_t(sizeof(S))) / 16),
                   uint32_t(head) | uint32_t(product.previous) << 31};
    }
    places += chunks;
  }
}

}  // namespace rnncc
