// The parameter of a kernel that is made for one loop, fused or without products. It says what each direction reads and
// writes.
#pragma once

#include <set>
#include <utility>

#include "after.h"

namespace rnncc {

// Place and Edge of fused/tensors.cuh, and Extents of packed.cuh.
struct FusedPlace {
  char* base;
  int64_t step, entry;
};
struct FusedEdge {
  char* base;
  int64_t entry;
  int32_t is_float, unused;
};
struct FusedExtents {
  const int64_t* starts;
  int64_t count;
  const int64_t* lengths;
};

// One direction of a call. `records` and `totals` are those of After, which reads them.
struct LoopDirection {
  const Call& call;
  CallTensors& tensors;
  std::map<int, rnncc_tensor>& records;
  std::map<int, Tensor>& totals;
};

class LoopParameter {
 protected:
  // Whether a kernel takes a tensor as it lies.
  using Fits = bool (*)(const FusedPlace&, int64_t bytes);

  LoopParameter(const Tables& tables, const LoopInfo& info, const int64_t* dims, bool training)
      : tables_(tables), info_(info), dims_(dims), training_(training), bytes_(MOST_BYTES) {}

  int64_t dim(int16_t index) const { return dims_[index]; }
  void* data() { return bytes_.data(); }

  template <class U>
  U* take(int count) {
    U* const part = reinterpret_cast<U*>(bytes_.data() + used_);
    used_ += at_least_one(count) * sizeof(U);
    if (used_ > bytes_.size()) fail("the loop has too many values for a kernel's parameter");
    return part;
  }

  void take_constants(const Call& call) {
    float* constants = take<float>((at_least_one(tables_.constant_count) + 1) / 2 * 2);
    for (int c = 0; c < tables_.constant_count; ++c) constants[c] = float(call.constants[c]);
  }

  void take_extents(const Call& call) {
    extents_ = take<FusedExtents>(1);
    *extents_ = {call.starts, call.rows, call.lengths};
  }

  // Fills in a direction's tensors. They follow the matrices in FusedTensors, and ScanTensors begins with them. Returns
  // false where a tensor does not fit.
  bool fill_tensors(const LoopDirection& direction, Fits fits) {
    const Call& call = direction.call;
    CallTensors& tensors = direction.tensors;
    std::map<int, rnncc_tensor>& records = direction.records;
    records.clear();  // a kernel that did not take the tensors may have left some
    *take<int64_t>(1) = call.descending;
    FusedPlace* reads = take<FusedPlace>(info_.reads);
    FusedEdge* read_edges = take<FusedEdge>(info_.reads);
    for (int r = 0; r < info_.reads; ++r) {
      const SlotInfo& slot = tables_.slots[info_.read_slots[r]];
      const bool shifted = slot.kind != Kind::read;
      const SlotInfo& source = shifted ? tables_.slots[slot.link] : slot;
      reads[r] = along(call, tensors.at(source.table, source.index),
                       dim(source.offset) + part_begin(slot, info_.read_parts[r]), shifted);
      read_edges[r] = shifted ? edge(tensors.either(slot.table, slot.index)) : FusedEdge{};
      if (!fits(reads[r], dtype_bytes(tensors.at(source.table, source.index).dtype))) return false;
    }
    FusedPlace* rows = take<FusedPlace>(info_.rows);
    for (int r = 0; r < info_.rows; ++r) {
      const SlotInfo& slot = tables_.slots[info_.row_slots[r]];
      rows[r] = along(call, tensors.at(slot.table, slot.index), dim(slot.offset));
    }
    std::vector<FusedPlace> writes;
    std::set<std::pair<int, int>> recorded;  // slots, and which of their destinations: all parts go to a record
    for (int w = 0; w < info_.writes; ++w) {
      const int s = info_.write_slots[w];
      const SlotInfo& slot = tables_.slots[s];
      const int64_t begin = part_begin(slot, info_.write_parts[w]);
      if (info_.write_places[w] < 0) {
        if (training_) writes.push_back(record(s, begin, direction));
        if (training_ && !fits(writes.back(), dtype_bytes(tensors.scalar()))) return false;
        continue;
      }
      // The kernel for inference writes nothing that is saved for the backward.
      if (is_saved(tables_.destinations[slot.first_destination + info_.write_places[w]].table) && !training_) continue;
      const Destination& to = destination(slot, info_.write_places[w], tensors);
      const rnncc_tensor& t = tensors.at(to.table, to.index);
      // Products and sums after the loop may want a value that nobody else does.
      const std::pair<int, int> wanted = {s, info_.write_places[w]};
      const bool is_record = !t.data && !is_saved(to.table) && (!records.count(s) || recorded.count(wanted));
      if (is_record) recorded.insert(wanted);
      const FusedPlace place = is_record ? record(s, begin, direction) : along(call, t, dim(to.offset) + begin);
      // A returned sequence may also be the saved one. It is then written once.
      const bool again =
          std::any_of(writes.begin(), writes.end(), [&](const FusedPlace& w) { return w.base == place.base; });
      writes.push_back(again ? FusedPlace{} : place);
      if (!fits(writes.back(), dtype_bytes(t.dtype))) return false;
      if (t.data && !records.count(s))
        records[s] = {static_cast<char*>(t.data) + dim(to.offset) * dtype_bytes(t.dtype), t.step, t.entry, t.dtype};
    }
    for (int w = 0; w < info_.row_writes; ++w) {
      const int s = info_.row_write_slots[w];
      const SlotInfo& slot = tables_.slots[s];
      if (info_.row_write_places[w] < 0) {
        if (training_) writes.push_back(record(s, 0, direction));
        continue;
      }
      const Destination& to = tables_.destinations[slot.first_destination + info_.row_write_places[w]];
      if (is_saved(to.table) && !training_) continue;
      const rnncc_tensor& t = tensors.at(to.table, to.index);
      // Products after the loop may want a value that nobody else does.
      const bool is_record = !t.data && !is_saved(to.table) && !records.count(s);
      writes.push_back(is_record ? record(s, 0, direction) : along(call, t, dim(to.offset)));
      if (t.data && !records.count(s))
        records[s] = {static_cast<char*>(t.data) + dim(to.offset) * dtype_bytes(t.dtype), t.step, t.entry, t.dtype};
    }
    FusedPlace* const written = take<FusedPlace>(int(writes.size()));
    std::copy(writes.begin(), writes.end(), written);
    FusedEdge* initial = take<FusedEdge>(info_.edges);
    FusedEdge* last = take<FusedEdge>(info_.edges);
    for (int e = 0; e < info_.edges; ++e) {
      const SlotInfo& slot = tables_.slots[info_.edge_slots[e]];
      initial[e] = edge(tensors.either(slot.table, slot.index));
      const int end = info_.edge_finals[e];
      last[e] = end < 0 ? FusedEdge{} : edge(tensors.either(tables_.finals[end].table, tables_.finals[end].index));
    }
    FusedEdge* vectors = take<FusedEdge>(info_.vectors);
    for (int v = 0; v < info_.vectors; ++v) {
      if (const int m = info_.vector_matrices[v]; m >= 0) {
        const rnncc_dtype dtype = tensors.at(WEIGHTS, tables_.matrices[m].index).dtype;
        vectors[v] = {matrix(tensors, m, info_.vector_parts[v]), 1, dtype == RNNCC_FLOAT32, 0};
        continue;
      }
      const SlotInfo& slot = tables_.slots[info_.vector_slots[v]];
      const rnncc_tensor weight = tensors.either(WEIGHTS, slot.index);
      const int64_t first = dim(slot.offset) + part_begin(slot, info_.vector_parts[v]);
      vectors[v] = {static_cast<char*>(weight.data) + first * dtype_bytes(weight.dtype), dim(slot.width) > 1,
                    weight.dtype == RNNCC_FLOAT32, 0};
    }
    places_.insert(places_.end(), {{reads, info_.reads}, {rows, info_.rows}, {written, int(writes.size())}});
    edges_.insert(edges_.end(), {{read_edges, info_.reads}, {initial, info_.edges}, {last, info_.edges}});
    return true;
  }

  // Lets all tensors begin some batch entries further on. Rows of packed tensors stay where they are.
  void move_on(int64_t entries) {
    const auto move = [entries](const auto& parts) {
      for (const auto& [part, count] : parts)
        for (int i = 0; i < count; ++i)
          if (part[i].base) part[i].base += entries * part[i].entry;
    };
    if (!extents_->starts) move(places_);
    move(edges_);
    if (extents_->starts) extents_->starts += entries;
    if (extents_->lengths) extents_->lengths += entries;
  }

  // The destination of a value: the given one, or where no tensor is wanted there, another one of the same dtype. So a
  // step writes a value once, whether it is returned, saved for the backward, or both.
  const Destination& destination(const SlotInfo& slot, int place, CallTensors& tensors) const {
    const Destination* const all = &tables_.destinations[slot.first_destination];
    const auto is_wanted = [&](const Destination& to) {
      return tensors.at(to.table, to.index).data && (training_ || !is_saved(to.table));
    };
    for (int d = 0; d < slot.destinations && !is_wanted(all[place]); ++d)
      if (is_wanted(all[d]) && is_stream_typed(all[d].table) == is_stream_typed(all[place].table)) return all[d];
    return all[place];
  }

  // A tensor [T, B, ...] from `offset` elements on, in the loop's order. A packed tensor begins at its first row.
  static FusedPlace along(const Call& call, const rnncc_tensor& t, int64_t offset, int64_t ahead = 0) {
    if (!t.data) return {};
    const int64_t bytes = dtype_bytes(t.dtype), first = call.descending && !call.starts ? call.steps - 1 : 0;
    const int64_t step = (call.descending ? -t.step : t.step) * bytes;
    return {static_cast<char*>(t.data) + (first * t.step + offset) * bytes + ahead * step, step, t.entry * bytes};
  }
  static FusedEdge edge(const rnncc_tensor& t) {
    return {static_cast<char*>(t.data), t.entry * dtype_bytes(t.dtype), t.dtype == RNNCC_FLOAT32, 0};
  }
  // The record of a slot from unit `begin` on. All parts of a slot have one record.
  FusedPlace record(int s, int64_t begin, const LoopDirection& direction) {
    const auto& [call, tensors, records, totals] = direction;
    if (!After::reads(tables_, call, s) && !is_summed_late(s, direction.tensors)) return {};
    if (begin == 0) {
      const int64_t width = dim(tables_.slots[s].width);
      held_.push_back(empty(sizes_of_all_steps(call, width), torch_dtype(tensors.scalar()), tensors.device));
      records[s] = side_by_side(call, held_.back().data(), width, tensors.scalar());
    }
    return along(call, records[s], begin);
  }
  // Whether a slot has the terms of a sum over all heads that goes to some tensor.
  bool is_summed_late(int s, CallTensors& tensors) const {
    for (int l = 0; l < info_.late_sums; ++l) {
      const SlotInfo& sum = tables_.slots[info_.late_slots[l]];
      for (int d = 0; info_.late_terms[l] == s && d < sum.destinations; ++d) {
        const Destination& to = tables_.destinations[sum.first_destination + d];
        if (tensors.at(to.table, to.index).data) return true;
      }
    }
    return false;
  }
  // The address of a part of a matrix of the program. Its rows lie as [parts, ...].
  char* matrix(CallTensors& tensors, int m, int16_t part) const {
    const MatrixInfo& info = tables_.matrices[m];
    const rnncc_tensor& weight = tensors.at(WEIGHTS, info.index);
    const int64_t row = dim(info.row) + part * (dim(info.rows) / info.parts);
    return static_cast<char*>(weight.data) + row * (dim(info.columns) / dim(info.blocks)) * dtype_bytes(weight.dtype);
  }
  // Where a part of a slot begins, in units.
  int64_t part_begin(const SlotInfo& slot, int16_t part) const {
    return part ? part * (dim(slot.width) / slot.parts) : 0;
  }

  const Tables& tables_;
  const LoopInfo& info_;
  const int64_t* dims_;
  const bool training_;
  std::vector<Tensor> held_;

 private:
  static constexpr size_t MOST_BYTES = 32 * 1024;
  std::vector<char> bytes_;
  size_t used_ = 0;
  FusedExtents* extents_ = nullptr;
  // The tensors of all directions that have a part per batch entry.
  std::vector<std::pair<FusedPlace*, int>> places_;
  std::vector<std::pair<FusedEdge*, int>> edges_;
};

}  // namespace rnncc
