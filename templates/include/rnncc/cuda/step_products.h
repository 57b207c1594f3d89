// Products that a call needs together: those of a single step, or that of the input of a few steps. One launch makes
// those that are small (small_products.cuh): torch makes them one by one, and each takes the host longer than its
// arithmetic takes the GPU. cuBLAS makes the others, or torch where they have results of 16 bits.
#pragma once

#include <algorithm>
#include <vector>

#include "../torch/aten.h"
#include "cublas.h"
#include "small_products_call.h"

namespace rnncc {

// The numbers that a product multiplies, m * n * k, up to which the GPU loses no more time than the host gains. Beyond,
// cuBLAS's tiles are better.
constexpr int64_t MOST_SMALL_WORK = int64_t(1) << 27;

struct ProductSize {
  int64_t m, n, k;

  bool is_small() const { return m * n * k <= MOST_SMALL_WORK; }
};

// What is added to a product: what `out` has, and vectors [n].
struct Added {
  bool out = false;
  const void* biases[MOST_ADDED] = {};
};

class StepProducts {
 public:
  // `out` [m, n]. The operands have one type.
  void add(SmallForm form, const ProductSize& size, const rnncc_tensor& out, const rnncc_tensor& a,
           const rnncc_tensor& b, const Added& added = {}) {
    if (size.m == 0 || size.n == 0) return;
    const bool is_large = a.data && !size.is_small();
    if (is_large && (added.out || added.biases[0])) fail("nothing is added to a large product");
    const auto fits = [](const rnncc_tensor& t) {
      return reinterpret_cast<uintptr_t>(t.data) % (4 * dtype_bytes(t.dtype)) == 0 && t.entry % 4 == 0;
    };
    SmallProduct made = {a.data, b.data, out.data, a.entry, b.entry, out.entry};
    made.m = int32_t(size.m);
    made.n = int32_t(size.n);
    made.k = int32_t(size.k);
    made.form = form;
    std::copy_n(added.biases, MOST_ADDED, made.biases);
    made.is_float = out.dtype == RNNCC_FLOAT32;
    made.adds = added.out;
    made.in_fours = form == SmallForm::outer ? size.m % 4 == 0 && fits(a) : size.k % 4 == 0 && fits(b);
    const auto tiles = [](int32_t count, int32_t tile) { return (count + tile - 1) / tile; };
    made.ctas = is_large ? 0 : tiles(made.m, rows_of_tile(made)) * tiles(made.n, SMALL_COLUMNS);
    products_.push_back({made, b.dtype});
  }

  // out[n] = the sum of all `rows` rows of b.
  void add_sum(const rnncc_tensor& out, const rnncc_tensor& b, int64_t n, int64_t rows, bool adds = false) {
    add(SmallForm::across, {1, n, rows}, out, {nullptr, 0, 0, b.dtype}, b, {adds, {}});
  }

  bool is_empty() const { return products_.empty(); }

  // Adds the products of `others` behind its own.
  void append(const StepProducts& others) {
    products_.insert(products_.end(), others.products_.begin(), others.products_.end());
  }

  // Makes the large products now, so that the GPU multiplies while the host prepares the rest, and forgets them.
  void start(Device device) {
    const auto first_small = std::stable_partition(products_.begin(), products_.end(),
                                                   [](const Product& product) { return product.small.ctas == 0; });
    if (first_small == products_.begin()) return;
    const OnDevice current(device.index);
    for (auto large = products_.begin(); large != first_small; ++large) make_large(*large, device);
    products_.erase(products_.begin(), first_small);
  }

  // Makes all products, and forgets them. launch(call, CTAs) launches those that are small. A product that adds to what
  // another one makes is in a later launch.
  template <class Launch>
  void make(Device device, const Launch& launch) {
    SmallProductsCall call;
    call.count = 0;
    int64_t ctas = 0;
    const auto flush = [&] {
      if (call.count > 0) launch(call, ctas);
      call.count = ctas = 0;
    };
    for (const Product& product : products_) {
      if (product.small.ctas == 0) {
        make_large(product, device);
        continue;
      }
      if (call.count == MOST_SMALL_PRODUCTS || waits(product.small, call)) flush();
      ctas += product.small.ctas;
      call.products[call.count++] = product.small;
    }
    flush();
    products_.clear();
  }

 private:
  // `small.ctas`: 0 where the product is not small.
  struct Product {
    SmallProduct small;
    rnncc_dtype dtype;  // of the operands
  };

  static bool waits(const SmallProduct& product, const SmallProductsCall& call) {
    return product.adds && std::any_of(call.products, call.products + call.count,
                                       [&](const SmallProduct& other) { return overlap(product, other); });
  }

  static bool overlap(const SmallProduct& a, const SmallProduct& b) {
    const auto end = [](const SmallProduct& p) {
      return static_cast<char*>(p.out) + ((p.m - 1) * p.out_row + p.n) * (p.is_float ? 4 : 2);
    };
    return a.out < end(b) && b.out < end(a);
  }

  static void make_large(const Product& product, Device device) {
    const SmallProduct& p = product.small;
    const FloatProduct floats = {p.m,
                                 p.n,
                                 p.k,
                                 {p.a, p.a_row, p.form == SmallForm::outer},
                                 {p.b, p.b_row, p.form == SmallForm::rows},
                                 static_cast<float*>(p.out),
                                 p.out_row,
                                 product.dtype};
    if (p.is_float && Cublas::exists() && floats.fits()) return floats.run(Cublas());
    const auto matrix = [&](const void* data, int64_t rows, int64_t columns, int64_t row, bool transposed,
                            rnncc_dtype type) {
      const std::vector<int64_t> strides = transposed ? std::vector<int64_t>{1, row} : std::vector<int64_t>{row, 1};
      return over(data, {rows, columns}, strides, type, device);
    };
    multiply_to_float(matrix(p.out, p.m, p.n, p.out_row, false, p.is_float ? RNNCC_FLOAT32 : product.dtype),
                      matrix(p.a, p.m, p.k, p.a_row, p.form == SmallForm::outer, product.dtype),
                      matrix(p.b, p.k, p.n, p.b_row, p.form == SmallForm::rows, product.dtype));
  }

  std::vector<Product> products_;
};

}  // namespace rnncc
