// Where every value of a running loop lies: in the caller's tensors where their dtype is the compute type, else in a
// workspace that is allocated once per call.
#pragma once

#include "convert.h"
#include "gemm.h"
#include "lists.h"
#include "../core/pages.h"
#include "program.h"

// C's (stdlib.h), declared here because clang has no builtin of it and no header of the library is wanted in this file.
extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept;

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Owns memory for the time of one call. A few bytes are the object's own.
struct Buffer {
  char* data = nullptr;
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data != own_) __builtin_free(data);
  }
  bool allocate(int64_t bytes) {
    if (bytes <= int64_t(sizeof own_)) {
      data = own_;
      return true;
    }
    data = static_cast<char*>(aligned_alloc(64, size_t((bytes + 127) / 64 * 64)));
    if (data) want_large_pages(data, bytes);
    return data != nullptr;
  }

 private:
  alignas(64) char own_[4096];
};

// Hands out parts of a buffer; without a buffer it only counts. The same sequence of calls is made twice: to count,
// then to place.
struct Arena {
  char* data = nullptr;
  int64_t used = 0;
  template <class U>
  U* take(int64_t count) {
    U* part = data ? reinterpret_cast<U*>(data + used) : nullptr;
    used += (count * int64_t(sizeof(U)) + 63) / 64 * 64;
    return part;
  }
};

constexpr DType dtype_of[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

template <class T>
constexpr rnncc_dtype compute_dtype = sizeof(T) == 8 ? RNNCC_FLOAT64 : RNNCC_FLOAT32;

// float computes on float and 16-bit tensors, double on double ones.
template <class T>
RNNCC_INLINE bool takes(rnncc_dtype dtype) {
  return dtype == compute_dtype<T> || (sizeof(T) == 4 && dtype != RNNCC_FLOAT64);
}

// Whether products of `depth` terms with a weight of this dtype are taken in bfloat16, by the processor's matrix unit
// (pairs.h). A shorter product would be half zeros.
template <class T>
RNNCC_INLINE bool takes_pairs(rnncc_dtype weight, int64_t depth) {
  return sizeof(T) == 4 && weight == RNNCC_BFLOAT16 && depth >= amx_terms / 2 && amx_ready();
}

template <class T>
RNNCC_INLINE void read_row(T* out, const rnncc_tensor& tensor, int64_t first, int64_t n) {
  load_row(out, tensor.data, first, n, dtype_of[tensor.dtype]);
}

template <class T>
RNNCC_INLINE void write_row(const rnncc_tensor& tensor, int64_t first, const T* in, int64_t n) {
  store_row(tensor.data, first, in, n, dtype_of[tensor.dtype]);
}

// How a place depends on the step. fixed: it is the same at every step. time: t is its index. ring: the step's number
// is its index, in a ring a few steps deep. block: its index is the step's place in its block, in ascending order of t.
// In a packed call, time and block count the rows before the step's own.
enum class Mode : int8_t { fixed, time, ring, block };

// The row of batch entry b at step index i starts at base + i * step + b * row.
template <class T>
struct Place {
  T* base;
  int64_t step;
  int64_t row;
  Mode mode;
};

RNNCC_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// How many threads there are, and how many groups they make: groups divide the batch, and the threads of a group divide
// the units. `listed`: some product is taken from lists (sparse.h).
struct Sharing {
  int64_t threads, groups;
  int64_t piece;  // threads divide units in pieces of so many
  bool listed;
  bool once;           // there is one step, so that each product is taken once
  bool pairs = false;  // some product is taken by the processor's matrix unit (pairs.h)

  bool by_units() const { return groups < threads; }
  int64_t mates() const { return (threads + groups - 1) / groups; }  // the most threads of a group

  // How many of `depth` units a thread has, if there are enough for all.
  int64_t units_of_thread(int64_t depth) const { return round_up((depth + mates() - 1) / mates(), piece); }
};

// The tiles of a stage: each of `blocks` ranges of `depth` units is divided into tiles of `units`. A tile takes batch
// entries in chunks of `entries`.
struct Tiling {
  int64_t blocks, heads, depth, units, per_block, count, entries;
};

// The rows of a matrix's head, in tiles of so many. Threads divide them where there are fewer heads than threads of a
// group.
struct RowTiles {
  static constexpr int64_t size = 32;
  int64_t rows, count;

  int64_t end_of(int64_t tile) const { return (tile + 1) * size < rows ? (tile + 1) * size : rows; }
  bool are_divided(int64_t heads, int64_t mates) const { return mates > heads && count > 1; }
};

// The vectors with a number for each column that a stage of a matrix's elements makes.
RNNCC_INLINE int16_t column_vectors(const StageInfo& stage) { return stage.column_sums + stage.column_maxima; }

struct TileRange {
  int64_t begin, end, head, block;
};

RNNCC_INLINE TileRange tile_range(const Tiling& tiling, int64_t tile) {
  const int64_t block = tile / tiling.per_block;
  const int64_t begin = block * tiling.depth + tile % tiling.per_block * tiling.units;
  const int64_t limit = (block + 1) * tiling.depth;
  return {begin, begin + tiling.units < limit ? begin + tiling.units : limit, block % tiling.heads, block};
}

// One packed part of a product's tile: all columns of the tile, and the terms from `operand` on.
template <class T>
struct Pack {
  Packed<T> b;
  int64_t operand;  // elements from the operand's start
};

// The columns of accumulators that a tile should have: enough for two panels at once, few enough for the first-level
// cache.
constexpr int64_t tile_columns = 256;
constexpr int64_t scratch_elements = 12288;
// With lists a tile takes more entries at a time, and has fewer units.
constexpr int64_t listed_tile_columns = 64;
// Up to so many batch entries a tile takes at once where its products are taken once.
constexpr int64_t once_entries = 256;

// Where threads divide units, the tiling depends on width, heads and threads alone, so that a thread meets the same
// units in every stage of one width.
template <class T>
static Tiling make_tiling(const StageInfo& stage, const int64_t* dims, const Sharing& sharing, int64_t batch) {
  Tiling t;
  const int64_t width = dims[stage.width];
  t.heads = dims[stage.blocks];
  t.blocks = t.heads == 1 ? 1 : stage.parts * t.heads;
  t.depth = width / t.blocks;
  const int64_t accumulators = stage.accumulators > 0 ? stage.accumulators : 1;
  if (sharing.by_units()) {
    const int64_t most = sharing.once ? panel_columns<T> : sharing.listed ? listed_tile_columns : tile_columns;
    t.units = sharing.units_of_thread(t.depth);
    if (t.units > most) t.units = most;
  } else if (sharing.once) {
    t.units = panel_columns<T>;
  } else {
    t.units = stage.products ? round_up((tile_columns + accumulators - 1) / accumulators, panel_columns<T>) : t.depth;
  }
  if (t.units > t.depth) t.units = t.depth;
  if (t.units < 1) t.units = 1;
  t.per_block = (t.depth + t.units - 1) / t.units;
  t.count = t.blocks * t.per_block;
  const int64_t entries = scratch_elements / (accumulators * t.units);
  const int64_t piece = sharing.listed ? list_entries<T> : kernel_rows;
  t.entries = entries < piece ? piece : entries / piece * piece;
  if (t.entries > row_block) t.entries = row_block / piece * piece;
  if (sharing.pairs) t.entries = round_up(t.entries, 2 * amx_size);
  if (sharing.once) t.entries = batch;
  if (t.entries > batch) t.entries = batch > 0 ? batch : 1;
  return t;
}

// How a product is taken for a tile: in `parts` of `depth` terms each.
struct ProductShape {
  int64_t parts, depth, blocks, row_length;
};

RNNCC_INLINE ProductShape product_shape(const ProductInfo& product, const MatrixInfo& matrix, const int64_t* dims) {
  ProductShape s;
  s.blocks = dims[matrix.blocks];
  s.parts = s.blocks == 1 ? 1 : product.parts;
  s.row_length = dims[matrix.columns] / s.blocks;
  s.depth = (product.transposed ? dims[matrix.rows] : dims[matrix.columns]) / (s.parts * s.blocks);
  return s;
}

// Where a tile's share of part `part` of a matrix begins, in elements.
RNNCC_INLINE int64_t tile_begin(const ProductShape& shape, bool transposed, const TileRange& tile, const Tiling& tiling,
                                int64_t part) {
  if (!transposed) return tile.begin * shape.row_length + part * shape.depth;
  if (shape.blocks == 1) return tile.begin;
  return (part * shape.blocks + tile.head) * shape.depth * shape.row_length + tile.block / tiling.heads * tiling.depth +
         tile.begin - tile.block * tiling.depth;
}

// Packs part `part` of `matrix` for a tile of n units, as columns [column, column + n) of `pack`.
template <class T>
static void pack_tile(const Packed<T>& pack, const T* matrix, const ProductShape& shape, bool transposed,
                      const TileRange& tile, const Tiling& tiling, int64_t part, int64_t column) {
  const int64_t n = tile.end - tile.begin;
  const T* begin = matrix + tile_begin(shape, transposed, tile, tiling, part);
  transposed ? pack_kn(pack, begin, shape.row_length, column, n) : pack_nk(pack, begin, shape.row_length, column, n);
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
