// Gradients of weights: products and sums over all steps and batch entries, taken after each block of steps.
#pragma once

#include "needed.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// The steps of a block, in ascending order of t.
template <class T>
struct Steps {
  const Run<T>& run;
  int64_t begin, end;  // numbers of steps

  int64_t count() const { return end - begin; }
  int64_t number(int64_t i) const { return run.call.descending ? end - 1 - i : begin + i; }
};

// The place whose step stride a slot's values have, but for the one at the edge.
template <class T>
static const Place<T>& place_behind(const Run<T>& run, int16_t slot) {
  const SlotInfo* info = &run.program.slots[slot];
  while (info->kind == Kind::view || info->kind == Kind::next) {
    slot = info->link;
    info = &run.program.slots[slot];
  }
  return run.places[slot];
}

// Whether step `n` of a slot lies apart from its other steps, because it is the edge.
template <class T>
static bool at_edge(const Run<T>& run, int16_t slot, int64_t n) {
  return run.program.slots[slot].kind == Kind::next && n == run.call.steps - 1;
}

// `for_rows` of a packed call. Steps are joined where their rows lie behind each other.
template <class T, class F>
static void for_packed_rows(const Steps<T>& steps, int16_t slot_a, int16_t slot_b, const F& f) {
  const Run<T>& run = steps.run;
  const T *a = nullptr, *b = nullptr;
  int64_t a_row = 0, b_row = 0, count = 0;
  for (int64_t i = 0; i < 2 * steps.count(); ++i) {
    const int64_t n = steps.number(i / 2);
    const Part part = run.part(n, int(i % 2));
    const int64_t rows = part.entries.end - part.entries.begin;
    if (rows == 0) continue;
    int64_t next_a_row, next_b_row;
    const T* next_a = run.at(slot_a, n, part.first, part.last, &next_a_row) + part.entries.begin * next_a_row;
    const T* next_b = run.at(slot_b, n, part.first, part.last, &next_b_row) + part.entries.begin * next_b_row;
    if (count && a_row == next_a_row && b_row == next_b_row && next_a == a + count * a_row &&
        next_b == b + count * b_row) {
      count += rows;
      continue;
    }
    if (count) f(a, a_row, b, b_row, count);
    a = next_a, a_row = next_a_row, b = next_b, b_row = next_b_row, count = rows;
  }
  if (count) f(a, a_row, b, b_row, count);
}

// Calls f(a, a_row, b, b_row, k) with k evenly spaced rows of each of two slots. The calls together go through all rows
// of the steps.
template <class T, class F>
static void for_rows(const Steps<T>& steps, int16_t slot_a, int16_t slot_b, const F& f) {
  const Run<T>& run = steps.run;
  const int64_t batch = run.call.batch;
  if (run.call.starts) return for_packed_rows(steps, slot_a, slot_b, f);
  for (int64_t i = 0; i < steps.count();) {
    int64_t last = i + 1;
    const bool edge = at_edge(run, slot_a, steps.number(i)) || at_edge(run, slot_b, steps.number(i));
    while (!edge && last < steps.count() && !at_edge(run, slot_a, steps.number(last)) &&
           !at_edge(run, slot_b, steps.number(last))) {
      ++last;
    }
    int64_t a_row, b_row;
    const T* a = run.at(slot_a, steps.number(i), &a_row);
    const T* b = run.at(slot_b, steps.number(i), &b_row);
    const int64_t count = last - i;
    const int64_t a_step = place_behind(run, slot_a).step, b_step = place_behind(run, slot_b).step;
    if (count == 1) {
      f(a, a_row, b, b_row, batch);
    } else if (batch == 1) {
      f(a, a_step, b, b_step, count);
    } else if (a_step == batch * a_row && b_step == batch * b_row) {
      f(a, a_row, b, b_row, count * batch);
    } else if (count >= batch) {
      for (int64_t r = 0; r < batch; ++r) f(a + r * a_row, a_step, b + r * b_row, b_step, count);
    } else {
      for (int64_t t = 0; t < count; ++t) f(a + t * a_step, a_row, b + t * b_step, b_row, batch);
    }
    i = last;
  }
}

// How many outer products from `first` on can be taken as one, because they lie side by side in memory and have the
// same operand.
template <class T>
static int16_t adjacent_outers(const Run<T>& run, int16_t first, int64_t n) {
  const Program<T>& program = run.program;
  int16_t last = first;
  while (last + 1 < program.outer_count) {
    const OuterInfo &a = program.outers[last], &b = program.outers[last + 1];
    const MatrixInfo &ma = program.matrices[a.matrix], &mb = program.matrices[b.matrix];
    if (a.operand != b.operand || ma.index != mb.index || run.dim(ma.blocks) != 1 || run.dim(mb.blocks) != 1) break;
    if (run.dim(mb.row) != run.dim(ma.row) + run.dim(ma.rows)) break;
    int64_t a_row, b_row;
    const T* pa = run.at(a.cotangent, n, &a_row);
    const T* pb = run.at(b.cotangent, n, &b_row);
    if (pb != pa + run.dim(ma.rows) || a_row != b_row) break;
    if (place_behind(run, a.cotangent).step != place_behind(run, b.cotangent).step) break;
    ++last;
  }
  return int16_t(last - first + 1);
}

// Computes a thread's share of d_matrix += cotangentᵀ operand.
template <class T>
static void outer_product(const Steps<T>& steps, int16_t first, int16_t count, T* scratch, int64_t index,
                          int64_t members) {
  const Run<T>& run = steps.run;
  const OuterInfo& outer = run.program.outers[first];
  const MatrixInfo& matrix = run.program.matrices[outer.matrix];
  const int64_t blocks = run.dim(matrix.blocks);
  const int64_t row_length = run.dim(matrix.columns) / blocks;
  T* gradient = run.gradients[matrix.index] + run.dim(matrix.row) * row_length;
  const bool adds = !is_made_at_once(run, matrix.index);
  const bool pairs = run.in_pairs(matrix.index, run.block_capacity());
  int64_t rows = 0;
  for (int16_t o = 0; o < count; ++o) rows += run.dim(run.program.matrices[run.program.outers[first + o].matrix].rows);
  for_rows(steps, outer.cotangent, outer.operand, [&](const T* a, int64_t a_row, const T* x, int64_t x_row, int64_t k) {
    if (blocks == 1) {
      const Range own = share(rows, kernel_rows, index, members);
      if (own.begin == own.end) return;
      gemm_tn(gradient, row_length, a, a_row, x, x_row, row_length, k, own.begin, own.end, adds, scratch, pairs);
      return;
    }
    const int64_t row_blocks = matrix.parts * blocks, depth = rows / row_blocks, part_length = row_length / outer.parts;
    // Where there are fewer blocks than threads, several have one.
    const int64_t cuts = (members + row_blocks - 1) / row_blocks;
    const Range own = share(row_blocks * cuts, 1, index, members);
    for (int64_t piece = own.begin; piece < own.end; ++piece) {
      const int64_t block = piece / cuts;
      const Range cut = share(depth, kernel_rows, piece % cuts, cuts);
      for (int64_t part = 0; part < outer.parts && cut.begin < cut.end; ++part) {
        gemm_tn(gradient + block * depth * row_length + part * part_length, row_length, a + block * depth, a_row,
                x + (part * blocks + block % blocks) * part_length, x_row, part_length, k, cut.begin, cut.end, adds,
                scratch, pairs);
      }
    }
  });
}

// Adds k rows to sum, for the units given.
template <class T>
static void add_rows(T* sum, const T* a, int64_t a_row, int64_t k, const Range& units) {
  constexpr int64_t step = 4 * lanes<T>;
  int64_t u = units.begin;
  for (; u + step <= units.end; u += step) {
    Vec<T> total[4] = {};
    for (int64_t r = 0; r < k; ++r) {
      RNNCC_UNROLL
      for (int j = 0; j < 4; ++j) total[j] += load(a + r * a_row + u + j * lanes<T>);
    }
    RNNCC_UNROLL
    for (int j = 0; j < 4; ++j) store(sum + u + j * lanes<T>, load(sum + u + j * lanes<T>) + total[j]);
  }
  for (; u < units.end; u += lanes<T>) {
    const int64_t n = units.end - u;
    Vec<T> total = {};
    for (int64_t r = 0; r < k; ++r) total += load_upto(a + r * a_row + u, n);
    store_upto(sum + u, load_upto(sum + u, n) + total, n);
  }
}

// Computes a thread's share of all reductions over steps [begin, end).
template <class T>
static void reduce_block(const Run<T>& run, int64_t begin, int64_t end, T* scratch, int64_t index, int64_t members) {
  const Steps<T> steps = {run, begin, end};
  const Program<T>& program = run.program;
  for (int16_t o = 0; o < program.outer_count;) {
    const int16_t count = adjacent_outers(run, o, begin);
    if (run.gradients[program.matrices[program.outers[o].matrix].index])
      outer_product(steps, o, count, scratch, index, members);
    o = int16_t(o + count);
  }
  for (int16_t s = 0; s < program.sum_count; ++s) {
    const SumInfo& info = program.sums[s];
    if (!run.gradients[info.index]) continue;
    const Range units = share(run.dim(program.slots[info.slot].width), lanes<T>, index, members);
    if (units.begin == units.end) continue;
    for_rows(steps, info.slot, info.slot, [&](const T* a, int64_t a_row, const T*, int64_t, int64_t k) {
      add_rows(run.sums[s], a, a_row, k, units);
    });
  }
}

// Makes the vectors' gradients of their sums. One thread does this.
template <class T>
static void make_vector_gradients(const Run<T>& run) {
  const Program<T>& program = run.program;
  for (int16_t s = 0; s < program.sum_count; ++s) {
    const SumInfo& info = program.sums[s];
    if (!run.gradients[info.index]) continue;
    const SlotInfo& slot = program.slots[info.slot];
    const int64_t from = run.dim(slot.width), to = run.dim(info.width);
    T* out = run.gradients[info.index] + run.dim(info.offset);
    const int64_t depth = to == 1 || from == to ? 1 : from / (slot.parts * to);
    for (int64_t u = 0; u < from; ++u) out[from == to ? u : to == 1 ? 0 : u / depth % to] += run.sums[s][u];
  }
}

// Writes a thread's share of the gradients whose tensors have another dtype.
template <class T>
static void write_gradients(const Run<T>& run, int64_t index, int64_t members) {
  for (int16_t w = 0; w < run.program.weight_count; ++w) {
    if (!run.gradients[w] || run.tensor(D_WEIGHTS, w).dtype == compute_dtype<T>) continue;
    const Range own = share(run.weight_elements(w), lanes<T>, index, members);
    write_row(run.tensor(D_WEIGHTS, w), own.begin, run.gradients[w] + own.begin, own.end - own.begin);
  }
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
