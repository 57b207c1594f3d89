// Products of heads over many rows. The result is a small matrix per head, which is a sum over all rows.
#pragma once

#include "../torch/aten.h"
#include "head_products_call.h"
#include "module.h"

namespace rnncc {

// aᵀ b for each head, in the type of a and b. Part p of a's row and term q of b's row make a matrix per head:
// out[p, n, i, q, j] is the sum over rows of a[row, p, n, i] b[row, q, n, j]. The rows may come in several pieces.
struct HeadsProduct {
  struct Piece {
    rnncc_tensor a;  // [rows, parts, heads, head_dim]: rows lie at the stride of batch entries
    rnncc_tensor b;  // [rows, terms, heads, depth]
    int64_t rows;
  };
  std::vector<Piece> pieces;  // more than one only where the package's own kernel takes them
  void* out;                  // [parts, heads, head_dim, terms, depth]
  rnncc_dtype dtype;
  int64_t heads, parts, head_dim, terms, depth;
};

// cuBLAS gives each tile of HEAD_TILE x HEAD_TILE numbers of a product one CTA, which goes through all rows. Up to
// HEAD_TILES tiles leave most of a GPU idle.
constexpr int64_t HEAD_TILE = 128, HEAD_TILES = 32;
// In float32 the rows of such a product are then dealt out among HEAD_SUMS sums, where each gets HEAD_ROWS rows or more.
constexpr int64_t HEAD_SUMS = 16, HEAD_ROWS = 64;
// In 16 bits the package's own kernel takes such products, and those of all narrow heads. It reads both operands once
// for all parts and terms. It divides the rows into slices of SLICE_ROWS rows or more.
constexpr int64_t SLICE_ROWS = 256;

namespace heads {

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

inline int64_t tiles(int64_t heads, int64_t head_dim, int64_t depth) {
  return heads * divide_up(head_dim, HEAD_TILE) * divide_up(depth, HEAD_TILE);
}

// Whether the package's own kernel takes a product, and is quicker than torch.
inline bool has_kernel(const HeadsProduct& p, Device device) {
  const auto fits = [](const rnncc_tensor& t, int64_t head_dim) {
    // The kernel copies 16 bytes at a time.
    return head_dim % 8 == 0 && t.entry % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  const bool is_narrow = p.head_dim <= HEAD_TILE && p.depth <= HEAD_TILE;
  return !device.is_cpu() && p.dtype != RNNCC_FLOAT32 &&
         (is_narrow || tiles(p.heads, p.head_dim, p.depth) < HEAD_TILES) &&
         std::all_of(p.pieces.begin(), p.pieces.end(), [&](const HeadsProduct::Piece& piece) {
           return fits(piece.a, p.head_dim) && fits(piece.b, p.depth);
         });
}

inline int columns_of_tile(const HeadsProduct& p) { return p.terms * p.depth > 64 ? 128 : 64; }
inline int64_t elements(const HeadsProduct& p) { return p.parts * p.heads * p.head_dim * p.terms * p.depth; }

// The call of the package's own kernel for a piece, without room for sums. Slices are such that each CTA has one tile.
inline HeadProductCall call_of(const HeadsProduct& p, const HeadsProduct::Piece& piece, int64_t ctas_at_once) {
  HeadProductCall call = {};
  call.a = static_cast<const char*>(piece.a.data);
  call.b = static_cast<const char*>(piece.b.data);
  call.a_row = piece.a.entry * dtype_bytes(p.dtype);
  call.b_row = piece.b.entry * dtype_bytes(p.dtype);
  call.rows = piece.rows;
  call.heads = int32_t(p.heads);
  call.parts = int32_t(p.parts);
  call.head_dim = int32_t(p.head_dim);
  call.terms = int32_t(p.terms);
  call.depth = int32_t(p.depth);
  call.tiles_down = int32_t(divide_up(p.parts * p.head_dim, HEAD_TILE_ROWS));
  call.tiles_across = int32_t(divide_up(p.terms * p.depth, columns_of_tile(p)));
  const int64_t tiles = p.heads * call.tiles_down * call.tiles_across;
  const int64_t most = std::max<int64_t>(1, std::min(ctas_at_once / tiles, divide_up(call.rows, SLICE_ROWS)));
  call.slice_rows = std::max<int64_t>(1, divide_up(divide_up(call.rows, most), HEAD_STAGE_ROWS)) * HEAD_STAGE_ROWS;
  call.slices = int32_t(std::max<int64_t>(1, divide_up(call.rows, call.slice_rows)));
  return call;
}
inline int64_t ctas(const HeadProductCall& call) {
  return int64_t(call.slices) * call.heads * call.tiles_down * call.tiles_across;
}

inline void multiply_by_kernel(const HeadsProduct& p, Device device) {
  const int columns = columns_of_tile(p);
  const int64_t ctas_at_once = int64_t(gpu(device.index).sms) * head_products_at_once(columns);
  std::vector<HeadProductCall> calls;
  int64_t slices = 0;
  for (const HeadsProduct::Piece& piece : p.pieces) {
    calls.push_back(call_of(p, piece, ctas_at_once));
    slices += calls.back().slices;
  }
  const Tensor sums = empty({slices, elements(p)}, torch_dtype(RNNCC_FLOAT32), device);
  const std::string dtype = dtype_name(p.dtype), file = "_heads_" + dtype;
  const std::string name = "head_products_" + dtype + "_" + std::to_string(columns),
                    name_of_sums = "head_sums_" + dtype;
  const CUfunction kernel = find_kernel(device.index, file, name);
  float* to = static_cast<float*>(sums.data());
  for (HeadProductCall& call : calls) {
    call.sums = to;
    to += call.slices * elements(p);
    launch_kernel(name, kernel, {ctas(call), HEAD_PRODUCT_THREADS, head_product_shared(columns)}, device.index, &call);
  }
  HeadSumCall sum = {static_cast<float*>(sums.data()), p.out, elements(p), slices};
  launch_kernel(name_of_sums, find_kernel(device.index, file, name_of_sums),
                {divide_up(sum.count, 4 * HEAD_SUM_THREADS), HEAD_SUM_THREADS}, device.index, &sum);
}

// out [heads, head_dim, depth] = aᵀ b for each head; its matrices may have gaps. a has one part here, and b one term.
inline void multiply_by_torch(const Tensor& out, const rnncc_tensor& a, const rnncc_tensor& b, int64_t heads,
                              int64_t head_dim, int64_t depth, int64_t rows, Device device) {
  const auto multiply = [&](const Tensor& to, const rnncc_tensor& x, const rnncc_tensor& y, int64_t first,
                            int64_t count) {
    const auto at = [&](const rnncc_tensor& t) {
      return static_cast<char*>(t.data) + first * t.entry * dtype_bytes(t.dtype);
    };
    multiply_into(to, over(at(x), {heads, head_dim, count}, {head_dim, 1, x.entry}, x.dtype, device),
                  over(at(y), {heads, count, depth}, {depth, y.entry, 1}, y.dtype, device));
  };
  if (a.dtype != RNNCC_FLOAT32 || tiles(heads, head_dim, depth) > HEAD_TILES || rows < HEAD_SUMS * HEAD_ROWS)
    return multiply(out, a, b, 0, rows);

  // Row r goes to sum r % HEAD_SUMS. Where rows have no gaps, the heads of all sums then lie at equal distances, and
  // are the batch of one product.
  Tensor held[2];
  const auto dense = [&](const rnncc_tensor& t, int64_t width, Tensor& made) -> rnncc_tensor {
    if (t.entry == width) return t;
    made = empty({rows, width}, torch_dtype(t.dtype), device);
    RNNCC_TORCH(aoti_torch_copy_(made.get(), over(t.data, {rows, width}, {t.entry, 1}, t.dtype, device).get(), 0));
    return {made.data(), 0, width, t.dtype};
  };
  const rnncc_tensor x = dense(a, heads * head_dim, held[0]), y = dense(b, heads * depth, held[1]);
  const int64_t each = rows / HEAD_SUMS, rest = rows % HEAD_SUMS, all = HEAD_SUMS * heads, one = head_dim * depth;
  Tensor sums = empty({HEAD_SUMS + (rest > 0), heads, head_dim, depth}, torch_dtype(RNNCC_FLOAT32), device);
  float* const made = static_cast<float*>(sums.data());
  multiply_into(over(made, {all, head_dim, depth}, {one, depth, 1}, RNNCC_FLOAT32, device),
                over(x.data, {all, head_dim, each}, {head_dim, 1, HEAD_SUMS * x.entry}, x.dtype, device),
                over(y.data, {all, each, depth}, {depth, HEAD_SUMS * y.entry, 1}, y.dtype, device));
  if (rest > 0)
    multiply(over(made + all * one, {heads, head_dim, depth}, {one, depth, 1}, RNNCC_FLOAT32, device), x, y,
             rows - rest, rest);
  sum_into(out, sums, {0});
}

}  // namespace heads

inline void multiply_heads(const HeadsProduct& p, Device device) {
  if (heads::has_kernel(p, device)) return heads::multiply_by_kernel(p, device);
  const HeadsProduct::Piece& all = p.pieces[0];
  const int64_t bytes = dtype_bytes(p.dtype), length = p.terms * p.depth;
  for (int64_t part = 0; part < p.parts; ++part) {
    for (int64_t term = 0; term < p.terms; ++term) {
      rnncc_tensor a = all.a, b = all.b;
      a.data = static_cast<char*>(a.data) + part * p.heads * p.head_dim * bytes;
      b.data = static_cast<char*>(b.data) + term * p.heads * p.depth * bytes;
      char* out = static_cast<char*>(p.out) + (part * p.heads * p.head_dim * length + term * p.depth) * bytes;
      heads::multiply_by_torch(
          over(out, {p.heads, p.head_dim, p.depth}, {p.head_dim * length, length, 1}, p.dtype, device), a, b, p.heads,
          p.head_dim, p.depth, all.rows, device);
    }
  }
}

}  // namespace rnncc
