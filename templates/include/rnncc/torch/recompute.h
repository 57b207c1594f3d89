// Makes again what a training forward with `recompute` did not save, from the sequences of states that it did save. The
// same loop does it: each step becomes a batch entry of its own, which runs for one step. An entry begins with the
// states that the loop had at that step, so every value comes from the same numbers. The products of many steps become
// one. On a GPU another kernel may run so large a batch, and add up products in another order.
#pragma once

#include "op.h"

namespace rnncc {

// A call has so many rows at most: enough for every product to run at full speed, and few enough for the memory of a
// call.
constexpr int64_t recomputed_rows = 16384;

// How many saved tensors are sequences of states.
inline int64_t saved_states(const rnncc_loop& loop) {
  int64_t count = 0;
  for (int32_t i = 0; i < loop.saved; ++i) count += loop.saved_state[i] >= 0;
  return count;
}

class Recomputation {
 public:
  // Takes the saved tensors that are sequences of states.
  Recomputation(const Run& run, std::vector<Tensor> sequences)
      : run_(run),
        states_(run.segment.states, {nullptr, 0, 0, run.compute}),
        values_(run.loop.saved, {nullptr, 0, 0, run.compute}) {
    for (int32_t i = 0, given = 0; i < run.loop.saved; ++i) {
      const std::vector<int64_t> shape = run.of_rows(run.saved_widths[i]);
      const int32_t state = run.loop.saved_state[i];
      if (state >= 0) {
        saved_.push_back(std::move(sequences[given++]));
        states_[state] = as_entries(run.view(saved_.back(), shape, "saved tensor"), saved_.back());
      } else {
        saved_.push_back(empty(shape, torch_dtype(run.saved_type(i)), run.device));
        values_[i] = as_entries(run.described(saved_.back()), saved_.back());
      }
    }
    for (size_t i = 0; i < run.described_streams.size(); ++i) {
      // Behind the streams are masks, which are evenly spaced or have no data. A GPU's call has no lengths here:
      // whether a step is active decides only over the states (rnncc/stages/mask.py), and these were saved.
      streams_.push_back(as_entries(run.described_streams[i], run.streams[std::min(i, run.streams.size() - 1)]));
    }
  }

  // Computes what is missing, and returns all saved tensors.
  std::vector<Tensor> make() && {
    if (run_.is_empty()) return std::move(saved_);
    if (run_.starts && !run_.device.is_cpu()) {
      make_packed_rows();
      return std::move(saved_);
    }
    // Step t begins with the states after step t - 1, or t + 1 in a reversed loop. They lie `ahead` rows from the
    // step's own.
    int64_t first = 0, count = 0, ahead = 0;
    for (int64_t t = 0; t < run_.steps; ++t) {
      const int64_t begin = start(t), end = start(t + 1), other = run_.reverse ? t + 1 : t - 1;
      const int64_t following =
          other < 0 || other >= run_.steps ? 0 : std::min(end - begin, start(other + 1) - start(other));
      if (following < end - begin)
        make_rows(begin + following, end - begin - following, from(run_.described_states, following));
      if (following == 0) continue;
      if (first + count != begin || ahead != start(other) - begin || count + following > recomputed_rows) {
        if (count) make_rows(first, count, from(states_, first + ahead));
        first = begin, count = 0, ahead = start(other) - begin;
      }
      count += following;
    }
    if (count) make_rows(first, count, from(states_, first + ahead));
    return std::move(saved_);
  }

 private:
  // On a GPU the states that rows begin with are first put side by side.
  void make_packed_rows() {
    std::vector<ShiftedRows> shifted;
    std::vector<rnncc_tensor> states = states_;
    for (size_t i = 0; i < states.size(); ++i) {
      if (!states[i].data) continue;
      shifted.emplace_back(states[i], run_.described_states[i], run_.starts, run_.batch, run_.row_count(),
                           run_.state_widths[i], !run_.reverse, run_.compute, run_.device);
      states[i] = as_entries(shifted.back().described, shifted.back().memory);
    }
    for (int64_t first = 0; first < run_.row_count(); first += recomputed_rows)
      make_rows(first, std::min(recomputed_rows, run_.row_count() - first), from(states, first));
  }

  int64_t start(int64_t t) const { return run_.starts ? run_.starts[t] : t * run_.batch; }

  // A tensor [T, B, width] as T*B entries of one step each. It is copied where its rows are not evenly spaced.
  rnncc_tensor as_entries(rnncc_tensor described, const Tensor& tensor) {
    if (run_.starts) return {described.data, 0, described.entry, described.dtype};
    if (run_.steps > 1 && run_.batch > 1 && described.step != run_.batch * described.entry) {
      copies_.push_back(contiguous(alias(tensor), 3));
      described = describe(copies_.back());
    }
    return {described.data, 0, run_.batch > 1 ? described.entry : described.step, described.dtype};
  }

  // The tensors from row `row` on.
  static std::vector<rnncc_tensor> from(std::vector<rnncc_tensor> tensors, int64_t row) {
    for (rnncc_tensor& t : tensors) {
      if (t.data) t.data = static_cast<char*>(t.data) + row * t.entry * dtype_bytes(t.dtype);
    }
    return tensors;
  }

  void make_rows(int64_t first, int64_t count, const std::vector<rnncc_tensor>& states) const {
    const std::vector<rnncc_tensor> streams = from(streams_, first);
    std::vector<rnncc_tensor> values = from(values_, first);
    std::vector<rnncc_tensor> sequences(run_.segment.sequences, {nullptr, 0, 0, run_.type});
    std::vector<rnncc_tensor> final_states(run_.segment.states, {nullptr, 0, 0, run_.compute});
    run_.forward({{1, count, run_.heads, run_.sizes.data(), run_.constants.data(), false, streams.data(),
                   run_.described_weights.data(), states.data(), sequences.data(), final_states.data(), values.data(),
                   nullptr, count, nullptr}});
  }

  const Run& run_;
  std::vector<Tensor> saved_, copies_;
  // A step of these is an entry. A state that was not saved has no data and is read as zeros, because no saved value
  // depends on it.
  std::vector<rnncc_tensor> streams_, states_, values_;
};

}  // namespace rnncc
