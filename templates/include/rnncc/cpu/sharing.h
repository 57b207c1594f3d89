// How many threads a call has, and what they divide.
#pragma once

#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// What a step costs a thread, in multiply-adds. The constants were measured on a processor with AVX-512: sixteen threads,
// LSTMs of 128 to 512 units. In narrower vectors fewer multiply-adds take the same time.
template <class T>
struct StepCost {
  const Run<T>& run;

  static constexpr int64_t vector_bytes = int64_t(sizeof(Vec<T>));
  // A dense product of few entries waits for its matrices: as if there were so many more entries. That is from the
  // second-level cache; more than `cached_bytes` come from farther, which takes twice as long.
  static constexpr int64_t waiting_entries = vector_bytes / 8, cached_bytes = 3 << 19;
  // What another thread wrote comes with a cache line of its own: the work per element. A barrier's, per thread.
  static constexpr int64_t moving_work = 6 * vector_bytes, barrier_work = 150 * vector_bytes;
  // In the matrix unit so many multiply-adds take as long as one elsewhere.
  static constexpr int64_t pairs_speed = 8;

  // The multiply-adds of dense products, per batch entry. `bytes`: of their matrices.
  int64_t products(int64_t* bytes) const {
    const Program<T>& program = run.program;
    int64_t work = 0;
    for (int16_t p = 0; p < program.product_count; ++p) {
      const ProductInfo& product = program.products[p];
      const MatrixInfo& matrix = program.matrices[program.product_matrices[product.matrix]];
      if (run.listed[p].listed) continue;
      const int64_t elements =
          product.count * run.dim(matrix.rows) * (run.dim(matrix.columns) / run.dim(matrix.blocks));
      const bool pairs = run.in_pairs(product);
      work += pairs ? elements / pairs_speed : elements;
      *bytes += elements * (pairs ? 2 : int64_t(sizeof(T)));
    }
    return work;
  }

  // The cost of dense products and of functions for m batch entries. A function is guessed to be worth 20 per unit.
  // Each of `mates` threads has `units` of the widest stage, some rows of matrices, and some entries of row operators.
  int64_t dense(int64_t m, int64_t mates = 1, int64_t units = 1, int64_t widest = 1) const {
    const auto part = [&](int64_t count) { return (count + mates - 1) / mates; };
    int64_t bytes = 0, by_units = products(&bytes), by_heads = 0, by_entries = 0;
    for (int16_t s = 0; s < run.program.stage_count; ++s) {
      const StageInfo& stage = run.program.stages[s];
      const int64_t work = 20 * run.dim(stage.width);
      if (stage.row == RowOperator::elements) {
        const RowTiles tiles = run.row_tiles(stage);
        const int64_t pieces = run.call.heads * (tiles.are_divided(run.call.heads, mates) ? tiles.count : 1);
        by_heads += work * part(pieces) / pieces;
      } else {
        (stage.row != RowOperator::none ? by_entries : by_units) += work;
      }
    }
    return m * by_units * units / widest + m * by_heads + part(m) * by_entries;
  }

  // The cost of the product that makes the streams.
  int64_t streams() const {
    if (!run.streams.given) return 0;
    const rnncc_linear_call& call = run.streams.given->product;
    return call.rows * call.inputs * call.outputs / (takes_pairs<T>(call.weight.dtype, call.inputs) ? pairs_speed : 1);
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

  // The elements of a batch entry that a thread reads after a barrier, and the barriers.
  int64_t met(int64_t mates, int64_t* barriers) const {
    const Program<T>& program = run.program;
    int64_t elements = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      const StageInfo& stage = program.stages[s];
      if (column_vectors(stage) > 0) *barriers += run.row_tiles(stage).are_divided(run.call.heads, mates);
      if (!stage.barrier) continue;
      ++*barriers;
      if (stage.row == RowOperator::elements)  // each thread has its rows of the matrices, and takes vectors
        elements += run.dim(stage.matrix_rows) + run.dim(stage.matrix_columns);
      else if (!stage.products)
        elements += run.dim(stage.width);
      for (int16_t p = stage.first_product; p < stage.first_product + stage.products; ++p)
        elements += run.dim(program.slots[program.products[p].operand].width);
    }
    return elements;
  }

  // The cost of m batch entries for each of `mates` threads, which divide all units into pieces of `units`.
  int64_t of(int64_t m, int64_t mates, int64_t units) const {
    const int64_t widest = run.widest_stage();
    int64_t bytes = 0;
    products(&bytes);
    const int64_t waiting = waiting_entries * (bytes <= cached_bytes * mates ? 1 : 2) * (bytes / int64_t(sizeof(T)));
    if (mates == 1) return dense(m) + waiting + listed(m);
    const int64_t own = units < widest ? units : widest;
    int64_t barriers = 0;
    const int64_t moved = met(mates, &barriers) * m * (mates - 1) / mates;
    return dense(m, mates, own, widest) + (waiting + listed(m)) * own / widest + moved * moving_work +
           barriers * mates * barrier_work;
  }
  int64_t of(int64_t m) const { return of(m, 1, 0); }
};

// The rule. Where there is little work, one thread does it. Else the number of groups is that with the least cost: each
// thread has its group's entries times its part of the units, and the threads of a group wait for each other. Barriers
// must win by a fifth, because they suffer most where other programs want the processor too.
template <class T>
static Sharing choose_sharing(const Run<T>& run) {
  constexpr int64_t least_work = 1 << 18;
  const StepCost<T> cost = {run};
  bool listed = false;
  for (int16_t p = 0; p < run.program.product_count; ++p) listed = listed || run.listed[p].listed;
  const bool pairs = run.has_pairs();
  const bool once = run.call.steps == 1 && !run.call.starts && run.call.batch <= once_entries && !listed && !pairs &&
                    run.program.product_count > 0;
  const int64_t threads = thread_count(), entries = run.mean_entries(), widest = run.widest_stage();
  Sharing best = {1, 1, run.unit_piece(once), listed, once, pairs};
  int64_t least = cost.of(entries);
  const int64_t streams = cost.streams();
  if (threads <= 1 || streams + cost.dense(run.rows()) + cost.listed(entries) * run.call.steps < least_work)
    return best;
  // Each thread packs its part of the matrices by itself where they are used once.
  const int64_t packing = once && !run.direct() ? once_packing : 0;
  for (int64_t mates = 1; mates <= threads; ++mates) {
    if (threads % mates) continue;
    Sharing next = best;
    next.threads = threads;
    next.groups = threads / mates;
    const int64_t own = (entries + next.groups - 1) / next.groups + packing;
    const int64_t here = cost.of(own, mates, next.units_of_thread(widest));
    const int64_t careful = mates > 1 ? here * 5 / 4 : here;
    if (careful >= least) continue;
    least = careful;
    best = next;
  }
  // The loop needs one thread, but not the product before it.
  if (streams >= least_work && best.threads == 1) best.threads = best.groups = threads;
  return best;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
