// Training of loops whose states are matrices. The states of all steps would take many times the memory of all else, and
// most of the time to write and read it. So a forward keeps states at borders alone, every few steps. The backward goes
// from one border to the one before: it runs the steps between them forward again, and keeps what they need in memory
// that stays in cache.
#pragma once

#include "op.h"

namespace rnncc {

// Steps from border to border. rnncc/runtime/spec.py has the same number.
constexpr int64_t border_steps = 32;

// Whether a call keeps its states so: on a CPU.
inline bool has_borders(const Run& run) { return run.loop.borders && run.device.is_cpu(); }

inline int64_t border_count(int64_t steps) { return steps > 0 ? (steps - 1) / border_steps : 0; }

// The steps between two borders, in the order of the loop: `number` 0 begins with the initial states.
struct Stretch {
  int64_t number, first, steps;  // `first`: the least t
  int64_t rows;
  int64_t present;              // the first so many batch entries have steps in it
  std::vector<int64_t> starts;  // where rows are packed: of the stretch's steps, among its rows

  Stretch(const Run& run, int64_t number) : number(number) {
    const int64_t done = number * border_steps;
    steps = std::min(border_steps, run.steps - done);
    first = run.reverse ? run.steps - done - steps : done;
    rows = steps * run.batch;
    present = run.batch;
    if (!run.starts) return;
    for (int64_t t = first; t <= first + steps; ++t) starts.push_back(run.starts[t] - run.starts[first]);
    rows = starts.back();
    present = starts[1];  // no step has more rows than the one before
    first_row_ = run.starts[first];
  }

  const int64_t* packed() const { return starts.empty() ? nullptr : starts.data(); }

  // Tensors of all steps as those of the stretch.
  std::vector<rnncc_tensor> of(std::vector<rnncc_tensor> tensors) const {
    for (rnncc_tensor& t : tensors) {
      const int64_t before = packed() ? first_row_ * t.entry : first * t.step;
      if (t.data) t.data = static_cast<char*>(t.data) + before * dtype_bytes(t.dtype);
    }
    return tensors;
  }

 private:
  int64_t first_row_ = 0;
};

// The states at border `number`, which stretch `number` + 1 begins with. `borders` has a tensor [count, B, width] for
// each state.
inline std::vector<rnncc_tensor> at_border(const Run& run, const std::vector<rnncc_tensor>& borders, int64_t number) {
  std::vector<rnncc_tensor> states;
  for (const rnncc_tensor& all : borders)
    states.push_back(
        {static_cast<char*>(all.data) + number * all.step * dtype_bytes(all.dtype), 0, all.entry, all.dtype});
  return states;
}

// [borders, B, width]. Where rows are packed, [entries, 1, width]: each border has those entries that have steps on both of
// its sides, and so many are enough for any lengths. A sequence of n steps passes n / 32 borders, or one more where the
// first stretch is the shorter one for it, in a loop that runs backwards.
inline std::vector<int64_t> shape_of_borders(const Run& run, int32_t state) {
  const int64_t count = border_count(run.steps);
  if (!run.starts) return {count, run.batch, run.state_widths[state]};
  return {std::min(count * run.batch, run.row_count() / border_steps + run.batch), 1, run.state_widths[state]};
}

// Copies batch entries [begin, end) of the states, or of their gradients, in the types that they have; zeros where they
// have no data.
inline void copy_entries(const Run& run, const std::vector<rnncc_tensor>& to, const std::vector<rnncc_tensor>& from,
                         int64_t begin, int64_t end) {
  if (begin >= end) return;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto entries = [&](const rnncc_tensor& t) {
      return over(static_cast<char*>(t.data) + begin * t.entry * dtype_bytes(t.dtype),
                  {end - begin, run.state_widths[i]}, {t.entry, 1}, torch_dtype(t.dtype), run.device);
    };
    if (!to[i].data) continue;
    const Tensor target = entries(to[i]);
    if (from[i].data)
      RNNCC_TORCH(aoti_torch_copy_(target.get(), entries(from[i]).get(), 0));
    else
      RNNCC_TORCH(aoti_torch_zero_(target.get()));
  }
}

// Where rows are packed, entries begin and end within stretches: the states of all entries, or their gradients, as they
// are between two stretches. A stretch changes those of the entries that have steps in it.
struct Carried {
  std::vector<Tensor> memory;
  std::vector<rnncc_tensor> described;

  Carried(const Run& run, const std::vector<rnncc_tensor>& first) {
    if (!run.starts) return;
    for (int32_t i = 0; i < run.segment.states; ++i) {
      memory.push_back(empty({run.batch, run.state_widths[i]}, torch_dtype(run.compute), run.device));
      described.push_back(describe(memory.back()));
    }
    copy_entries(run, described, first, 0, run.batch);
  }
};

// The entries that border `number` has, of packed rows; and at which row of the borders' tensors they begin.
struct PackedBorder {
  int64_t entries, begin;

  static std::vector<PackedBorder> all(const Run& run) {
    std::vector<PackedBorder> made;
    int64_t begin = 0;
    for (int64_t number = 0; run.starts && number < border_count(run.steps); ++number) {
      const int64_t entries = std::min(Stretch(run, number).present, Stretch(run, number + 1).present);
      made.push_back({entries, begin});
      begin += entries;
    }
    return made;
  }

  std::vector<rnncc_tensor> of(std::vector<rnncc_tensor> borders) const {
    for (rnncc_tensor& t : borders) t.data = static_cast<char*>(t.data) + begin * t.entry * dtype_bytes(t.dtype);
    return borders;
  }
};

// Runs a training forward. `sequences` and `finals` are what the call returns.
inline void run_to_borders(const Run& run, const std::vector<rnncc_tensor>& sequences,
                           const std::vector<rnncc_tensor>& finals, const std::vector<rnncc_tensor>& borders) {
  const int64_t last = border_count(run.steps);
  const std::vector<PackedBorder> packed = PackedBorder::all(run);
  const Carried carried(run, run.described_states);
  std::vector<rnncc_tensor> saved(run.loop.saved, {nullptr, 0, 0, run.compute});
  for (int64_t number = 0; number <= last; ++number) {
    const Stretch stretch(run, number);
    if (stretch.rows == 0) continue;
    const std::vector<rnncc_tensor> streams = stretch.of(run.described_streams);
    std::vector<rnncc_tensor> made = stretch.of(sequences), states = carried.described, ends = carried.described;
    if (!run.starts) {
      states = number ? at_border(run, borders, number - 1) : run.described_states;
      ends = number < last ? at_border(run, borders, number) : finals;
    }
    run.forward({{stretch.steps, run.batch, run.heads, run.sizes.data(), run.constants.data(), run.reverse,
                  streams.data(), run.described_weights.data(), states.data(), made.data(), ends.data(), saved.data(),
                  stretch.packed(), stretch.rows, nullptr}});
    if (run.starts && number < last)
      copy_entries(run, packed[number].of(borders), carried.described, 0, packed[number].entries);
  }
  if (!run.starts) return;
  copy_entries(run, finals, carried.described, 0, run.batch);
  // What no border needs must not differ from call to call.
  const int64_t used = packed.empty() ? 0 : packed.back().begin + packed.back().entries;
  for (size_t i = 0; i < borders.size(); ++i) {
    const std::vector<int64_t> shape = shape_of_borders(run, int32_t(i));
    const rnncc_tensor& t = borders[i];
    const Tensor rest = over(static_cast<char*>(t.data) + used * t.entry * dtype_bytes(t.dtype),
                             {shape[0] - used, shape[2]}, {t.entry, 1}, torch_dtype(t.dtype), run.device);
    RNNCC_TORCH(aoti_torch_zero_(rest.get()));
  }
}

// A gradient to which each stretch adds.
class Total {
 public:
  Total(const Run& run, const Tensor& like) : part_(zeros(run, like)), all_(zeros(run, like)) {}

  rnncc_tensor part() const { return {part_.data(), 0, 0, part_.dtype()}; }

  void add() const {
    if (part_.dtype() == RNNCC_FLOAT64)
      add_as<double>();
    else
      add_as<float>();
  }

  void give_to(const Tensor& target) const { RNNCC_TORCH(aoti_torch_copy_(target.get(), all_.get(), 0)); }

 private:
  static Tensor zeros(const Run& run, const Tensor& like) {
    Tensor made = empty(sizes_of(like), torch_dtype(run.compute), run.device);
    RNNCC_TORCH(aoti_torch_zero_(made.get()));
    return made;
  }

  template <class T>
  void add_as() const {
    T* const to = static_cast<T*>(all_.data());
    const T* const from = static_cast<const T*>(part_.data());
    for (int64_t i = 0; i < part_.elements(); ++i) to[i] += from[i];
  }

  Tensor part_, all_;
};

// What a backward between borders is given, and what it writes. `d_weights` are the tensors behind `described_d_weights`,
// in order, without those that are not wanted.
struct BorderedBackward {
  std::vector<rnncc_tensor> borders, d_sequences, d_final, d_streams, described_d_weights, d_states;
  std::vector<const Tensor*> d_weights;
};

inline void run_from_borders(const Run& run, BorderedBackward given) {
  const int64_t last = border_count(run.steps), longest = std::min(border_steps, run.steps);
  // No stretch has more rows than the first steps.
  const std::vector<int64_t> most =
      run.starts ? std::vector<int64_t>{run.starts[longest], 1} : std::vector<int64_t>{longest, run.batch};
  std::vector<Tensor> memory;
  std::vector<rnncc_tensor> saved, carried[2];
  for (int32_t i = 0; i < run.loop.saved; ++i) {
    memory.push_back(empty({most[0], most[1], run.saved_widths[i]}, torch_dtype(run.compute), run.device));
    saved.push_back(run.described(memory.back()));
  }
  const std::vector<PackedBorder> packed = PackedBorder::all(run);
  const Carried begins(run, run.described_states), d_carried(run, given.d_final);
  for (std::vector<rnncc_tensor>& states : carried) {
    for (int32_t i = 0; last > 0 && !run.starts && i < run.segment.states; ++i) {
      memory.push_back(empty({run.batch, run.state_widths[i]}, torch_dtype(run.compute), run.device));
      states.push_back(describe(memory.back()));
    }
  }
  std::vector<Total> totals;
  for (const Tensor* tensor : given.d_weights) totals.emplace_back(run, *tensor);
  std::vector<rnncc_tensor> d_weights = given.described_d_weights;
  for (size_t i = 0, wanted = 0; i < d_weights.size(); ++i)
    if (d_weights[i].data) d_weights[i] = totals[wanted++].part();
  std::vector<rnncc_tensor> none(run.segment.sequences, {nullptr, 0, 0, run.type});
  std::vector<rnncc_tensor> no_finals(run.segment.states, {nullptr, 0, 0, run.compute});
  for (int64_t number = last; number >= 0; --number) {
    const Stretch stretch(run, number);
    if (stretch.rows == 0) continue;
    const std::vector<rnncc_tensor> streams = stretch.of(run.described_streams);
    std::vector<rnncc_tensor> states = run.described_states;
    if (number && run.starts) {
      const PackedBorder& border = packed[number - 1];
      copy_entries(run, begins.described, border.of(given.borders), 0, border.entries);
      copy_entries(run, begins.described, run.described_states, border.entries, stretch.present);
      states = begins.described;
    } else if (number) {
      states = at_border(run, given.borders, number - 1);
    }
    run.forward({{stretch.steps, run.batch, run.heads, run.sizes.data(), run.constants.data(), run.reverse,
                  streams.data(), run.described_weights.data(), states.data(), none.data(), no_finals.data(),
                  saved.data(), stretch.packed(), stretch.rows, nullptr}});
    const std::vector<rnncc_tensor> d_sequences = stretch.of(given.d_sequences);
    std::vector<rnncc_tensor> d_streams = stretch.of(given.d_streams);
    std::vector<rnncc_tensor> d_final = d_carried.described, d_states = d_carried.described;
    if (!run.starts) {
      d_final = number < last ? carried[(number + 1) % 2] : given.d_final;
      d_states = number ? carried[number % 2] : given.d_states;
    }
    run.backward(
        {{stretch.steps, run.batch, run.heads, run.sizes.data(), run.constants.data(), run.reverse, streams.data(),
          run.described_weights.data(), states.data(), saved.data(), d_sequences.data(), d_final.data(),
          d_streams.data(), d_weights.data(), d_states.data(), stretch.packed(), stretch.rows, nullptr}});
    for (const Total& total : totals) total.add();
  }
  if (run.starts) copy_entries(run, given.d_states, d_carried.described, 0, run.batch);
  for (size_t i = 0; i < totals.size(); ++i) totals[i].give_to(*given.d_weights[i]);
}

}  // namespace rnncc
