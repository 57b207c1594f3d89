// Products of a single step that one launch makes together (small_products.cuh). torch would make them one by one, and
// each takes the host longer than its arithmetic takes the GPU.
#pragma once

#include <algorithm>
#include <vector>

#include "../torch/tensor.h"
#include "small_products_call.h"

namespace rnncc {

// The elements of all weights of a step times its batch, up to which the GPU loses no more time than the host gains.
// Beyond, torch's own products win by their tensor cores and larger tiles.
constexpr int64_t MOST_SMALL_WORK = int64_t(1) << 28;

class SmallProducts {
 public:
  // `out` [m, n]. The operands have one type. `adds`: the product is added to what `out` has.
  void add(SmallForm form, const rnncc_tensor& out, const rnncc_tensor& a, const rnncc_tensor& b, int64_t m, int64_t n,
           int64_t k, bool adds = false) {
    if (m == 0 || n == 0) return;
    SmallProduct made = {a.data,
                         b.data,
                         out.data,
                         a.entry,
                         b.entry,
                         out.entry,
                         int32_t(m),
                         int32_t(n),
                         int32_t(k),
                         form,
                         out.dtype == RNNCC_FLOAT32,
                         adds,
                         false,
                         0};
    const auto fits = [](const rnncc_tensor& t) {
      return reinterpret_cast<uintptr_t>(t.data) % (4 * dtype_bytes(t.dtype)) == 0 && t.entry % 4 == 0;
    };
    made.in_fours = form == SmallForm::outer ? m % 4 == 0 && fits(a) : k % 4 == 0 && fits(b);
    const auto tiles = [](int32_t count, int32_t tile) { return (count + tile - 1) / tile; };
    made.ctas = tiles(made.m, rows_of_tile(made)) * tiles(made.n, SMALL_COLUMNS);
    products_.push_back(made);
  }

  // out[n] = the sum of all `rows` rows of b.
  void add_sum(const rnncc_tensor& out, const rnncc_tensor& b, int64_t n, int64_t rows, bool adds = false) {
    add(SmallForm::across, out, {nullptr, 0, 0, b.dtype}, b, 1, n, rows, adds);
  }

  // Adds the products of `others` behind its own.
  void append(const SmallProducts& others) {
    products_.insert(products_.end(), others.products_.begin(), others.products_.end());
  }

  // Calls launch(call, CTAs) until all products are made, and forgets them. A product that adds to what another one makes
  // is in a later launch.
  template <class Launch>
  void launch(const Launch& launch) {
    SmallProductsCall call;
    for (size_t i = 0; i < products_.size();) {
      int64_t ctas = 0;
      call.count = 0;
      for (; i < products_.size() && call.count < MOST_SMALL_PRODUCTS && !waits(products_[i], call); ++i) {
        ctas += products_[i].ctas;
        call.products[call.count++] = products_[i];
      }
      launch(call, ctas);
    }
    products_.clear();
  }

 private:
  static bool waits(const SmallProduct& product, const SmallProductsCall& call) {
    return product.adds && std::any_of(call.products, call.products + call.count,
                                       [&](const SmallProduct& other) { return overlap(product, other); });
  }

  static bool overlap(const SmallProduct& a, const SmallProduct& b) {
    const auto end = [](const SmallProduct& p) {
      return static_cast<char*>(p.out) + ((p.m - 1) * p.out_row + p.n) * int64_t(sizeof(float));
    };
    return a.out < end(b) && b.out < end(a);
  }

  std::vector<SmallProduct> products_;
};

}  // namespace rnncc
