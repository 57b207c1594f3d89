// How many threads a call has, and what they divide.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// What a step costs, in multiply-adds.
template <class T>
struct StepCost {
  const Run<T>& run;

  // The cost of dense products and of functions, per batch entry. A product is counted; a function is guessed to be
  // worth 20 per unit.
  int64_t dense() const {
    const Program<T>& program = run.program;
    int64_t work = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      const StageInfo& stage = program.stages[s];
      work += 20 * run.dim(stage.width);
      for (int16_t p = stage.first_product; p < stage.first_product + stage.products; ++p) {
        const ProductInfo& product = program.products[p];
        const MatrixInfo& matrix = program.matrices[program.product_matrices[product.matrix]];
        if (run.listed[p].listed) continue;
        work += product.count * run.dim(matrix.rows) * (run.dim(matrix.columns) / run.dim(matrix.blocks));
      }
    }
    return work;
  }

  // The cost of m batch entries in products taken from lists.
  int64_t listed(int64_t m) const {
    double work = 0;
    for (int16_t p = 0; p < run.program.product_count; ++p) {
      const ListedProduct<T>& product = run.listed[p];
      if (product.listed) work += double(product.elements * lanes<T>) * list_cost<T>(m, product.rows);
    }
    return int64_t(work);
  }

  // The cost of m batch entries. In dense products, one or two take as long as three: they wait for the matrices.
  int64_t of(int64_t m) const { return (m < 3 ? 3 : m) * dense() + listed(m); }
};

// The rule. Where there is little work, one thread does it. Without products, threads divide the batch where it has an
// entry for each of them, else the units. With products, either way costs a thread its entries times its share of the
// units. Dividing units adds a barrier per stage, which takes about as long as `barrier_work` multiply-adds. It must
// win by a fifth, because barriers suffer most where other programs want the processor too.
template <class T>
static Sharing choose_sharing(const Run<T>& run) {
  // To pack a matrix that is used once takes about as long as so many batch entries' products with it.
  constexpr int64_t once_packing = 3;
  constexpr int64_t least_work = 1 << 18, barrier_work = 20000;
  const StepCost<T> cost = {run};
  bool listed = false;
  for (int16_t p = 0; p < run.program.product_count; ++p) listed = listed || run.listed[p].listed;
  const bool once = run.call.steps == 1 && !run.call.starts && run.call.batch <= once_entries && !listed &&
                    run.program.product_count > 0;
  const int64_t threads = thread_count(), entries = run.mean_entries();
  if (threads <= 1 || cost.dense() * run.rows() + cost.listed(entries) * run.call.steps < least_work)
    return {1, false, listed, once};
  if (run.program.product_count == 0) return {threads, entries < threads, false, false};
  const int64_t alone = cost.of(entries), by_entries = cost.of((entries + threads - 1) / threads);
  const int64_t by_units = alone / threads + barrier_work * run.program.stage_count;
  if (once) {
    // A thread that has entries of its own packs every matrix by itself. Units are divided in panels, of which there may
    // be fewer than threads.
    const int64_t widest = run.widest_stage(), panels = (widest + panel_columns<T> - 1) / panel_columns<T>;
    const int64_t turns = (panels + threads - 1) / threads;
    return {threads, panels >= threads && alone * turns / panels < by_entries + once_packing * cost.dense(), false,
            true};
  }
  if (alone <= by_entries && alone <= by_units) return {1, false, listed, false};
  return {threads, by_units * 5 < by_entries * 4, listed, false};
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
