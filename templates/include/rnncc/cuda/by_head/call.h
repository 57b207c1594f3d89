// The parameter of a kernel that gives each head of a batch entry to a CTA (loop.cuh). The host fills it in (run.h).
#pragma once

#include "../arguments.h"

namespace rnncc {

struct HeadHeader {
  int64_t steps, batch, heads;
  const int64_t* starts;  // `starts`, `rows` and `lengths` are the members of Extents (packed.cuh)
  int64_t rows;
  const int64_t* lengths;
};

// `own`: the dims of one head. `offsets`: where vectors lie in shared memory, in floats.
template <class P>
struct HeadCall : HeadHeader {
  int64_t dims[at_least_one(P::tables.dim_count)];
  int32_t own[(at_least_one(P::tables.dim_count) + 1) / 2 * 2];
  int32_t offsets[(at_least_one(P::tables.slot_count) + 1) / 2 * 2];
  float constants[(at_least_one(P::tables.constant_count) + 1) / 2 * 2];
  Direction<P> direction;
};

constexpr bool is_edge(const SlotInfo& slot) { return slot.kind == Kind::previous || slot.kind == Kind::next; }

// Whether stages make a slot's values and read them.
constexpr bool is_made(const SlotInfo& slot) { return slot.kind == Kind::stored && slot.read; }

// Whether an edge reads a slot of another step.
constexpr bool is_linked(const Tables& tables, int slot) {
  for (int s = 0; s < tables.slot_count; ++s)
    if (is_edge(tables.slots[s]) && tables.slots[s].link == slot) return true;
  return false;
}

// Whether a slot is read from a tensor of all steps, or is the edge of such a one. Threads fetch it a step ahead.
constexpr bool is_fetched(const Tables& tables, int slot) {
  const SlotInfo& info = tables.slots[slot];
  return slot != tables.active &&
         (info.kind == Kind::read || (is_edge(info) && tables.slots[info.link].kind == Kind::read));
}

// For how many steps shared memory has a vector's values: 0 where they do not lie there.
constexpr int steps_on_chip(const Tables& tables, int slot) {
  const SlotInfo& info = tables.slots[slot];
  if (is_made(info)) return 1 + is_linked(tables, slot);
  return is_fetched(tables, slot) ? 2 : info.kind == Kind::vector;
}

// How many elements of a vector a thread fetches at most.
constexpr int MOST_FETCHED = 2;

}  // namespace rnncc
