// The driver of every generated kernel: one time loop that runs any program (program.h), forward or backward.
//
// Threads come in groups, which divide the batch entries. The threads of a group divide the units of every stage, the
// heads and rows of its matrices, or the entries of row operators. They meet at a barrier where a stage reads what others
// wrote; a group may be one thread. Groups do not wait for each other inside a block of steps, but for once after its
// first step where rows are packed. However threads are grouped, every element is computed by the same operations in the
// same order, so results do not depend on the number of threads.
#pragma once

#include "listing.h"
#include "matrices.h"
#include "matrix_elements.h"
#include "sharing.h"
#include "streams.h"
#include "tiles.h"
#include "weights.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// A thread of the team.
struct Member {
  int64_t index;         // among all
  Barrier* barrier;      // of its group
  int64_t place, mates;  // in its group, and how many that has
  Range entries;         // the group's
  Range own;             // the thread's part of them, where a stage cannot be divided by units

  void meet() const {
    if (mates > 1) barrier->wait(mates);
  }
};

// The batch entries of group `index` of `members`, the same at every step. In a packed call all groups have about as many
// rows over all steps.
template <class T>
static Range share_entries(const Run<T>& run, int64_t index, int64_t members) {
  const Call& call = run.call;
  if (!call.starts || members == 1) return share(call.batch, 1, index, members);
  Range own = {0, 0};
  int64_t before = 0, length = call.steps;
  for (int64_t entry = 0; entry < call.batch; ++entry) {
    while (length > 0 && run.entries(length - 1) <= entry) --length;
    const int64_t owner = (before + length / 2) * members / (run.rows() + 1);
    if (owner < index) own.begin = entry + 1;
    if (owner <= index) own.end = entry + 1;
    before += length;
  }
  return own.begin < own.end ? own : Range{0, 0};
}

template <class T>
static Member member_of(const Run<T>& run, int64_t index, int64_t count) {
  const int64_t groups = run.sharing.groups < count ? run.sharing.groups : count;
  const int64_t group = ((index + 1) * groups - 1) / count;
  const Range threads = share(count, 1, group, groups);
  const Range entries = share_entries(run, group, groups);
  const int64_t place = index - threads.begin, mates = threads.end - threads.begin;
  const Range part = share(entries.end - entries.begin, 1, place, mates);
  const Range own = {entries.begin + part.begin, entries.begin + part.end};
  return {index, run.barriers + group, place, mates, entries, own};
}

RNNCC_INLINE Range both(const Range& a, const Range& b) {
  const Range common = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return common.begin < common.end ? common : Range{0, 0};
}

template <class T>
static void run_row_operator(const Run<T>& run, const StageInfo& stage, const Frame<T>& frame, const Range& entries) {
  const int64_t heads = run.call.heads;
  const int16_t target = run.program.stage_slots[stage.first_stored];
  const SlotInfo& to = run.program.slots[target];
  const RowLayout to_layout = row_layout(run.dim(to.width), to.parts, heads);
  const bool is_of_squares = stage.row == RowOperator::squares || stage.row == RowOperator::variance;
  const int16_t pieces = is_of_squares ? 1 : stage.operands;
  const int16_t last = run.program.stage_slots[stage.first_operand + stage.operands - 1];
  const bool moves = stage.row == RowOperator::roll || stage.row == RowOperator::shift;
  const int64_t times = moves ? run.dim(stage.offset) : stage.times;
  const auto at = [&](int16_t slot, int64_t entry) { return frame.p[slot] + entry * frame.row[slot]; };
  if (stage.matrix_rows) {
    const BlockShape shape = {heads, run.dim(stage.matrix_rows) / heads, run.dim(stage.matrix_columns) / heads};
    const int16_t slot = run.program.stage_slots[stage.first_operand];
    const SlotInfo& from = run.program.slots[slot];
    const RowLayout layout = row_layout(run.dim(from.width), from.parts, heads);
    for (int64_t b = entries.begin; b < entries.end; ++b)
      matrix_operation(stage.row, at(target, b), to_layout, at(slot, b), layout, at(last, b), shape, times);
    return;
  }
  for (int64_t b = entries.begin; b < entries.end; ++b) {
    int64_t offset = run.dim(stage.offset) / to_layout.heads;
    for (int16_t o = 0; o < pieces; ++o) {
      const int16_t slot = run.program.stage_slots[stage.first_operand + o];
      const SlotInfo& from = run.program.slots[slot];
      const int64_t width = run.dim(from.width);
      const RowLayout layout =
          stage.row == RowOperator::per_head ? group_layout(width, to_layout) : row_layout(width, from.parts, heads);
      row_operation(stage.row, at(target, b), to_layout, at(slot, b), layout, at(last, b), offset, times);
      offset += layout.head_width();
    }
  }
}

// Copies units [begin, end) of a stored slot to the other tensors that want them.
template <class T>
static void copy_slot(const Run<T>& run, int16_t slot, const Frame<T>& frame, int64_t n, const Range& entries,
                      int64_t begin, int64_t end) {
  const SlotInfo& info = run.program.slots[slot];
  for (int16_t d = 0; d < info.destinations; ++d) {
    if (d == run.primary[slot]) continue;
    const Destination& to = run.program.destinations[info.first_destination + d];
    const rnncc_tensor& tensor = run.tensor(to.table, to.index);
    const int64_t first = run.begin(run.time(n), tensor.step, tensor.entry) + run.dim(to.offset);
    if (!tensor.data) continue;
    if (tensor.dtype == compute_dtype<T> && static_cast<T*>(tensor.data) + first == frame.p[slot]) continue;
    for (int64_t b = entries.begin; b < entries.end; ++b) {
      write_row(tensor, first + b * tensor.entry + begin, frame.p[slot] + b * frame.row[slot] + begin, end - begin);
    }
  }
}

// The same for all that a stage stored.
template <class T>
static void copy_out(const Run<T>& run, const StageInfo& stage, const Frame<T>& frame, int64_t n, const Range& entries,
                     int64_t begin, int64_t end) {
  for (int16_t i = 0; i < stage.stored; ++i)
    copy_slot(run, run.program.stage_slots[stage.first_stored + i], frame, n, entries, begin, end);
}

// Converts a thread's part of those of the step's tensors that have another dtype. Returns whether there were any.
template <class T>
static bool stage_inputs(const Run<T>& run, const Frame<T>& frame, int64_t n, const Range& entries, int64_t index,
                         int64_t members) {
  bool any = false;
  for (int16_t s = 0; s < run.program.slot_count; ++s) {
    const SlotInfo& info = run.program.slots[s];
    if (!run.staged(info)) continue;
    any = true;
    const rnncc_tensor& tensor = run.tensor(info.table, info.index);
    const Range units = share(run.dim(info.width), lanes<T>, index, members);
    const int64_t first = run.begin(run.time(n), tensor.step, tensor.entry) + run.dim(info.offset) + units.begin;
    for (int64_t b = entries.begin; b < entries.end; ++b) {
      read_row(frame.p[s] + b * frame.row[s] + units.begin, tensor, first + b * tensor.entry, units.end - units.begin);
    }
  }
  return any;
}

// Runs one part of a step.
template <class T>
static void run_part(const Run<T>& run, const Member& member, Frame<T>& frame, int64_t n, const Part& part) {
  const Program<T>& program = run.program;
  for (int16_t s = 0; s < program.slot_count; ++s) {
    if (program.slots[s].kind != Kind::tile) frame.p[s] = run.at(s, n, part.first, part.last, &frame.row[s]);
  }
  const Range entries = both(part.entries, member.entries), own_entries = both(part.entries, member.own);
  if (stage_inputs(run, frame, n, entries, member.place, member.mates)) member.meet();
  const int16_t stages = part.last ? run.last_stages : program.stage_count;
  for (int16_t s = 0; s < stages; ++s) {
    const StageInfo& stage = program.stages[s];
    if (stage.barrier) member.meet();
    if (stage.row == RowOperator::elements) {
      const auto copy = [&](int16_t i, const Range& of, int64_t begin, int64_t end) {
        copy_slot(run, program.stage_slots[stage.first_stored + i], frame, n, of, begin, end);
      };
      run_elements(
          run, stage, frame, member.index, member.place, member.mates, entries, own_entries, [&] { member.meet(); },
          copy);
      continue;
    }
    if (stage.row != RowOperator::none) {
      run_row_operator(run, stage, frame, own_entries);
      copy_out(run, stage, frame, n, own_entries, 0, run.dim(stage.width));
      continue;
    }
    const Tiling& tiling = run.tilings[s];
    const Range tiles = share(tiling.count, 1, member.place, member.mates);
    if (tiles.begin == tiles.end || entries.begin == entries.end) continue;
    run_tiles(run, s, frame, member.index, entries, tiles);
    copy_out(run, stage, frame, n, entries, tile_range(tiling, tiles.begin).begin,
             tile_range(tiling, tiles.end - 1).end);
  }
}

// Writes the final states of those batch entries whose last step was n; where n is -1 they had none.
template <class T>
static void write_finals(const Run<T>& run, int64_t n, const Range& entries) {
  for (int16_t f = 0; f < run.program.final_count; ++f) {
    const FinalInfo& final_state = run.program.finals[f];
    const rnncc_tensor& tensor = run.tensor(final_state.table, final_state.index);
    if (!tensor.data) continue;
    int64_t row;
    const T* p = run.at(final_state.slot, n + 1, n < 0, true, &row);
    for (int64_t b = entries.begin; b < entries.end; ++b) {
      write_row(tensor, b * tensor.entry, p + b * row, run.dim(run.program.slots[final_state.slot].width));
    }
  }
}

template <class T>
static void run_step(const Run<T>& run, const Member& member, Frame<T>& frame, int64_t n) {
  for (int second = 0; second < 2; ++second) {
    const Part part = run.part(n, second);
    if (part.entries.begin == part.entries.end) continue;
    run_part(run, member, frame, n, part);
    if (!part.last) continue;
    member.meet();
    write_finals(run, n, both(part.entries, member.own));
  }
}

// Writes zeros where no gradient flows and where sums will begin. Threads divide steps and weights.
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
      const int64_t first = run.begin(t, tensor.step, tensor.entry) + run.dim(zero.offset);
      for (int64_t b = 0; b < run.entries(t); ++b) {
        char* row = static_cast<char*>(tensor.data) + (first + b * tensor.entry) * bytes;
        __builtin_memset(row, 0, size_t(run.dim(zero.width) * bytes));
      }
    }
  }
  for (int16_t w = 0; w < program.weight_count; ++w) {
    if (!run.gradients[w] || is_made_at_once(run, w)) continue;
    const Range own = share(run.weight_elements(w), 16, index, members);
    __builtin_memset(run.gradients[w] + own.begin, 0, size_t(own.end - own.begin) * sizeof(T));
  }
}

template <class T>
static void run_member(const Run<T>& run, Team& team, int64_t index, int64_t members) {
  const Program<T>& program = run.program;
  const Call& call = run.call;
  const KeepsShapes kept;
  Frame<T> frame = run.frame(index);
  clear(run, index, members);
  if (convert_weights(run, index, members)) team.barrier();
  pack_streams(run, index, members);
  for (int16_t s = 0; s < program.stage_count; ++s) {
    if (!program.stages[s].products) continue;
    // Where threads divide units, each packs what it will use itself.
    const Range tiles = share(run.tilings[s].count, 1, index, members);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) run.pack(s, tile);
    fill_lists(run, s, index, members);
  }
  team.barrier();
  const bool reduces = program.outer_count + program.sum_count > 0;
  const Member member = member_of(run, index, members);
  if (call.steps == 0) write_finals(run, -1, member.own);
  for (int64_t n = 0, end; n < call.steps; n = end) {
    end = run.block_end(n);
    if (run.streams.given) {
      if (n > 0 && !reduces) team.barrier();
      make_streams(run, n, end, index, members);
      team.barrier();
    }
    for (int64_t step = n; step < end; ++step) {
      run_step(run, member, frame, step);
      // A block's first step reads the last step of the block before. In a packed call a thread's later steps may lie
      // where another thread still reads that one.
      if (call.starts && reduces && step == n) team.barrier();
    }
    if (!reduces) continue;
    team.barrier();
    reduce_block(run, n, end, run.reduction_scratch(index), index, members);
    team.barrier();
  }
  if (!call.table[D_WEIGHTS]) return;
  if (index == 0) make_vector_gradients(run);
  team.barrier();
  write_gradients(run, index, members);
}

// Whether the call's tensors all have dtypes that T takes.
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
  run.streams.given = static_cast<const rnncc_stream_product*>(call.products);
  Buffer sizes, weights, tables, workspace;
  if (!sizes.allocate(program.dim_count * int64_t(sizeof(int64_t)))) return OUT_OF_MEMORY;
  int64_t* dims = reinterpret_cast<int64_t*>(sizes.data);
  program.dims(call.sizes, call.heads, dims);
  run.dims = dims;
  Arena weight_bytes;
  take_weights(run, weight_bytes);
  if (!weights.allocate(weight_bytes.used)) return OUT_OF_MEMORY;
  Arena weight_arena = {weights.data, 0};
  take_weights(run, weight_arena);
  if (choose_lists(run)) return NO_THREADS;
  run.sharing = choose_sharing(run);
  // Where threads divide units, a slow one and a fast one are less than one step apart, so four steps in the ring are
  // enough. Else two are.
  run.ring_mask = run.sharing.by_units() ? 3 : 1;
  const int64_t wanted = wanted_rows(run) / (call.batch > 0 ? call.batch : 1);
  run.block_steps = wanted < 4 ? 4 : wanted;
  if (run.block_steps > call.steps) run.block_steps = call.steps > 0 ? call.steps : 1;
  for (int placing = 0; placing < 2; ++placing) {
    Arena arena = {tables.data, 0};
    run.places = arena.take<Place<T>>(program.slot_count);
    run.primary = arena.take<int16_t>(program.slot_count);
    run.gradients = arena.take<T*>(program.weight_count + 1);
    run.sums = arena.take<T*>(program.sum_count + 1);
    run.block_rows = arena.take<int64_t>(call.starts ? call.steps : 0);
    run.tilings = arena.take<Tiling>(program.stage_count);
    run.first_pack = arena.take<int64_t>(program.stage_count);
    run.packs_per_tile = arena.take<int64_t>(program.stage_count);
    int64_t packs = 0;
    for (int16_t s = 0; s < program.stage_count; ++s) {
      const StageInfo& stage = program.stages[s];
      const Tiling tiling = make_tiling<T>(stage, dims, run.sharing, call.batch);
      int64_t parts = 0;
      for (int16_t p = 0; p < stage.products; ++p) {
        const ProductInfo& product = program.products[stage.first_product + p];
        if (run.listed[stage.first_product + p].listed) continue;
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
    run.barriers = arena.take<Barrier>(run.sharing.groups);
    if (!placing && !tables.allocate(arena.used)) return OUT_OF_MEMORY;
  }
  for (int64_t group = 0; group < run.sharing.groups; ++group) run.barriers[group] = Barrier();
  run.place_blocks();
  run.last_stages = stages_of_last_step(run);
  Arena count;
  lay_out_streams(run, count);
  run.lay_out(count);
  if (!workspace.allocate(count.used)) return OUT_OF_MEMORY;
  Arena place = {workspace.data, 0};
  lay_out_streams(run, place);
  run.lay_out(place);
  const int32_t failed = team_run(
      run.sharing.threads, [&](Team& team, int32_t index, int32_t members) { run_member(run, team, index, members); });
  return failed ? NO_THREADS : DONE;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
