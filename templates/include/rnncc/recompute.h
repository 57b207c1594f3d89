// What a training forward with `recompute` did not save, made again from the sequences of states that it did save: one call
// of the same loop, for which every step is a batch column with one step of its own. Such a column begins with the states
// that the loop had there, so every value comes out by the same operations on the same numbers; the products of all steps
// are one.
#pragma once

#include "op.h"

namespace rnncc {

// Saved tensors that are sequences of states.
inline int64_t saved_states(const rnncc_loop& loop) {
  int64_t count = 0;
  for (int32_t i = 0; i < loop.saved; ++i) count += loop.saved_state[i] >= 0;
  return count;
}

// What every step begins with, [T, B, width]: the state after the step before, at the first one the initial state.
inline Tensor states_before(const Run& run, const Tensor& sequence, const Tensor& initial) {
  std::vector<Tensor> parts;
  parts.push_back(call_aten("aten::unsqueeze", "", {share(initial), 0}));
  parts.push_back(call_aten("aten::narrow", "", {share(sequence), 0, StableValue(run.reverse), StableValue(run.steps - 1)}));
  if (run.reverse) std::swap(parts[0], parts[1]);
  return call_aten("aten::cat", "", {give(std::move(parts)), 0});
}

// [T, B, width] as T*B columns of one step; a copy, kept in `held`, where columns would not lie evenly spaced.
inline rnncc_tensor as_columns(const Run& run, size_t stream, std::vector<Tensor>& held) {
  rnncc_tensor t = run.described_streams[stream];
  if (run.steps > 1 && run.columns > 1 && t.step != run.columns * t.column) {
    held.push_back(contiguous(alias(run.streams[stream]), 3));
    t = describe(held.back());
  }
  return {t.data, 0, run.columns > 1 ? t.column : t.step, t.dtype};
}

// All saved tensors, from those that are sequences of states.
inline std::vector<Tensor> recompute(const Run& run, std::vector<Tensor> sequences) {
  const rnncc_loop& loop = run.loop;
  std::vector<Tensor> saved, held;
  std::vector<rnncc_tensor> streams, kept(loop.saved, {nullptr, 0, 0, run.compute});
  for (int32_t i = 0, given = 0; i < loop.saved; ++i) {
    const std::vector<int64_t> shape = {run.steps, run.columns, run.saved_widths[i]};
    if (loop.saved_state[i] >= 0) {
      saved.push_back(std::move(sequences[given++]));
      run.view(saved.back(), shape, "saved tensor");
      continue;
    }
    saved.push_back(empty(shape, torch_dtype(run.compute), run.device));
    kept[i] = {saved.back().data(), 0, run.saved_widths[i], run.compute};
  }
  if (run.is_empty()) return saved;
  for (size_t i = 0; i < run.described_streams.size(); ++i) streams.push_back(as_columns(run, i, held));
  // Zeros where a state was not saved: nothing that is made again follows from it.
  std::vector<rnncc_tensor> states(run.segment.states, {nullptr, 0, 0, run.compute});
  for (int32_t i = 0; i < loop.saved; ++i) {
    const int32_t state = loop.saved_state[i];
    if (state < 0) continue;
    held.push_back(states_before(run, saved[i], run.states[state]));
    states[state] = {held.back().data(), 0, run.state_widths[state], held.back().dtype()};
  }
  std::vector<rnncc_tensor> out(run.segment.sequences, {nullptr, 0, 0, run.type});
  std::vector<rnncc_tensor> last(run.segment.states, {nullptr, 0, 0, run.compute});
  run.forward({1, run.steps * run.columns, run.heads, run.sizes.data(), run.constants.data(), false, streams.data(),
               run.described_weights.data(), states.data(), out.data(), last.data(), kept.data()});
  return saved;
}

}  // namespace rnncc
