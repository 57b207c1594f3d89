// The driver of every generated kernel: one time loop, forward or backward, for any program (program.h).
//
// Threads either divide the rows of the batch, and then never wait for each other inside a block of steps (of packed rows once,
// after the first), or the units of every stage, with a barrier where a stage reads what others wrote. Every element is computed by the same operations in the same order
// either way, so results do not depend on the number of threads.
#pragma once

#include "reduce.h"
#include "rows.h"
#include "run.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// Multiply-adds of one row at one step: in products, and (one a unit of a stage, times a guess) in functions.
template <class T>
static int64_t row_work(const Program<T>& program, const int64_t* dims) {
  int64_t work = 0;
  for (int16_t s = 0; s < program.stage_count; ++s) {
    const StageInfo& stage = program.stages[s];
    work += 20 * dims[stage.width];
    for (int16_t p = 0; p < stage.products; ++p) {
      const ProductInfo& product = program.products[stage.first_product + p];
      const MatrixInfo& matrix = program.matrices[program.product_matrices[product.matrix]];
      work += product.count * dims[matrix.rows] * (dims[matrix.columns] / dims[matrix.blocks]);
    }
  }
  return work;
}

// Time of m rows in units of one row of a full tile: one or two rows wait for memory as long as three take.
RNNCC_INLINE int64_t row_cost(int64_t m) { return m < 3 ? 3 : m; }

// The cost rule. Too little work: one thread. Without products rows are divided where there are enough of them. With
// products each way costs its rows times its share of the units; dividing units adds a barrier a stage, about as long as
// `barrier_work` multiply-adds, and must win by a fifth: barriers suffer most where other programs want the processor too.
template <class T>
static Sharing choose_sharing(const Program<T>& program, const Call& call, const int64_t* dims) {
  constexpr int64_t least_work = 1 << 16, barrier_work = 20000;
  const int64_t work = row_work(program, dims);
  const int64_t threads = thread_count();
  const int64_t rows = call.starts ? call.starts[call.steps] : call.steps * call.columns;
  if (threads <= 1 || work * rows < least_work) return {1, false};
  // Of a packed call, at a step as the mean is.
  const int64_t columns = (rows + call.steps - 1) / call.steps;
  if (program.product_count == 0) return {threads, columns < threads};
  const int64_t by_rows = row_cost((columns + threads - 1) / threads) * work;
  const int64_t by_units = row_cost(columns) * work / threads + barrier_work * program.stage_count;
  const int64_t alone = row_cost(columns) * work;
  if (alone <= by_rows && alone <= by_units) return {1, false};
  return {threads, by_units * 5 < by_rows * 4};
}

// One part of a product for a tile's units, from the matrices as they lie.
template <class T>
static void multiply_direct(const Run<T>& run, const ProductInfo& product, const TileRange& range, int64_t operand, int64_t part,
                            T* scratch, int64_t columns, const T* a, int64_t a_row, int64_t rows) {
  const int16_t* names = run.program.product_matrices + product.matrix;
  const ProductShape shape = product_shape(product, run.program.matrices[names[0]], run.dims);
  const int64_t units = range.end - range.begin;
  for (int16_t g = 0; g < product.count; ++g) {
    const T* matrix = run.matrix_data(names[g], shape.row_length) + range.begin * shape.row_length + part * shape.depth;
    gemm_direct(scratch + (product.first + g) * units, columns, a + operand, a_row, rows, matrix, shape.row_length, units, shape.depth,
                static_cast<const T*>(nullptr), product.accumulate || part > 0);
  }
}

template <class T>
static void run_tiles(const Run<T>& run, int16_t s, Frame<T>& frame, T* scratch, const Range& rows, const Range& tiles) {
  const StageInfo& stage = run.program.stages[s];
  const Tiling& tiling = run.tilings[s];
  const Function<T> function = run.program.functions[stage.function];
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const TileRange range = tile_range(tiling, tile);
    const int64_t units = range.end - range.begin, columns = stage.accumulators * units;
    for (int64_t row = rows.begin; row < rows.end; row += tiling.rows) {
      const int64_t end = row + tiling.rows < rows.end ? row + tiling.rows : rows.end;
      const Pack<T>* pack = run.packs + run.first_pack[s] + tile * run.packs_per_tile[s];
      for (int16_t p = 0; p < stage.products; ++p) {
        const ProductInfo& product = run.program.products[stage.first_product + p];
        const MatrixInfo& matrix = run.program.matrices[run.program.product_matrices[product.matrix]];
        const int64_t parts = run.dim(matrix.blocks) == 1 ? 1 : product.parts;
        const int64_t a_row = frame.row[product.operand];
        const T* a = frame.p[product.operand] + row * a_row;
        const bool direct = run.direct() && !product.transposed;
        for (int64_t part = 0; part < parts; ++part, ++pack) {
          if (direct) {
            multiply_direct(run, product, range, pack->operand, part, scratch, columns, a, a_row, end - row);
            continue;
          }
          gemm(scratch + product.first * units, columns, a + pack->operand, a_row, pack->b, int64_t(0), end - row, int64_t(0),
               panel_count<T>(pack->b.n), static_cast<const T*>(nullptr), product.accumulate || part > 0);
        }
      }
      for (int16_t a = 0; a < stage.accumulators; ++a) {
        // So that row `row`, unit `range.begin` is the tile's first element.
        frame.p[stage.first_accumulator + a] = scratch + a * units - row * columns - range.begin;
        frame.row[stage.first_accumulator + a] = columns;
      }
      function(frame, row, end, range.begin, range.end, range.head);
    }
  }
}

template <class T>
static void run_row_operator(const Run<T>& run, const StageInfo& stage, const Frame<T>& frame, const Range& rows) {
  const int64_t heads = run.call.heads;
  const int16_t target = run.program.stage_slots[stage.first_stored];
  const SlotInfo& to = run.program.slots[target];
  const RowLayout to_layout = row_layout(run.dim(to.width), to.parts, heads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    int64_t offset = run.dim(stage.offset) / heads;
    for (int16_t o = 0; o < stage.operands; ++o) {
      const int16_t slot = run.program.stage_slots[stage.first_operand + o];
      const SlotInfo& from = run.program.slots[slot];
      const RowLayout layout = row_layout(run.dim(from.width), from.parts, heads);
      row_operation(stage.row, frame.p[target] + r * frame.row[target], to_layout, frame.p[slot] + r * frame.row[slot], layout, offset,
                    stage.times);
      offset += layout.units();
    }
  }
}

// Units of what a stage stored to the other tensors that want them.
template <class T>
static void copy_out(const Run<T>& run, const StageInfo& stage, const Frame<T>& frame, int64_t n, const Range& rows, int64_t begin,
                     int64_t end) {
  for (int16_t i = 0; i < stage.stored; ++i) {
    const int16_t slot = run.program.stage_slots[stage.first_stored + i];
    const SlotInfo& info = run.program.slots[slot];
    for (int16_t d = 0; d < info.destinations; ++d) {
      if (d == run.primary[slot]) continue;
      const Destination& to = run.program.destinations[info.first_destination + d];
      const rnncc_tensor& tensor = run.tensor(to.table, to.index);
      const int64_t first = run.begin(run.time(n), tensor.step, tensor.column) + run.dim(to.offset);
      if (!tensor.data) continue;
      if (tensor.dtype == compute_dtype<T> && static_cast<T*>(tensor.data) + first == frame.p[slot]) continue;
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        write_row(tensor, first + r * tensor.column + begin, frame.p[slot] + r * frame.row[slot] + begin, end - begin);
      }
    }
  }
}

// Converts a thread's part of the step's tensors of other dtypes; whether there were any.
template <class T>
static bool stage_inputs(const Run<T>& run, const Frame<T>& frame, int64_t n, const Range& rows, int64_t index, int64_t members) {
  bool any = false;
  for (int16_t s = 0; s < run.program.slot_count; ++s) {
    const SlotInfo& info = run.program.slots[s];
    if (!run.staged(info)) continue;
    any = true;
    const rnncc_tensor& tensor = run.tensor(info.table, info.index);
    const Range units = share(run.dim(info.width), lanes<T>, index, members);
    const int64_t first = run.begin(run.time(n), tensor.step, tensor.column) + run.dim(info.offset) + units.begin;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      read_row(frame.p[s] + r * frame.row[s] + units.begin, tensor, first + r * tensor.column, units.end - units.begin);
    }
  }
  return any;
}

// A thread's columns, the same at every step. Of a packed call about as many rows as the others', over all steps.
template <class T>
static Range share_columns(const Run<T>& run, int64_t index, int64_t members) {
  const Call& call = run.call;
  if (!call.starts || members == 1) return share(call.columns, 1, index, members);
  Range own = {0, 0};
  int64_t before = 0, length = call.steps;
  for (int64_t column = 0; column < call.columns; ++column) {
    while (length > 0 && run.rows(length - 1) <= column) --length;
    const int64_t owner = (before + length / 2) * members / (run.rows() + 1);
    if (owner < index) own.begin = column + 1;
    if (owner <= index) own.end = column + 1;
    before += length;
  }
  return own.begin < own.end ? own : Range{0, 0};
}

RNNCC_INLINE Range both(const Range& a, const Range& b) {
  const Range common = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return common.begin < common.end ? common : Range{0, 0};
}

// One part of a step. `own`: the thread's columns.
template <class T>
static void run_part(const Run<T>& run, Team& team, int64_t index, int64_t members, Frame<T>& frame, T* scratch, int64_t n,
                     const Part& part, const Range& own) {
  const Program<T>& program = run.program;
  const bool by_units = run.sharing.by_units;
  for (int16_t s = 0; s < program.slot_count; ++s) {
    if (program.slots[s].kind != Kind::tile) frame.p[s] = run.at(s, n, part.first, part.last, &frame.row[s]);
  }
  const Range own_rows = both(part.rows, own);
  const Range rows = by_units ? part.rows : own_rows;
  const bool staged = stage_inputs(run, frame, n, rows, by_units ? index : 0, by_units ? members : 1);
  if (staged && by_units) team.barrier();
  for (int16_t s = 0; s < program.stage_count; ++s) {
    const StageInfo& stage = program.stages[s];
    if (by_units && stage.barrier) team.barrier();
    if (stage.row != RowOperator::none) {
      run_row_operator(run, stage, frame, own_rows);
      copy_out(run, stage, frame, n, own_rows, 0, run.dim(stage.width));
      continue;
    }
    const Tiling& tiling = run.tilings[s];
    const Range tiles = by_units ? share(tiling.count, 1, index, members) : Range{0, tiling.count};
    if (tiles.begin == tiles.end || rows.begin == rows.end) continue;
    run_tiles(run, s, frame, scratch, rows, tiles);
    copy_out(run, stage, frame, n, rows, tile_range(tiling, tiles.begin).begin, tile_range(tiling, tiles.end - 1).end);
  }
}

// Columns `rows`, which have run step n as their last one; -1: none.
template <class T>
static void write_finals(const Run<T>& run, int64_t n, const Range& rows) {
  for (int16_t f = 0; f < run.program.final_count; ++f) {
    const FinalInfo& final_state = run.program.finals[f];
    const rnncc_tensor& tensor = run.tensor(final_state.table, final_state.index);
    if (!tensor.data) continue;
    int64_t row;
    const T* p = run.at(final_state.slot, n + 1, n < 0, true, &row);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      write_row(tensor, r * tensor.column, p + r * row, run.dim(run.program.slots[final_state.slot].width));
    }
  }
}

template <class T>
static void run_step(const Run<T>& run, Team& team, int64_t index, int64_t members, Frame<T>& frame, T* scratch, int64_t n,
                     const Range& own) {
  for (int second = 0; second < 2; ++second) {
    const Part part = run.part(n, second);
    if (part.rows.begin == part.rows.end) continue;
    run_part(run, team, index, members, frame, scratch, n, part, own);
    if (!part.last) continue;
    if (run.sharing.by_units) team.barrier();
    write_finals(run, n, both(part.rows, own));
  }
}

// Zeros where no gradient flows, and before sums begin; steps and weights are divided among threads.
template <class T>
static void clear(const Run<T>& run, int64_t index, int64_t members) {
  const Program<T>& program = run.program;
  const Range steps = share(run.call.steps, 1, index, members);
  for (int16_t z = 0; z < program.zero_count; ++z) {
    const ZeroInfo& zero = program.zeros[z];
    const rnncc_tensor& tensor = run.tensor(zero.table, zero.index);
    if (!tensor.data) continue;
    const int64_t bytes = element_bytes(dtype_of[tensor.dtype]);
    for (int64_t t = steps.begin; t < steps.end; ++t) {
      const int64_t first = run.begin(t, tensor.step, tensor.column) + run.dim(zero.offset);
      for (int64_t r = 0; r < run.rows(t); ++r) {
        char* row = static_cast<char*>(tensor.data) + (first + r * tensor.column) * bytes;
        __builtin_memset(row, 0, size_t(run.dim(zero.width) * bytes));
      }
    }
  }
  for (int16_t w = 0; w < program.weight_count; ++w) {
    if (!run.gradients[w]) continue;
    const Range own = share(run.weight_elements(w), 16, index, members);
    __builtin_memset(run.gradients[w] + own.begin, 0, size_t(own.end - own.begin) * sizeof(T));
  }
}

template <class T>
static void run_member(const Run<T>& run, Team& team, int64_t index, int64_t members) {
  const Program<T>& program = run.program;
  const Call& call = run.call;
  Frame<T> frame = run.frame(index);
  T* scratch = run.tile_scratch(index);
  clear(run, index, members);
  for (int16_t s = 0; s < program.stage_count; ++s) {
    if (!program.stages[s].products) continue;
    // Where units are divided each packs what it will use itself.
    const Range tiles = share(run.tilings[s].count, 1, index, members);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) run.pack(s, tile);
  }
  team.barrier();
  const bool reduces = program.outer_count + program.sum_count > 0;
  const Range own = share_columns(run, index, members);
  if (call.steps == 0) write_finals(run, -1, own);
  for (int64_t n = 0, end; n < call.steps; n = end) {
    end = run.block_end(n);
    for (int64_t step = n; step < end; ++step) {
      run_step(run, team, index, members, frame, scratch, step, own);
      // A block's first step reads the last one of the block before. Columns of packed rows lie where others' were then.
      if (call.starts && reduces && step == n) team.barrier();
    }
    if (!reduces) continue;
    team.barrier();
    reduce_block(run, n, end, run.reduction_scratch(index), index, members);
    team.barrier();
  }
  team.barrier();
  if (index == 0) finish_gradients(run);
}

// Whether every tensor has a dtype that T takes.
template <class T>
static bool dtypes_fit(const Program<T>& program, const Call& call) {
  for (int16_t w = 0; w < program.weight_count; ++w) {
    if (!takes<T>(call.table[WEIGHTS][w].dtype)) return false;
  }
  for (int16_t s = 0; s < program.slot_count; ++s) {
    const SlotInfo& slot = program.slots[s];
    if (slot.kind == Kind::read || slot.kind == Kind::previous || slot.kind == Kind::next) {
      const rnncc_tensor& tensor = call.table[slot.table][slot.index];
      if (tensor.data && !takes<T>(tensor.dtype)) return false;
    }
    for (int16_t d = 0; d < slot.destinations; ++d) {
      const Destination& to = program.destinations[slot.first_destination + d];
      const rnncc_tensor& tensor = call.table[to.table][to.index];
      if (tensor.data && !takes<T>(tensor.dtype)) return false;
    }
  }
  return true;
}

template <class T>
int32_t run(const Program<T>& program, const Call& call) {
  if (!dtypes_fit(program, call)) return WRONG_DTYPE;
  Run<T> run = {program, call};
  Buffer sizes, tables, workspace;
  if (!sizes.allocate(program.dim_count * int64_t(sizeof(int64_t)))) return OUT_OF_MEMORY;
  int64_t* dims = reinterpret_cast<int64_t*>(sizes.data);
  program.dims(call.sizes, call.heads, dims);
  run.dims = dims;
  run.sharing = choose_sharing(program, call, dims);
  // A slow and a fast thread are less than one step apart, so that four steps never meet; alone two do.
  run.ring_mask = run.sharing.by_units ? 3 : 1;
  const int64_t wanted = rows_of_block / (call.columns > 0 ? call.columns : 1);
  run.block_steps = wanted < 4 ? 4 : wanted;
  if (run.block_steps > call.steps) run.block_steps = call.steps > 0 ? call.steps : 1;
  for (int placing = 0; placing < 2; ++placing) {
    Arena arena = {tables.data, 0};
    run.places = arena.take<Place<T>>(program.slot_count);
    run.primary = arena.take<int16_t>(program.slot_count);
    run.matrices = arena.take<const T*>(program.weight_count + 1);
    run.gradients = arena.take<T*>(program.weight_count + 1);
    run.sums = arena.take<T*>(program.sum_count + 1);
    run.block_rows = arena.take<int64_t>(call.starts ? call.steps : 0);
    run.tilings = arena.take<Tiling>(program.stage_count);
    run.first_pack = arena.take<int64_t>(program.stage_count);
    run.packs_per_tile = arena.take<int64_t>(program.stage_count);
    int64_t packs = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      const StageInfo& stage = program.stages[s];
      const Tiling tiling = make_tiling<T>(stage, dims, run.sharing, call.columns);
      int64_t parts = 0;
      for (int16_t p = 0; p < stage.products; ++p) {
        const ProductInfo& product = program.products[stage.first_product + p];
        parts += product_shape(product, program.matrices[program.product_matrices[product.matrix]], dims).parts;
      }
      if (placing) {
        run.tilings[s] = tiling;
        run.first_pack[s] = packs;
        run.packs_per_tile[s] = parts;
      }
      packs += parts * tiling.count;
    }
    run.packs = arena.take<Pack<T>>(packs + 1);
    if (!placing && !tables.allocate(arena.used)) return OUT_OF_MEMORY;
  }
  run.place_blocks();
  Arena count;
  run.lay_out(count);
  if (!workspace.allocate(count.used)) return OUT_OF_MEMORY;
  Arena place = {workspace.data, 0};
  run.lay_out(place);
  const int32_t failed = team_run(
      run.sharing.threads, [&](Team& team, int32_t index, int32_t members) { run_member(run, team, index, members); });
  return failed ? NO_THREADS : DONE;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
