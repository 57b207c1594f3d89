// The parameter of a kernel that is made for one loop, fused or without products. It says what each direction reads and
// writes.
#pragma once

#include <set>
#include <utility>

#include "after.h"

namespace rnncc {

// Place and Edge of fused/device/tensors.cuh, and Extents of packed.cuh.
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
    FusedPlace* const reads = take<FusedPlace>(info_.reads.count);
    FusedEdge* const read_edges = take<FusedEdge>(info_.reads.count);
    for (int r = 0; r < info_.reads.count; ++r) {
      const auto& [place, end, shifted] = info_.reads[r];
      const rnncc_tensor& t = tensors.at(place.table, place.index);
      reads[r] = along(call, t, dim(place.offset), shifted);
      read_edges[r] = shifted ? edge(tensors.either(end.table, end.index)) : FusedEdge{};
      if (!fits(reads[r], dtype_bytes(t.dtype))) return false;
    }
    FusedPlace* const rows = take<FusedPlace>(info_.rows.count);
    for (int r = 0; r < info_.rows.count; ++r)
      rows[r] = along(call, tensors.at(info_.rows[r].table, info_.rows[r].index), dim(info_.rows[r].offset));
    std::vector<FusedPlace> writes;
    if (!place_writes(direction, fits, writes)) return false;
    FusedPlace* const written = take<FusedPlace>(int(writes.size()));
    std::copy(writes.begin(), writes.end(), written);
    FusedEdge* const initial = take<FusedEdge>(info_.edges.count);
    FusedEdge* const last = take<FusedEdge>(info_.edges.count);
    for (int e = 0; e < info_.edges.count; ++e) {
      const LoopEdge& info = info_.edges[e];
      initial[e] = edge(tensors.either(info.first.table, info.first.index));
      last[e] = info.has_last ? edge(tensors.either(info.last.table, info.last.index)) : FusedEdge{};
    }
    FusedEdge* const vectors = take<FusedEdge>(info_.vectors.count);
    for (int v = 0; v < info_.vectors.count; ++v) {
      const auto& [place, part, wide] = info_.vectors[v];
      const bool is_matrix = part.matrix >= 0;
      const rnncc_tensor weight = is_matrix ? tensors.at(WEIGHTS, place.index) : tensors.either(WEIGHTS, place.index);
      char* const first = static_cast<char*>(weight.data) + dim(place.offset) * dtype_bytes(weight.dtype);
      vectors[v] = {is_matrix ? matrix(tensors, part) : first, wide, weight.dtype == RNNCC_FLOAT32, 0};
    }
    places_.insert(places_.end(),
                   {{reads, info_.reads.count}, {rows, info_.rows.count}, {written, int(writes.size())}});
    edges_.insert(edges_.end(),
                  {{read_edges, info_.reads.count}, {initial, info_.edges.count}, {last, info_.edges.count}});
    return true;
  }

  // Finds where each value of a step goes. Returns false where a tensor does not fit.
  bool place_writes(const LoopDirection& direction, Fits fits, std::vector<FusedPlace>& writes) {
    const Call& call = direction.call;
    CallTensors& tensors = direction.tensors;
    std::map<int, rnncc_tensor>& records = direction.records;
    std::set<std::pair<int, int>> recorded;  // slots, and which of their destinations: all parts go to a record
    for (const LoopWrite& write : info_.writes) {
      const int s = write.slot;
      const SlotInfo& slot = tables_.slots[s];
      const int64_t begin = part_begin(slot, write.part);
      rnncc_dtype dtype = tensors.scalar();
      if (write.place < 0) {
        if (!training_) continue;
        writes.push_back(record(s, begin, direction));
      } else {
        // The kernel for inference writes nothing that is saved for the backward.
        if (is_saved(tables_.destinations[slot.first_destination + write.place].table) && !training_) continue;
        const Destination& to = destination(slot, write.place, tensors);
        const rnncc_tensor& t = tensors.at(to.table, to.index);
        dtype = t.dtype;
        // Products and sums after the loop may want a value that nobody else does.
        const std::pair<int, int> wanted = {s, write.place};
        const bool is_record = !t.data && !is_saved(to.table) && (!records.count(s) || recorded.count(wanted));
        if (is_record) recorded.insert(wanted);
        const FusedPlace place = is_record ? record(s, begin, direction) : along(call, t, dim(to.offset) + begin);
        // A returned sequence may also be the saved one. It is then written once.
        const bool again =
            std::any_of(writes.begin(), writes.end(), [&](const FusedPlace& w) { return w.base == place.base; });
        writes.push_back(again ? FusedPlace{} : place);
        if (t.data && !records.count(s))
          records[s] = {static_cast<char*>(t.data) + dim(to.offset) * dtype_bytes(t.dtype), t.step, t.entry, t.dtype};
      }
      if (!write.scalar && !fits(writes.back(), dtype_bytes(dtype))) return false;
    }
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
    for (const LoopLate& late : info_.late) {
      const SlotInfo& sum = tables_.slots[late.sum];
      for (int d = 0; late.terms == s && d < sum.destinations; ++d) {
        const Destination& to = tables_.destinations[sum.first_destination + d];
        if (tensors.at(to.table, to.index).data) return true;
      }
    }
    return false;
  }
  // The address of a part of a matrix of the program. Its rows lie as [parts, ...].
  char* matrix(CallTensors& tensors, const LoopMatrix& of) const {
    const MatrixInfo& info = tables_.matrices[of.matrix];
    const rnncc_tensor& weight = tensors.at(WEIGHTS, info.index);
    const int64_t row = dim(info.row) + of.part * (dim(info.rows) / info.parts);
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
