// The state of one call: the places of all slots, packed weights, gradients of weights, and what each thread needs.
#pragma once

#include "../core/linear_call.h"
#include "sparse.h"
#include "team.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A block of steps has about so many rows. The products over steps and batch entries are taken after each block, while
// its values are in cache.
constexpr int64_t rows_of_block = 512;

// `entry` of a weight's rnncc_tensor where its data are what rnncc_pack made of it, else 0.
constexpr int64_t packed_entry = 1;

// Batch entries at one step: all of them have their first (last) step here, or none has.
struct Part {
  Range entries;
  bool first, last;
};

// The product that makes the first streams (streams.h), where the caller did not.
template <class T>
struct StreamProduct {
  const rnncc_stream_product* given = nullptr;
  Packed<T> weight = {nullptr, 0, 0};
  T* bias = nullptr;
  T* block = nullptr;  // the rows of a block of steps, where nobody keeps them
  T* rooms = nullptr;  // per thread
  int64_t in_room = 0, room = 0;
  bool once = false;  // the weight is read as it lies
};

template <class T>
struct Run {
  const Program<T>& program;
  const Call& call;
  const int64_t* dims = nullptr;
  Sharing sharing = {1, 1, 1, false, false};
  StreamProduct<T> streams = {};
  int64_t block_steps = 1;
  int16_t last_stages = 0;
  int64_t ring_mask = 1;
  int64_t* block_rows = nullptr;       // per step of a packed call: where its rows are in its block of steps
  Place<T>* places = nullptr;          // per slot; a `previous` or `next` one has the place of the tensor at its edge
  int16_t* primary = nullptr;          // per stored slot: which destination is its place, or -1
  const T** matrices = nullptr;        // per weight, in the compute type
  T** gradients = nullptr;             // per weight; null where not wanted
  T** sums = nullptr;                  // per SumInfo
  Tiling* tilings = nullptr;           // per stage
  Pack<T>* packs = nullptr;            // by stage, tile, product that is not taken from lists, part
  ListedProduct<T>* listed = nullptr;  // per product
  int64_t* first_pack = nullptr;       // per stage
  int64_t* packs_per_tile = nullptr;
  Barrier* barriers = nullptr;  // per group of threads
  T* constants = nullptr;
  T* parts = nullptr;       // the vectors of columns of all row tiles but the first (matrix_elements.h)
  char* members = nullptr;  // per thread: slots' pointers, slots' row strides, scratch
  int64_t parts_of_entry = 0, parts_of_threads = 0, member_bytes = 0;
  int64_t scratch = 0, reduction = 0, spread = 0, once = 0;  // elements per thread

  // Whether products read matrices as they lie: such a call is too short to gain from packed ones.
  bool direct() const { return rows() <= direct_rows; }

  // Whether a product's matrices are packed as a whole. One that is taken once reads them as they lie, unless they are to
  // be rounded: a step has the bits that it has in a sequence.
  bool is_packed(const ProductInfo& product) const {
    if (came_packed(product)) return false;
    return in_pairs(product) || (!sharing.once && (product.transposed || !direct()));
  }

  // Whether the caller packed a product's matrices before (rnncc_pack), which `entry` of their weight says: only for
  // matrices of one block and as many rows each.
  bool came_packed(const ProductInfo& product) const {
    const MatrixInfo& first = program.matrices[program.product_matrices[product.matrix]];
    return !product.transposed && tensor(WEIGHTS, first.index).entry == packed_entry;
  }

  // Whether products are taken by the processor's matrix unit: of so many terms with a weight; this one; any.
  bool in_pairs(int16_t weight, int64_t depth) const { return takes_pairs<T>(tensor(WEIGHTS, weight).dtype, depth); }
  bool in_pairs(const ProductInfo& product) const {
    for (int16_t g = 0; g < product.count; ++g) {
      const MatrixInfo& matrix = program.matrices[program.product_matrices[product.matrix + g]];
      if (!in_pairs(matrix.index, product_shape(product, matrix, dims).depth)) return false;
    }
    return true;
  }
  bool has_pairs() const {
    for (int16_t p = 0; p < program.product_count; ++p)
      if (in_pairs(program.products[p])) return true;
    return false;
  }

  // Threads divide units by vectors. Matrices that came packed, or that are packed block by block, are divided by
  // panels.
  int64_t unit_piece(bool once) const {
    bool by_panels = once && !direct();
    for (int16_t p = 0; p < program.product_count; ++p) by_panels = by_panels || came_packed(program.products[p]);
    return by_panels ? panel_columns<T> : lanes<T>;
  }

  int64_t dim(int16_t index) const { return dims[index]; }
  int64_t widest_stage() const {
    int64_t widest = 1;
    for (int16_t s = 0; s < program.stage_count; ++s)
      if (dim(program.stages[s].width) > widest) widest = dim(program.stages[s].width);
    return widest;
  }
  RowTiles row_tiles(const StageInfo& stage) const {
    const int64_t rows = dim(stage.matrix_rows) / call.heads;
    return {rows, rows > RowTiles::size ? (rows + RowTiles::size - 1) / RowTiles::size : 1};
  }
  int64_t part_width(const StageInfo& stage) const { return round_up(dim(stage.matrix_columns), 16); }
  const rnncc_tensor& tensor(Table table, int16_t index) const { return call.table[table][index]; }
  int64_t time(int64_t n) const { return call.descending ? call.steps - 1 - n : n; }

  // The rows of all steps, the batch entries at step t, and the rows that a block has at most.
  int64_t rows() const { return call.starts ? call.starts[call.steps] : call.steps * call.batch; }
  int64_t entries(int64_t t) const { return call.starts ? call.starts[t + 1] - call.starts[t] : call.batch; }
  // The batch entries at a step; in a packed call, on average.
  int64_t mean_entries() const { return call.steps > 0 ? (rows() + call.steps - 1) / call.steps : 0; }
  int64_t block_capacity() const { return block_steps * call.batch; }

  // Where step t begins in a tensor of all steps.
  int64_t begin(int64_t t, int64_t step, int64_t row) const { return call.starts ? call.starts[t] * row : t * step; }

  // The batch entries at step n in two parts, each of which may be empty. In a packed call the second part has those
  // whose sequence ends at this t: it is their last step, or their first one where the loop runs backwards.
  Part part(int64_t n, int second) const {
    const bool first = n == 0, last = n == call.steps - 1;
    if (!call.starts) return {{0, second ? 0 : call.batch}, first, last};
    const int64_t t = time(n), going_on = t + 1 < call.steps ? entries(t + 1) : 0;
    if (!second) return {{0, going_on}, first, last};
    return {{going_on, entries(t)}, first || call.descending, last || !call.descending};
  }

  // The step that ends the block of steps which begins at n.
  int64_t block_end(int64_t n) const {
    if (!call.starts) return n + block_steps < call.steps ? n + block_steps : call.steps;
    for (int64_t taken = 0; n < call.steps; ++n) {
      taken += entries(time(n));
      if (taken > block_capacity()) break;
    }
    return n;
  }

  // Sets where each step of a packed call lies in its block. As in any call, steps lie in ascending order of t. Where t
  // falls, a block lies at the upper end of its memory, away from the last step of the block before.
  void place_blocks() {
    for (int64_t n = 0; call.starts && n < call.steps;) {
      int64_t taken = 0;
      for (const int64_t end = block_end(n); n < end; ++n) {
        taken += entries(time(n));
        block_rows[n] = call.descending ? block_capacity() - taken : taken - entries(time(n));
      }
    }
  }

  int64_t offset(const Place<T>& place, int64_t n) const {
    switch (place.mode) {
      case Mode::time: return begin(time(n), place.step, place.row);
      case Mode::ring: return (n & ring_mask) * place.step;
      case Mode::block:
        if (call.starts) return block_rows[n] * place.row;
        return (call.descending ? block_steps - 1 - n % block_steps : n % block_steps) * place.step;
      default: return 0;
    }
  }

  // Where a slot's row of batch entry 0 is at step n. `row` becomes the distance between rows.
  T* at(int16_t slot, int64_t n, int64_t* row) const { return at(slot, n, n == 0, n == call.steps - 1, row); }

  // The same for entries that have their first or their last step here.
  T* at(int16_t slot, int64_t n, bool first, bool last, int64_t* row) const {
    const SlotInfo* info = &program.slots[slot];
    int64_t offset = 0;
    for (;;) {
      if (info->kind == Kind::view) {
        offset += dim(info->offset);
      } else if (info->kind == Kind::previous && !first) {
        --n;
      } else if (info->kind == Kind::next && !last) {
        ++n;
      } else {
        break;
      }
      slot = info->link;
      info = &program.slots[slot];
    }
    const Place<T>& place = places[slot];
    *row = place.row;
    return place.base + this->offset(place, n) + offset;
  }

  // Whether a slot is a tensor of another dtype, which is then converted step by step.
  bool staged(const SlotInfo& info) const {
    if (info.kind != Kind::read) return false;
    const rnncc_tensor& t = tensor(info.table, info.index);
    return t.data && t.dtype != compute_dtype<T>;
  }

  Place<T> workspace(Arena& arena, const SlotInfo& info) const {
    const int64_t width = dim(info.width), step = call.batch * width;
    const int64_t ring = ring_mask < call.steps ? ring_mask + 1 : call.steps;
    const int64_t depth = info.lasting ? block_steps : ring;
    return {arena.take<T>(depth * step), step, width, info.lasting ? Mode::block : Mode::ring};
  }

  static Place<T> in_place(const rnncc_tensor& t, int64_t offset) {
    return {static_cast<T*>(t.data) + offset, t.step, t.entry, Mode::time};
  }

  Place<T> lay_out_slot(Arena& arena, const SlotInfo& info, int16_t slot, T* zeros) {
    switch (info.kind) {
      case Kind::read: {
        const rnncc_tensor& t = tensor(info.table, info.index);
        if (info.table == STREAMS && streams.given && info.index < streams.given->streams &&
            !streams.given->product.y.data) {
          const int64_t row = streams.given->product.outputs;
          return {streams.block + streams.given->columns[info.index] + dim(info.offset), call.batch * row, row,
                  Mode::block};
        }
        if (!t.data) return {zeros, 0, 0, Mode::fixed};
        return staged(info) ? workspace(arena, info) : in_place(t, dim(info.offset));
      }
      case Kind::previous:
      case Kind::next: {
        const rnncc_tensor& t = tensor(info.table, info.index);
        if (!t.data) return {zeros, 0, 0, Mode::fixed};
        if (t.dtype == compute_dtype<T>) return {static_cast<T*>(t.data), 0, t.entry, Mode::fixed};
        const int64_t width = dim(info.width);
        T* copy = arena.take<T>(call.batch * width);
        for (int64_t b = 0; copy && b < call.batch; ++b) read_row(copy + b * width, t, b * t.entry, width);
        return {copy, 0, width, Mode::fixed};
      }
      case Kind::vector: {
        const T* weight = matrices[info.index];
        return {weight ? const_cast<T*>(weight) + dim(info.offset) : nullptr, 0, 0, Mode::fixed};
      }
      case Kind::stored: {
        primary[slot] = -1;
        for (int16_t d = 0; d < info.destinations; ++d) {
          const Destination& to = program.destinations[info.first_destination + d];
          const rnncc_tensor& t = tensor(to.table, to.index);
          if (!t.data || t.dtype != compute_dtype<T>) continue;
          primary[slot] = d;
          return in_place(t, dim(to.offset));
        }
        return workspace(arena, info);
      }
      case Kind::view:
      case Kind::tile: break;
    }
    return {nullptr, 0, 0, Mode::fixed};
  }

  // Lays out the workspace. It is called twice: to count, and then to place.
  void lay_out(Arena& arena) {
    int64_t widest = 1;
    for (int16_t s = 0; s < program.slot_count; ++s) {
      if (dim(program.slots[s].width) > widest) widest = dim(program.slots[s].width);
    }
    T* zeros = arena.take<T>(widest);
    for (int64_t i = 0; zeros && i < widest; ++i) zeros[i] = T(0);
    constants = arena.take<T>(program.constant_count + 1);
    for (int64_t i = 0; constants && i < program.constant_count; ++i) constants[i] = T(call.constants[i]);
    for (int16_t w = 0; w < program.weight_count; ++w) {
      gradients[w] = nullptr;
      if (!call.table[D_WEIGHTS]) continue;
      const rnncc_tensor& d = tensor(D_WEIGHTS, w);
      if (!d.data) continue;
      gradients[w] = d.dtype == compute_dtype<T> ? static_cast<T*>(d.data) : arena.take<T>(weight_elements(w));
    }
    for (int16_t s = 0; s < program.slot_count; ++s) places[s] = lay_out_slot(arena, program.slots[s], s, zeros);
    for (int16_t s = 0; s < program.sum_count; ++s) {
      const int64_t width = dim(program.slots[program.sums[s].slot].width);
      sums[s] = arena.take<T>(width);
      for (int64_t i = 0; sums[s] && i < width; ++i) sums[s][i] = T(0);
    }
    reduction = 0;
    for (int16_t o = 0; o < program.outer_count; ++o) {
      const MatrixInfo& matrix = program.matrices[program.outers[o].matrix];
      const int64_t elements = gemm_tn_scratch_elements<T>(dim(matrix.columns));
      if (tensor(D_WEIGHTS, matrix.index).data && elements > reduction) reduction = elements;
    }
    scratch = spread = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      lay_out_products(arena, s);
      const int64_t elements = tilings[s].entries * tilings[s].units * program.stages[s].accumulators;
      if (elements > scratch) scratch = elements;
    }
    lay_out_parts(arena);
    const int64_t slots = round_up(program.slot_count, 8);
    once = sharing.once ? once_scratch_elements<T> : 0;
    member_bytes =
        slots * 16 + room_bytes(scratch + lanes<T>) + room_bytes(reduction) + room_bytes(spread) + room_bytes(once);
    members = arena.take<char>(member_bytes * sharing.threads);
  }

  // A thread's row tiles follow each other, and need room for one batch entry. Where threads divide those of a head, every
  // entry has room before that, twice: one thread may be at the next such stage already. A group that is smaller than
  // planned may not divide them while another one does.
  void lay_out_parts(Arena& arena) {
    parts_of_entry = parts_of_threads = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      const StageInfo& stage = program.stages[s];
      if (column_vectors(stage) == 0) continue;
      const RowTiles tiles = row_tiles(stage);
      const int64_t here = (tiles.count - 1) * column_vectors(stage) * part_width(stage);
      if (here > parts_of_entry) parts_of_entry = here;
      if (tiles.are_divided(call.heads, sharing.mates())) parts_of_threads = 2 * call.batch;
    }
    parts = arena.take<T>((parts_of_threads + sharing.threads) * parts_of_entry);
  }

  void lay_out_products(Arena& arena, int16_t s) {
    const StageInfo& stage = program.stages[s];
    int64_t next = first_pack[s], spread_here = 0;
    const int64_t most = call.batch < spread_entries<T> ? call.batch : spread_entries<T>;
    for (int16_t p = 0; p < stage.products; ++p) {
      ListedProduct<T>& product = listed[stage.first_product + p];
      if (!product.listed) continue;
      product.lists.row = arena.take<uint16_t>(product.elements);
      product.lists.value = arena.take<T>(product.elements);
      product.spread = spread_here;
      spread_here += round_up(product.rows * spread_width<T>(most), lanes<T>);
    }
    if (spread_here > spread) spread = spread_here;
    for (int64_t tile = 0; stage.products && tile < tilings[s].count; ++tile) {
      const TileRange range = tile_range(tilings[s], tile);
      for (int16_t p = 0; p < stage.products; ++p) {
        if (listed[stage.first_product + p].listed) continue;
        const ProductInfo& product = program.products[stage.first_product + p];
        const MatrixInfo& matrix = program.matrices[program.product_matrices[product.matrix]];
        const ProductShape shape = product_shape(product, matrix, dims);
        const int64_t n = product.count * (range.end - range.begin);
        const bool packs_product = is_packed(product), pairs = in_pairs(product);
        for (int64_t part = 0; part < shape.parts; ++part) {
          const int64_t operand = shape.blocks == 1 ? 0 : (part * shape.blocks + range.head) * shape.depth;
          T* memory = packs_product ? arena.take<T>(packed_elements<T>(n, shape.depth, pairs)) : nullptr;
          packs[next++] = {{memory, n, shape.depth, pairs}, operand};
        }
      }
    }
  }

  // Packs one tile's share of the weights.
  void pack(int16_t s, int64_t tile) const {
    const StageInfo& stage = program.stages[s];
    const TileRange range = tile_range(tilings[s], tile);
    const Pack<T>* next = packs + first_pack[s] + tile * packs_per_tile[s];
    for (int16_t p = 0; p < stage.products; ++p) {
      if (listed[stage.first_product + p].listed) continue;
      const ProductInfo& product = program.products[stage.first_product + p];
      const int16_t* names = program.product_matrices + product.matrix;
      const ProductShape shape = product_shape(product, program.matrices[names[0]], dims);
      if (!is_packed(product)) {
        next += shape.parts;
        continue;
      }
      for (int64_t part = 0; part < shape.parts; ++part, ++next) {
        for (int16_t g = 0; g < product.count; ++g) {
          const T* data = matrix_data(names[g], shape.row_length);
          pack_tile(next->b, data, shape, product.transposed, range, tilings[s], part, g * (range.end - range.begin));
        }
      }
    }
  }

  // Where a matrix's rows begin; each has row_length elements.
  const T* matrix_data(int16_t matrix, int64_t row_length) const {
    const MatrixInfo& info = program.matrices[matrix];
    return matrices[info.index] + dim(info.row) * row_length;
  }

  int64_t weight_elements(int16_t w) const { return dims[program.weight_rows + w] * dims[program.weight_columns + w]; }

  // The memory of one thread.
  Frame<T> frame(int64_t member) const {
    char* own = members + member * member_bytes;
    const int64_t slots = round_up(program.slot_count, 8);
    return {reinterpret_cast<T**>(own), reinterpret_cast<int64_t*>(own + slots * 8), constants, dims};
  }
  T* tile_scratch(int64_t member) const {
    return reinterpret_cast<T*>(members + member * member_bytes + round_up(program.slot_count, 8) * 16);
  }
  T* reduction_scratch(int64_t member) const {
    return tile_scratch(member) + room_bytes(scratch + lanes<T>) / int64_t(sizeof(T));
  }
  T* spread_room(int64_t member) const {
    return reduction_scratch(member) + room_bytes(reduction) / int64_t(sizeof(T));
  }
  T* once_room(int64_t member) const { return spread_room(member) + room_bytes(spread) / int64_t(sizeof(T)); }
  static int64_t room_bytes(int64_t elements) { return round_up(elements * int64_t(sizeof(T)), 64); }
};

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
