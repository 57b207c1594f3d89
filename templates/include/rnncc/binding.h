// The ops of a package: boxed kernels between torch's dispatcher and the generated loops. Each boxed kernel checks what it
// was given, allocates what it returns, makes the mask streams from `lengths` and `reset`, and makes one call.
#pragma once

#include "recompute.h"

namespace rnncc {

// The name of what the generated table holds, as a template argument.
template <const rnncc_segment& S>
void forward_op(StableValue* stack, uint64_t, uint64_t) {
  Arguments given(stack, stack + 3);
  const std::vector<int64_t> wanted = take_integers(stack[11]);
  const bool training = as_bool(stack[12]), recomputes = as_bool(stack[13]);
  Run run(S, std::move(given));

  std::vector<Tensor> sequences, finals, saved;
  std::vector<rnncc_tensor> out(S.sequences, rnncc_tensor{nullptr, 0, 0, run.type});
  std::vector<bool> returned(S.sequences, false);  // data would not tell: an empty tensor has none
  for (int64_t index : wanted) {
    if (index < 0 || index >= S.sequences) run.error("there is no sequence " + std::to_string(index));
    if (returned[index]) run.error("sequence " + std::to_string(index) + " is wanted twice");
    returned[index] = true;
    sequences.push_back(empty({run.steps, run.columns, run.sequence_widths[index]}, torch_dtype(run.type), run.device));
    out[index] = describe(sequences.back());
  }
  std::vector<rnncc_tensor> last;
  for (int32_t i = 0; i < S.states; ++i) {
    finals.push_back(empty({run.columns, run.state_widths[i]}, run.states[i].torch_type(), run.device));
    last.push_back(describe(finals.back()));
  }
  std::vector<rnncc_tensor> kept(run.loop.saved, rnncc_tensor{nullptr, 0, 0, run.compute});
  for (int32_t i = 0; training && i < run.loop.saved; ++i) {
    if (recomputes && run.loop.saved_state[i] < 0) continue;
    // A state's sequence that is returned in the dtype that the backward reads is not stored twice.
    const int32_t same = run.loop.saved_sequence[i];
    if (same >= 0 && run.type == run.saved_type(i) && returned[same]) {
      kept[i] = out[same];
      continue;
    }
    saved.push_back(empty({run.steps, run.columns, run.saved_widths[i]}, torch_dtype(run.saved_type(i)), run.device));
    kept[i] = describe(saved.back());
  }
  if (run.is_empty()) {
    for (int32_t i = 0; i < S.states; ++i) RNNCC_TORCH(aoti_torch_copy_(finals[i].get(), run.states[i].get(), 0));
  } else {
    run.forward({run.steps, run.columns, run.heads, run.sizes.data(), run.constants.data(), run.reverse,
                 run.described_streams.data(), run.described_weights.data(), run.described_states.data(), out.data(),
                 last.data(), kept.data()});
  }
  stack[0] = give(std::move(sequences));
  stack[1] = give(std::move(finals));
  stack[2] = give(std::move(saved));
}

// New tensors like those given, where wanted; `described` gets one entry for each, with null data where not wanted.
inline std::vector<Tensor> gradients(const std::vector<Tensor>& like, size_t count, const std::vector<bool>& needs,
                                     size_t first, std::vector<rnncc_tensor>& described) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < count; ++i) {
    if (needs[first + i]) {
      made.push_back(empty(sizes_of(like[i]), like[i].torch_type(), like[i].device()));
      described.push_back(describe(made.back()));
    } else {
      described.push_back({nullptr, 0, 0, like[i].dtype()});
    }
  }
  return made;
}

template <const rnncc_segment& S>
void backward_op(StableValue* stack, uint64_t, uint64_t) {
  std::vector<Tensor> d_sequences = take_tensors(stack[0]);
  const std::vector<int64_t> d_sequence_index = take_integers(stack[1]);
  std::vector<Tensor> d_final = take_tensors(stack[2]);
  const std::vector<int64_t> d_final_index = take_integers(stack[3]);
  std::vector<Tensor> saved = take_tensors(stack[7]);
  Arguments arguments(stack + 4, stack + 8);
  const std::vector<bool> needs = take_bools(stack[16]);
  Run run(S, std::move(arguments));

  if (saved.size() < size_t(run.loop.saved) && int64_t(saved.size()) == saved_states(run.loop))
    saved = Recomputation(run, std::move(saved)).make();
  run.expect("saved tensors", saved.size(), run.loop.saved);
  run.expect("needs", needs.size(), int64_t(run.streams.size() + run.weights.size() + run.states.size()));
  run.expect("sequence gradients", d_sequences.size(), int64_t(d_sequence_index.size()));
  run.expect("final gradients", d_final.size(), int64_t(d_final_index.size()));
  std::vector<rnncc_tensor> kept;
  for (int32_t i = 0; i < run.loop.saved; ++i)
    kept.push_back(run.view(saved[i], {run.steps, run.columns, run.saved_widths[i]}, "saved tensor"));
  std::vector<rnncc_tensor> out(S.sequences, rnncc_tensor{nullptr, 0, 0, run.type});
  for (size_t i = 0; i < d_sequences.size(); ++i) {
    const int64_t index = d_sequence_index[i];
    if (index < 0 || index >= S.sequences) run.error("there is no sequence " + std::to_string(index));
    out[index] = run.view(d_sequences[i], {run.steps, run.columns, run.sequence_widths[index]}, "gradient");
  }
  std::vector<rnncc_tensor> last(S.states, rnncc_tensor{nullptr, 0, 0, run.type});
  for (size_t i = 0; i < d_final.size(); ++i) {
    const int64_t index = d_final_index[i];
    if (index < 0 || index >= S.states) run.error("there is no state " + std::to_string(index));
    last[index] = run.view(d_final[i], {run.columns, run.state_widths[index]}, "gradient");
  }

  const size_t given = run.streams.size();
  std::vector<rnncc_tensor> stream_out, weight_out, state_out;
  std::vector<Tensor> d_streams = gradients(run.streams, given, needs, 0, stream_out);
  std::vector<Tensor> d_weights = gradients(run.weights, run.weights.size(), needs, given, weight_out);
  std::vector<Tensor> d_states =
      gradients(run.states, run.states.size(), needs, given + run.weights.size(), state_out);
  if (S.streams == 0 && !d_streams.empty()) RNNCC_TORCH(aoti_torch_zero_(d_streams[0].get()));
  stream_out.resize(S.streams);
  // The mask streams, which stand last, have no gradient.
  for (size_t i = S.streams; i < run.described_streams.size(); ++i) stream_out.push_back({nullptr, 0, 0, run.type});
  if (run.is_empty()) {
    for (Tensor& tensor : d_weights) RNNCC_TORCH(aoti_torch_zero_(tensor.get()));
    for (size_t i = 0, made = 0; i < state_out.size(); ++i) {
      if (!needs[given + run.weights.size() + i]) continue;
      Tensor& target = d_states[made++];
      RNNCC_TORCH(aoti_torch_zero_(target.get()));
      for (size_t j = 0; j < d_final.size(); ++j)
        if (d_final_index[j] == int64_t(i)) RNNCC_TORCH(aoti_torch_copy_(target.get(), d_final[j].get(), 0));
    }
  } else {
    const rnncc_backward_call call = {run.steps,
                                      run.columns,
                                      run.heads,
                                      run.sizes.data(),
                                      run.constants.data(),
                                      run.reverse,
                                      run.described_streams.data(),
                                      run.described_weights.data(),
                                      run.described_states.data(),
                                      kept.data(),
                                      out.data(),
                                      last.data(),
                                      stream_out.data(),
                                      weight_out.data(),
                                      state_out.data()};
    if (run.device.is_cpu()) {
      run.finish(run.loop.backward(&call));
    } else {
      run.loop.device_backward(&call, run.device.index);
    }
  }
  stack[0] = give(std::move(d_streams));
  stack[1] = give(std::move(d_weights));
  stack[2] = give(std::move(d_states));
}

}  // namespace rnncc
