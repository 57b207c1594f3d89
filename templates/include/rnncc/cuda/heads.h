// Products of heads over many rows, by torch. The result is a small matrix per head, which is a sum over all rows.
#pragma once

#include "../torch/aten.h"

namespace rnncc {

// cuBLAS gives each tile of HEAD_TILE x HEAD_TILE numbers of a float32 product one CTA, which goes through all rows. Up
// to HEAD_TILES tiles leave most of a GPU idle. The rows of such a product are dealt out among HEAD_SUMS sums, where
// each gets HEAD_ROWS rows or more. (In 16 bits one product is quicker than anything that copies an operand: measured
// on an H200.)
constexpr int64_t HEAD_SUMS = 16, HEAD_ROWS = 64, HEAD_TILE = 128, HEAD_TILES = 32;

// out [heads, head_dim, depth] = aᵀ b for each head; its matrices may have gaps. Rows of a [rows, heads * head_dim] and
// of b [rows, heads * depth] lie at the stride of batch entries.
inline void multiply_heads(const Tensor& out, const rnncc_tensor& a, const rnncc_tensor& b, int64_t heads,
                           int64_t head_dim, int64_t depth, int64_t rows, Device device) {
  const auto multiply = [&](const Tensor& to, const rnncc_tensor& x, const rnncc_tensor& y, int64_t first,
                            int64_t count) {
    const auto at = [&](const rnncc_tensor& t) {
      return static_cast<char*>(t.data) + first * t.entry * dtype_bytes(t.dtype);
    };
    multiply_into(to, over(at(x), {heads, head_dim, count}, {head_dim, 1, x.entry}, x.dtype, device),
                  over(at(y), {heads, count, depth}, {depth, y.entry, 1}, y.dtype, device));
  };
  const int64_t tiles = heads * ((head_dim + HEAD_TILE - 1) / HEAD_TILE) * ((depth + HEAD_TILE - 1) / HEAD_TILE);
  if (a.dtype != RNNCC_FLOAT32 || tiles > HEAD_TILES || rows < HEAD_SUMS * HEAD_ROWS)
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

}  // namespace rnncc
