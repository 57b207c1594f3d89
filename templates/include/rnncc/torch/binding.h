// The ops of a package: boxed kernels between torch's dispatcher and the generated loops. Each boxed kernel checks its
// arguments, allocates its results, turns `lengths` and `reset` into what loops read, and calls the loop once.
#pragma once

#include "borders.h"
#include "recompute.h"

namespace rnncc {

// What a direction's forward writes.
struct Outputs {
  std::vector<rnncc_tensor> sequences, finals, saved;
  std::vector<rnncc_tensor> borders;
};

// Makes a direction's outputs, and appends them to those of the directions before.
inline Outputs make_outputs(const Run& run, const std::vector<int64_t>& wanted, bool training, bool recomputes,
                            std::vector<Tensor>& sequences, std::vector<Tensor>& finals, std::vector<Tensor>& saved) {
  const rnncc_segment& segment = run.segment;
  Outputs out;
  out.sequences.resize(segment.sequences, {nullptr, 0, 0, run.type});
  out.saved.resize(run.loop.saved, {nullptr, 0, 0, run.compute});
  std::vector<bool> returned(segment.sequences, false);  // `data` would not tell, because an empty tensor has none
  for (int64_t index : wanted) {
    if (index < 0 || index >= segment.sequences) run.error("there is no sequence " + std::to_string(index));
    if (returned[index]) run.error("sequence " + std::to_string(index) + " is wanted twice");
    returned[index] = true;
    sequences.push_back(empty(run.of_rows(run.sequence_widths[index]), torch_dtype(run.type), run.device));
    out.sequences[index] = run.described(sequences.back());
  }
  for (int32_t i = 0; i < segment.states; ++i) {
    finals.push_back(empty({run.batch, run.state_widths[i]}, run.states[i].torch_type(), run.device));
    out.finals.push_back(describe(finals.back()));
    if (run.has_empty_entries()) RNNCC_TORCH(aoti_torch_copy_(finals.back().get(), run.states[i].get(), 0));
  }
  if (training && has_borders(run)) {
    for (int32_t i = 0; i < segment.states; ++i) {
      saved.push_back(empty(shape_of_borders(run, i), torch_dtype(run.compute), run.device));
      out.borders.push_back(describe(saved.back()));
    }
    return out;
  }
  for (int32_t i = 0; training && i < run.loop.saved; ++i) {
    if (recomputes && run.loop.saved_state[i] < 0) continue;
    // A state's sequence that is returned in the dtype that the backward reads is not stored twice.
    const int32_t same = run.loop.saved_sequence[i];
    if (same >= 0 && run.type == run.saved_type(i) && returned[same]) {
      out.saved[i] = out.sequences[same];
      continue;
    }
    saved.push_back(empty(run.of_rows(run.saved_widths[i]), torch_dtype(run.saved_type(i)), run.device));
    out.saved[i] = run.described(saved.back());
  }
  return out;
}

inline void run_forward(const rnncc_segment& segment, StableValue* stack) {
  Arguments given(stack, stack + 3);
  const std::vector<int64_t> wanted = take_integers(stack[11]);
  const bool training = as_bool(stack[12]), recomputes = as_bool(stack[13]);
  const std::vector<Run> runs = make_runs(segment, std::move(given));
  std::vector<Tensor> sequences, finals, saved;
  std::vector<Outputs> outputs;
  for (const Run& run : runs)
    outputs.push_back(make_outputs(run, wanted, training, recomputes, sequences, finals, saved));
  std::vector<rnncc_forward_call> calls;
  for (size_t d = 0; d < runs.size(); ++d) {
    const Run& run = runs[d];
    Outputs& out = outputs[d];
    calls.push_back({run.steps, run.batch, run.heads, run.sizes.data(), run.constants.data(), run.reverse,
                     run.described_streams.data(), run.described_weights.data(), run.described_states.data(),
                     out.sequences.data(), out.finals.data(), out.saved.data(), run.starts, run.row_count(),
                     run.lengths});
  }
  if (!runs[0].is_empty() && training && has_borders(runs[0])) {
    for (size_t d = 0; d < runs.size(); ++d)
      run_to_borders(runs[d], outputs[d].sequences, outputs[d].finals, outputs[d].borders);
  } else if (!runs[0].is_empty()) {
    runs[0].forward(calls);
  }
  stack[0] = give(std::move(sequences));
  stack[1] = give(std::move(finals));
  stack[2] = give(std::move(saved));
}

// Appends to `made` a new tensor for each of `like` that is needed; their flags stand in `needs` from `first` on.
// Returns a description of each, with null data where it is not needed.
inline std::vector<rnncc_tensor> make_gradients(const Run& run, const std::vector<Tensor>& like,
                                                const std::vector<bool>& needs, size_t first,
                                                std::vector<Tensor>& made) {
  std::vector<rnncc_tensor> described;
  for (size_t i = 0; i < like.size(); ++i) {
    if (needs[first + i]) {
      made.push_back(empty(sizes_of(like[i]), like[i].torch_type(), like[i].device()));
      described.push_back(run.described(made.back()));
    } else {
      described.push_back({nullptr, 0, 0, like[i].dtype()});
    }
  }
  return described;
}

// The gradients that came. They are for some of the tensors that the forward returned; `index` counts through all
// directions.
struct Received {
  std::vector<Tensor> tensors;
  std::vector<int64_t> index;

  void check(const Run& run, const char* what, size_t all) const {
    run.expect((std::string(what) + " gradients").c_str(), tensors.size(), int64_t(index.size()));
    for (int64_t i : index)
      if (i < 0 || i >= int64_t(all)) run.error(std::string("there is no ") + what + " " + std::to_string(i));
  }

  // The gradients of a direction, each at its place among `count`. `view` checks and describes one.
  template <class F>
  std::vector<rnncc_tensor> of(const Run& run, size_t direction, int64_t count, const F& view) {
    std::vector<rnncc_tensor> described(count, rnncc_tensor{nullptr, 0, 0, run.type});
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t place = index[i] - int64_t(direction) * count;
      if (place >= 0 && place < count) described[place] = view(tensors[i], place);
    }
    return described;
  }
};

// What a direction's backward reads and writes beside the forward's arguments.
struct Adjoint {
  std::vector<Tensor> all_saved;
  std::vector<rnncc_tensor> saved, d_sequences, d_final, d_streams, d_weights, d_states;
};

// Takes over what a forward saved, as the kernel reads it. Where the forward saved only states, the rest is computed
// again.
inline void take_saved(const Run& run, std::vector<Tensor> given, Adjoint& adjoint) {
  if (has_borders(run)) {
    run.expect("borders", given.size(), run.segment.states);
    adjoint.all_saved = std::move(given);
    for (int32_t i = 0; i < run.segment.states; ++i) {
      run.view(adjoint.all_saved[i], shape_of_borders(run, i), "border");
      adjoint.saved.push_back(describe(adjoint.all_saved[i]));
    }
    return;
  }
  if (given.size() < size_t(run.loop.saved) && int64_t(given.size()) == saved_states(run.loop))
    given = Recomputation(run, std::move(given)).make();
  run.expect("saved tensors", given.size(), run.loop.saved);
  adjoint.all_saved = std::move(given);
  for (int32_t i = 0; i < run.loop.saved; ++i)
    adjoint.saved.push_back(run.view(adjoint.all_saved[i], run.of_rows(run.saved_widths[i]), "saved tensor"));
}

inline void run_backward(const rnncc_segment& segment, StableValue* stack) {
  Received d_sequences = {take_tensors(stack[0]), take_integers(stack[1])};
  Received d_final = {take_tensors(stack[2]), take_integers(stack[3])};
  std::vector<Tensor> saved = take_tensors(stack[7]);
  Arguments given(stack + 4, stack + 8);
  const std::vector<bool> needs = take_bools(stack[16]);
  const size_t first_weight = given.streams.size(), first_state = first_weight + given.weights.size();
  const std::vector<Run> runs = make_runs(segment, std::move(given));
  const size_t directions = runs.size(), states = directions * segment.states;
  runs[0].expect("needs", needs.size(), int64_t(first_state + states));
  d_sequences.check(runs[0], "sequence", directions * segment.sequences);
  d_final.check(runs[0], "state", states);

  std::vector<Tensor> d_streams, d_weights, d_states;
  std::vector<Adjoint> adjoints(directions);
  for (size_t d = 0; d < directions; ++d) {
    const Run& run = runs[d];
    Adjoint& adjoint = adjoints[d];
    take_saved(run, take_share(saved, d, directions), adjoint);
    adjoint.d_sequences = d_sequences.of(run, d, segment.sequences, [&](Tensor& tensor, int64_t i) {
      return run.view(tensor, run.of_rows(run.sequence_widths[i]), "gradient");
    });
    adjoint.d_final = d_final.of(run, d, segment.states, [&](Tensor& tensor, int64_t i) {
      return run.view(tensor, {run.batch, run.state_widths[i]}, "gradient");
    });
    adjoint.d_streams = make_gradients(run, run.streams, needs, d * run.streams.size(), d_streams);
    adjoint.d_weights = make_gradients(run, run.weights, needs, first_weight + d * run.weights.size(), d_weights);
    adjoint.d_states = make_gradients(run, run.states, needs, first_state + d * run.states.size(), d_states);
    // A stream that only tells T, B and the dtype is not the loop's. The mask streams, which stand last, have no
    // gradient.
    adjoint.d_streams.resize(segment.streams);
    adjoint.d_streams.resize(run.described_streams.size(), {nullptr, 0, 0, run.type});
  }
  const auto clear = [](const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) RNNCC_TORCH(aoti_torch_zero_(tensor.get()));
  };
  if (segment.streams == 0) clear(d_streams);
  if (runs[0].is_empty()) clear(d_weights);
  if (runs[0].has_empty_entries()) {
    clear(d_states);
    for (size_t i = 0, made = 0; i < states; ++i) {
      if (!needs[first_state + i]) continue;
      const Tensor& target = d_states[made++];
      for (size_t j = 0; j < d_final.tensors.size(); ++j)
        if (d_final.index[j] == int64_t(i)) RNNCC_TORCH(aoti_torch_copy_(target.get(), d_final.tensors[j].get(), 0));
    }
  }
  if (!runs[0].is_empty()) {
    std::vector<rnncc_backward_call> calls;
    for (size_t d = 0; d < directions; ++d) {
      const Run& run = runs[d];
      Adjoint& adjoint = adjoints[d];
      calls.push_back({run.steps, run.batch, run.heads, run.sizes.data(), run.constants.data(), run.reverse,
                       run.described_streams.data(), run.described_weights.data(), run.described_states.data(),
                       adjoint.saved.data(), adjoint.d_sequences.data(), adjoint.d_final.data(),
                       adjoint.d_streams.data(), adjoint.d_weights.data(), adjoint.d_states.data(), run.starts,
                       run.row_count(), run.lengths});
    }
    if (!has_borders(runs[0])) {
      runs[0].backward(calls);
    } else {
      auto made = d_weights.cbegin();
      for (size_t d = 0; d < directions; ++d) {
        const Adjoint& own = adjoints[d];
        std::vector<const Tensor*> wanted;
        for (const rnncc_tensor& tensor : own.d_weights)
          if (tensor.data) wanted.push_back(&*made++);
        run_from_borders(runs[d], {own.saved, own.d_sequences, own.d_final, own.d_streams, own.d_weights, own.d_states,
                                   std::move(wanted)});
      }
    }
  }
  stack[0] = give(std::move(d_streams));
  stack[1] = give(std::move(d_weights));
  stack[2] = give(std::move(d_states));
}

}  // namespace rnncc
