// The product of inputs with a weight, and its gradients (linear_call.h). Threads divide the rows, and where there are few
// of them the columns too; for the weight's gradient they divide the outputs. Every element is summed in the same order
// whatever their number.
#pragma once

#include "gemm.h"
#include "layout.h"
#include "../core/linear_call.h"
#include "reduce.h"
#include "team.h"

namespace rnncc {
inline namespace RNNCC_ISA_NAMESPACE {

// One thread works on so many rows at a time. Rows of another dtype are converted first.
constexpr int64_t linear_rows = row_block;
// For the weight's gradient so many rows are converted at a time.
constexpr int64_t gradient_rows = 512;

template <class T>
RNNCC_INLINE bool in_place(const rnncc_matrix& m) {
  return m.dtype == compute_dtype<T>;
}

// The matrix without its first rows.
RNNCC_INLINE rnncc_matrix rows_from(const rnncc_matrix& m, int64_t first) {
  return {static_cast<char*>(m.data) + first * m.row * element_bytes(dtype_of[m.dtype]), m.row, m.dtype};
}

// Returns rows [begin, end) of n elements in the compute type: where they are, or converted into `room`.
template <class T>
static const T* rows_at(const rnncc_matrix& m, int64_t begin, int64_t end, int64_t n, T* room, int64_t* row) {
  if (in_place<T>(m)) {
    *row = m.row;
    return static_cast<const T*>(m.data) + begin * m.row;
  }
  for (int64_t r = begin; r < end; ++r) load_row(room + (r - begin) * n, m.data, r * m.row, n, dtype_of[m.dtype]);
  *row = n;
  return room;
}

template <class T>
static void rows_to(const rnncc_matrix& m, int64_t begin, int64_t end, int64_t n, const T* room) {
  for (int64_t r = begin; r < end; ++r) store_row(m.data, r * m.row, room + (r - begin) * n, n, dtype_of[m.dtype]);
}

// Packs a thread's panels of b from the weight. The forward product takes Wᵀ (`by_output`), the gradient of x takes W.
template <class T>
static void pack_weight(const Packed<T>& b, const rnncc_matrix& weight, bool by_output, T* room, int64_t index,
                        int64_t members) {
  const Range own = share(b.n, panel_columns<T>, index, members);
  if (own.begin == own.end) return;
  int64_t row;
  if (by_output) {
    for (int64_t n = own.begin; n < own.end; n += panel_columns<T>) {
      const int64_t end = n + panel_columns<T> < own.end ? n + panel_columns<T> : own.end;
      const T* source = rows_at(weight, n, end, b.k, room, &row);
      pack_nk(b, source, row, n, end - n);
    }
  } else {
    // A weight of another dtype was converted into `room` as a whole.
    const T* source = in_place<T>(weight) ? static_cast<const T*>(weight.data) : room;
    row = in_place<T>(weight) ? weight.row : b.n;
    pack_kn(b, source + own.begin, row, own.begin, own.end - own.begin);
  }
}

// Whether nothing of the call is to be converted.
template <class T>
RNNCC_INLINE bool as_they_lie(const rnncc_linear_call& call) {
  return in_place<T>(call.x) && in_place<T>(call.weight) && in_place<T>(call.y) &&
         (!call.bias.data || in_place<T>(call.bias));
}

// Computes a thread's rows of out[rows, b.n] = in[rows, b.k] * b (+ bias), and of these the columns given, which begin
// at a panel. Where `out` has another dtype, the columns are all of them.
template <class T>
static void multiply_rows(const rnncc_matrix& out, const rnncc_matrix& in, const Packed<T>& b, const T* bias,
                          const Range& rows, const Range& columns, T* in_room, T* out_room) {
  for (int64_t r = rows.begin; r < rows.end; r += linear_rows) {
    const int64_t end = r + linear_rows < rows.end ? r + linear_rows : rows.end;
    const bool direct = in_place<T>(out);
    T* c = direct ? static_cast<T*>(out.data) + r * out.row : out_room;
    const int64_t c_row = direct ? out.row : b.n, panel_begin = columns.begin / panel_columns<T>,
                  panel_end = panel_count<T>(columns.end);
    bool is_done = false;
    if constexpr (sizeof(T) == 4) {
      is_done = in.dtype == RNNCC_BFLOAT16 && are_whole_pairs(b);
      if (is_done)
        gemm_of_pairs(c, c_row, static_cast<const uint16_t*>(in.data) + r * in.row, in.row, b, end - r, panel_begin,
                      panel_end, bias);
    }
    if (!is_done) {
      int64_t in_row;
      const T* a = rows_at(in, r, end, b.k, in_room, &in_row);
      gemm(c, c_row, a, in_row, b, int64_t(0), end - r, panel_begin, panel_end, bias, false);
    }
    if (!direct) rows_to(out, r, end, b.n, out_room);
  }
}

RNNCC_INLINE int64_t linear_threads(int64_t rows, int64_t inputs, int64_t outputs) {
  constexpr int64_t least_work = 1 << 18;
  return rows * inputs * outputs < least_work ? 1 : thread_count();
}

// So many rows of x are few: the weight is packed block by block, and not as a whole.
constexpr int64_t few_rows = 512;

// A product in parts for threads: so many ranges of its rows, in pieces of so many, by so many ranges of its columns.
struct Parts {
  int64_t rows, piece, columns;
};

// The parts that take a thread least. To pack what a part has of the weight, or to wait for it, takes as long as
// `packing` rows.
template <class T>
static Parts parts_for(int64_t threads, int64_t rows, int64_t n, int64_t packing, int64_t piece = kernel_rows) {
  const int64_t tiles = rows > 0 ? (rows + piece - 1) / piece : 1, panels = panel_count<T>(n);
  Parts best = {1, piece, 1};
  int64_t least = (tiles * piece + packing) * panels;
  for (int64_t columns = 1; columns <= threads && columns <= panels; ++columns) {
    const int64_t ranges = threads / columns < tiles ? threads / columns : tiles;
    const int64_t work = ((tiles + ranges - 1) / ranges * piece + packing) * ((panels + columns - 1) / columns);
    if (work >= least) continue;
    least = work;
    best = {ranges, piece, columns};
  }
  return best;
}

// Calls f(rows, columns) for the parts of a thread.
template <class T, class F>
RNNCC_INLINE void for_parts(const Parts& parts, int64_t rows, int64_t n, int64_t index, int64_t members, const F& f) {
  const Range own = share(parts.rows * parts.columns, 1, index, members);
  for (int64_t part = own.begin; part < own.end; ++part) {
    const Range columns = share(n, panel_columns<T>, part % parts.columns, parts.columns);
    const Range some = share(rows, parts.piece, part / parts.columns, parts.rows);
    if (columns.begin < columns.end && some.begin < some.end) f(some, columns);
  }
}

// Computes a part of out[rows, n] = in[rows, k] * B (+ bias) for few rows, with B as in gemm_once.
template <bool BY_OUTPUT, class T>
static void multiply_once(const rnncc_matrix& out, const rnncc_matrix& in, const rnncc_matrix& b, const T* bias,
                          const Range& rows, const Range& columns, int64_t k, T* scratch) {
  const T* factor = static_cast<const T*>(b.data) + columns.begin * (BY_OUTPUT ? b.row : 1);
  gemm_once<BY_OUTPUT>(static_cast<T*>(out.data) + rows.begin * out.row + columns.begin, out.row,
                       static_cast<const T*>(in.data) + rows.begin * in.row, in.row, rows.end - rows.begin, factor,
                       b.row, columns.end - columns.begin, k, bias ? bias + columns.begin : nullptr, false, scratch);
}

// Computes a thread's share of y for few rows of x, from the weight as it lies. `scratch`: the thread's, where there are
// more than direct_rows.
template <class T>
static void multiply_few(const rnncc_linear_call& call, T* scratch, int64_t index, int64_t members) {
  const T* bias = static_cast<const T*>(call.bias.data);
  if (call.rows > direct_rows) {
    const Parts parts = parts_for<T>(members, call.rows, call.outputs, once_packing);
    for_parts<T>(parts, call.rows, call.outputs, index, members, [&](const Range& rows, const Range& columns) {
      multiply_once<true>(call.y, call.x, call.weight, bias, rows, columns, call.inputs, scratch);
    });
    return;
  }
  const Range own = share(call.outputs, 16, index, members);
  gemm_direct(static_cast<T*>(call.y.data) + own.begin, call.y.row, static_cast<const T*>(call.x.data), call.x.row,
              call.rows, static_cast<const T*>(call.weight.data) + own.begin * call.weight.row, call.weight.row,
              own.end - own.begin, call.inputs, bias ? bias + own.begin : nullptr, false);
}

template <class T>
static int32_t linear_few(const rnncc_linear_call& call) {
  const int64_t threads = linear_threads(call.rows, call.inputs, call.outputs);
  const int64_t room = call.rows > direct_rows ? once_scratch_elements<T> : 0;
  Buffer buffer;
  if (!buffer.allocate(threads * room * int64_t(sizeof(T)))) return OUT_OF_MEMORY;
  T* scratch = reinterpret_cast<T*>(buffer.data);
  const int32_t failed = team_run(threads, [&](Team&, int32_t index, int32_t members) {
    multiply_few(call, scratch + index * room, index, members);
  });
  return failed ? NO_THREADS : DONE;
}

template <class T>
static int32_t pack_members(const rnncc_pack_call& call) {
  if (!in_place<T>(call.weight)) return WRONG_DTYPE;
  const int64_t rows = call.rows / call.members, elements = packed_elements<T>(rows, call.columns);
  if (!call.packed) {
    *call.elements = call.members * elements;
    return DONE;
  }
  for (int64_t member = 0; member < call.members; ++member) {
    const Packed<T> b = {static_cast<T*>(call.packed) + member * elements, rows, call.columns};
    pack_nk(b, static_cast<const T*>(call.weight.data) + member * rows * call.weight.row, call.weight.row, int64_t(0),
            rows);
  }
  return DONE;
}

template <class T>
static int32_t linear_forward(const rnncc_linear_call& call) {
  const rnncc_matrix* const given[] = {&call.x, &call.weight, &call.bias, &call.y};
  for (const rnncc_matrix* m : given) {
    if (m->data && !takes<T>(m->dtype)) return WRONG_DTYPE;
  }
  if (call.rows <= few_rows && as_they_lie<T>(call)) return linear_few<T>(call);
  const int64_t threads = linear_threads(call.rows, call.inputs, call.outputs);
  const int64_t in_room = in_place<T>(call.x) ? 0 : linear_rows * call.inputs;
  const int64_t out_room = in_place<T>(call.y) ? 0 : linear_rows * call.outputs;
  const int64_t pack_room = in_place<T>(call.weight) ? 0 : panel_columns<T> * call.inputs;
  const int64_t own = round_up(in_room + out_room + pack_room, 16);
  const bool pairs = takes_pairs<T>(call.weight.dtype, call.inputs);
  const int64_t packed = round_up(packed_elements<T>(call.outputs, call.inputs, pairs), 16);
  Buffer buffer;
  if (!buffer.allocate((packed + round_up(call.outputs, 16) + own * threads) * int64_t(sizeof(T))))
    return OUT_OF_MEMORY;
  T* memory = reinterpret_cast<T*>(buffer.data);
  const Packed<T> b = {memory, call.outputs, call.inputs, pairs};
  T* bias = nullptr;
  if (call.bias.data) {
    bias = memory + packed;
    load_row(bias, call.bias.data, int64_t(0), call.outputs, dtype_of[call.bias.dtype]);
  }
  T* rooms = memory + packed + round_up(call.outputs, 16);
  const int32_t failed = team_run(threads, [&](Team& team, int32_t index, int32_t members) {
    T* room = rooms + index * own;
    pack_weight(b, call.weight, true, room + in_room + out_room, index, members);
    team.barrier();
    multiply_rows(call.y, call.x, b, bias, share(call.rows, kernel_rows, index, members), Range{0, b.n}, room,
                  room + in_room);
  });
  return failed ? NO_THREADS : DONE;
}

// Converts a thread's rows of a block into `room`, unless the rows can be read where they are.
template <class T>
static void convert_block(const rnncc_matrix& m, int64_t begin, int64_t end, int64_t n, T* room, int64_t index,
                          int64_t members) {
  if (in_place<T>(m)) return;
  const Range own = share(end - begin, 1, index, members);
  int64_t row;
  rows_at(m, begin + own.begin, begin + own.end, n, room + own.begin * n, &row);
}

// Computes d_weight and d_bias, block by block of rows. Threads divide the outputs.
template <class T>
static void weight_gradient(const rnncc_linear_backward_call& call, Team& team, int64_t index, int64_t members,
                            T* d_weight, T* d_bias, T* x_room, T* d_y_room, T* scratch) {
  const Range own = share(call.outputs, kernel_rows, index, members);
  const bool converts = !in_place<T>(call.x) || !in_place<T>(call.d_y);
  const int64_t block = converts ? gradient_rows : call.rows > 0 ? call.rows : 1;
  if (d_weight && call.rows == 0)
    __builtin_memset(d_weight + own.begin * call.inputs, 0, size_t((own.end - own.begin) * call.inputs) * sizeof(T));
  if (d_bias) __builtin_memset(d_bias + own.begin, 0, size_t(own.end - own.begin) * sizeof(T));
  for (int64_t r = 0; r < call.rows; r += block) {
    const int64_t end = r + block < call.rows ? r + block : call.rows;
    if (converts) {
      team.barrier();
      if (d_weight) convert_block(call.x, r, end, call.inputs, x_room, index, members);
      convert_block(call.d_y, r, end, call.outputs, d_y_room, index, members);
      team.barrier();
    }
    const int64_t x_row = in_place<T>(call.x) ? call.x.row : call.inputs;
    const int64_t d_y_row = in_place<T>(call.d_y) ? call.d_y.row : call.outputs;
    const T* x = in_place<T>(call.x) ? static_cast<const T*>(call.x.data) + r * x_row : x_room;
    const T* d_y = in_place<T>(call.d_y) ? static_cast<const T*>(call.d_y.data) + r * d_y_row : d_y_room;
    if (own.begin == own.end) continue;
    if (d_weight)
      gemm_tn(d_weight, call.inputs, d_y, d_y_row, x, x_row, call.inputs, end - r, own.begin, own.end, r > 0, scratch,
              takes_pairs<T>(call.weight.dtype, call.rows));
    for (int64_t k = r; d_bias && k < end; k += gradient_rows) {
      const int64_t last = k + gradient_rows < end ? k + gradient_rows : end;
      add_rows(d_bias, d_y + (k - r) * d_y_row, d_y_row, last - k, own);
    }
  }
}

template <class T>
static int32_t linear_backward(const rnncc_linear_backward_call& call) {
  const rnncc_matrix* const given[] = {&call.x, &call.weight, &call.d_y, &call.d_x, &call.d_weight, &call.d_bias};
  for (const rnncc_matrix* m : given) {
    if (m->data && !takes<T>(m->dtype)) return WRONG_DTYPE;
  }
  const int64_t threads = linear_threads(call.rows, call.inputs, call.outputs);
  Buffer buffer;
  T *packed = nullptr, *weight = nullptr, *d_weight = nullptr, *d_bias = nullptr, *x_block = nullptr,
    *d_y_block = nullptr;
  T* rooms = nullptr;
  const int64_t elements = call.inputs * call.outputs;
  const bool pairs = takes_pairs<T>(call.weight.dtype, call.outputs);
  const bool few = call.rows <= few_rows && in_place<T>(call.d_y) && in_place<T>(call.weight) && in_place<T>(call.d_x);
  const int64_t d_y_room = call.d_x.data && !in_place<T>(call.d_y) ? linear_rows * call.outputs : 0;
  const int64_t d_x_room = call.d_x.data && !in_place<T>(call.d_x) ? linear_rows * call.inputs : 0;
  const int64_t scratch = call.d_weight.data ? gemm_tn_scratch_elements<T>(call.inputs) : 0;
  const int64_t own = round_up(scratch, 16) + round_up(d_y_room + d_x_room, 16);
  for (int placing = 0; placing < 2; ++placing) {
    Arena arena = {buffer.data, 0};
    if (call.d_x.data) {
      packed = arena.take<T>(few ? once_scratch_elements<T> * threads
                                 : packed_elements<T>(call.inputs, call.outputs, pairs));
    }
    if (call.d_x.data && !in_place<T>(call.weight)) weight = arena.take<T>(elements);
    if (call.d_weight.data)
      d_weight = in_place<T>(call.d_weight) ? static_cast<T*>(call.d_weight.data) : arena.take<T>(elements);
    if (call.d_bias.data)
      d_bias = in_place<T>(call.d_bias) ? static_cast<T*>(call.d_bias.data) : arena.take<T>(call.outputs);
    if (!in_place<T>(call.x)) x_block = arena.take<T>(gradient_rows * call.inputs);
    if (!in_place<T>(call.d_y)) d_y_block = arena.take<T>(gradient_rows * call.outputs);
    rooms = arena.take<T>(own * threads);
    if (!placing && !buffer.allocate(arena.used)) return OUT_OF_MEMORY;
  }
  const Parts parts = parts_for<T>(threads, call.rows, call.inputs, once_packing);
  const int32_t failed = team_run(threads, [&](Team& team, int32_t index, int32_t members) {
    T* room = rooms + index * own;
    T* rows = room + round_up(scratch, 16);
    if (call.d_x.data && few) {
      for_parts<T>(parts, call.rows, call.inputs, index, members, [&](const Range& some, const Range& columns) {
        multiply_once<false>(call.d_x, call.d_y, call.weight, static_cast<const T*>(nullptr), some, columns,
                             call.outputs, packed + index * once_scratch_elements<T>);
      });
    } else if (call.d_x.data) {
      if (weight) {
        const Range part = share(call.outputs, 1, index, members);
        int64_t row;
        rows_at(call.weight, part.begin, part.end, call.inputs, weight + part.begin * call.inputs, &row);
        team.barrier();
      }
      const Packed<T> b = {packed, call.inputs, call.outputs, pairs};
      pack_weight(b, call.weight, false, weight, index, members);
      team.barrier();
      multiply_rows(call.d_x, call.d_y, b, static_cast<const T*>(nullptr),
                    share(call.rows, kernel_rows, index, members), Range{0, b.n}, rows, rows + d_y_room);
    }
    if (d_weight || d_bias) weight_gradient(call, team, index, members, d_weight, d_bias, x_block, d_y_block, room);
  });
  if (failed) return NO_THREADS;
  if (d_weight && !in_place<T>(call.d_weight)) {
    for (int64_t o = 0; o < call.outputs; ++o) {
      store_row(call.d_weight.data, o * call.d_weight.row, d_weight + o * call.inputs, call.inputs,
                dtype_of[call.d_weight.dtype]);
    }
  }
  if (d_bias && !in_place<T>(call.d_bias))
    store_row(call.d_bias.data, int64_t(0), d_bias, call.outputs, dtype_of[call.d_bias.dtype]);
  return DONE;
}

}  // namespace RNNCC_ISA_NAMESPACE
}  // namespace rnncc
