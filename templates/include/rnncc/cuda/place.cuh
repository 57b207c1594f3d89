// Loads and stores of slots. Only the addresses of a slot are unknown when the kernel is compiled.
#pragma once

#include "arguments.h"
#include "packed.cuh"

namespace rnncc {

// Tells the compiler that a pointer is global. It knows that of pointers in a kernel's parameter, but not of pointers
// that lay in shared memory.
template <class T, class V>
RNNCC_DEVICE T* global(V* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return static_cast<T*>(pointer);
}

// A program that runs in one direction. P is the generated program, S the type of streams and weights, and Plan the
// kernel's parameter.
template <class P, class S, class Plan = Arguments<P>>
struct Run {
  using Program = P;
  using Scalar = S;
  const Plan& plan;
  const Direction<P>& own;  // in shared memory
  unsigned char* shared;
  int64_t n;  // the number of the step, in the loop's order
  int64_t t;  // the place of the step in tensors
  uint32_t arrived;

  RNNCC_DEVICE char* images() const { return global<char>(own.images); }
  static constexpr bool ADDS_BIASES = false;  // streams have theirs already
  RNNCC_DEVICE int64_t image_step() const { return plan.image_step; }
  // Whether the image is made. Every operand has one.
  RNNCC_DEVICE bool wants(const ImagePlace&) const { return true; }
  RNNCC_DEVICE char* packed() const { return global<char>(own.packed); }
  RNNCC_DEVICE int64_t time(int64_t step) const { return own.descending ? plan.steps - 1 - step : step; }

  // Whether tensors are packed. Then each entry begins at its own first step, and nothing happens to it after its last
  // one.
  RNNCC_DEVICE bool is_packed() const { return P::tables.masked && plan.starts; }
  RNNCC_DEVICE OwnRows rows_of(int entry) const {
    return own_rows({plan.starts, plan.rows, plan.lengths}, plan.steps, own.descending, entry);
  }
  RNNCC_DEVICE int64_t steps_of(int entry) const { return is_packed() ? rows_of(entry).steps : plan.steps; }
  // Whether the entry has a row at the present step.
  RNNCC_DEVICE bool has_rows(int entry) const { return !is_packed() || n < steps_of(entry); }

  // The offset of an entry's row in a tensor of all steps, at step number `step` of the loop, whose place is t.
  template <class Place>
  RNNCC_DEVICE int64_t row_of(const Place& place, int64_t step, int64_t t, int entry) const {
    if (!is_packed()) return t * place.step + entry * place.row;
    return (rows_of(entry).first + (own.descending ? -step : step)) * place.row;
  }
};

// The element that a thread of a tile stage works on.
struct Element {
  int entry, unit, head;
  bool valid;
};

template <bool STREAM_TYPED, class S>
struct TypeOf {
  using type = float;
};
template <class S>
struct TypeOf<true, S> {
  using type = S;
};

// The type in which a slot is read. Where one stage stores and another one reads, it is float in whatever tensor it
// lies.
template <int slot, class R>
constexpr auto element_type() {
  constexpr SlotInfo info = R::Program::tables.slots[slot];
  if constexpr (info.kind == Kind::view || info.kind == Kind::previous || info.kind == Kind::next) {
    return element_type<info.link, R>();
  } else {
    constexpr bool typed = info.kind == Kind::vector || (info.kind == Kind::read && is_stream_typed(info.table));
    return typename TypeOf<typed, typename R::Scalar>::type{};
  }
}

// The place of a slot's values.
template <int slot, class R>
RNNCC_DEVICE const SlotPlace& place_of(const R& run) {
  static_assert(has_place(R::Program::tables.slots[slot]), "nothing of its own");
  constexpr int place = places_before(R::Program::tables, slot);
  return run.own.places[place];
}

// The address of element `unit` of an entry at step `step`. The slot is not an edge.
template <int slot, class R>
RNNCC_DEVICE auto address(const R& run, int64_t step, int entry, int64_t unit) {
  constexpr SlotInfo info = R::Program::tables.slots[slot];
  if constexpr (info.kind == Kind::view) {
    return address<info.link>(run, step, entry, unit + run.plan.dims[info.offset]);
  } else {
    static_assert(info.kind == Kind::read || info.kind == Kind::stored || info.kind == Kind::vector,
                  "an edge of an edge");
    const SlotPlace& place = place_of<slot>(run);
    using T = decltype(element_type<slot, R>());
    const T* const base = global<const T>(place.base) + unit;
    if constexpr (info.kind == Kind::vector) return base;
    if (info.kind == Kind::stored && place.ring) return base + (step & (RING - 1)) * place.step + entry * place.row;
    return base + run.row_of(place, step, run.time(step), entry);
  }
}

// The value of the slot at the present step.
template <int slot, class R>
RNNCC_DEVICE float load(const R& run, int entry, int64_t unit) {
  constexpr SlotInfo info = R::Program::tables.slots[slot];
  if constexpr (slot == R::Program::tables.active) {
    return run.rows_of(entry).is_active(int(run.n)) ? 1.0f : 0.0f;
  } else if constexpr (info.kind == Kind::view) {
    return load<info.link>(run, entry, unit + run.plan.dims[info.offset]);
  } else if constexpr (info.kind == Kind::previous || info.kind == Kind::next) {
    const SlotPlace& place = place_of<slot>(run);
    const bool beyond = info.kind == Kind::previous ? run.n == 0 : run.n >= run.steps_of(entry) - 1;
    const float* start = global<const float>(place.base) + entry * place.row + unit;
    const auto* inside = address<info.link>(run, info.kind == Kind::previous ? run.n - 1 : run.n + 1, entry, unit);
    if constexpr (sizeof(*inside) == sizeof(float))
      return *(beyond ? start : inside);  // one load
    else
      return beyond ? *start : to_float(*inside);
  } else {
    float value = to_float(*address<slot>(run, run.n, entry, unit));
    if constexpr (R::ADDS_BIASES && is_stream(info)) value += run.template bias<slot>(unit);
    return value;
  }
}

template <class T, class R>
RNNCC_DEVICE void put(const R& run, const OutputPlace& place, int entry, int64_t unit, float value) {
  if (place.base) global<T>(place.base)[run.row_of(place, run.n, run.t, entry) + unit] = from_float<T>(value);
}

template <int image, int slot, class R>
RNNCC_DEVICE void put_images(const R& run, int entry, int64_t unit, float value) {
  if constexpr (image < R::Program::tables.image_count) {
    if constexpr (R::Program::tables.images[image].slot == slot) {
      using S = typename R::Scalar;
      const ImagePlace& place = run.plan.image_places[image];
      if (run.wants(place)) {
        int64_t at = unit;
        if (place.blocks > 1) at = unit / place.depth * place.padded + unit % place.depth;
        char* row = run.images() + place.offset + (run.n & (RING - 1)) * run.image_step() + entry * run.plan.image_row;
        reinterpret_cast<S*>(row)[at] = from_float<S>(value);
      }
    }
    put_images<image + 1, slot>(run, entry, unit, value);
  }
}

template <int first, int count, class R>
RNNCC_DEVICE void put_outputs(const R& run, int entry, int64_t unit, float value) {
  if constexpr (count > 0) {
    constexpr bool typed = is_stream_typed(R::Program::tables.destinations[first].table);
    using T = typename TypeOf<typed, typename R::Scalar>::type;
    put<T>(run, run.own.outputs[first], entry, unit, value);
    put_outputs<first + 1, count - 1>(run, entry, unit, value);
  }
}

template <int slot, class R>
RNNCC_DEVICE void put_home(const R& run, int entry, int64_t unit, float value) {
  const SlotPlace& place = place_of<slot>(run);
  const int64_t row =
      place.ring ? (run.n & (RING - 1)) * place.step + entry * place.row : run.row_of(place, run.n, run.t, entry);
  global<float>(place.base)[row + unit] = value;
}

// Stores the value of a slot at the present step where other threads read it before the loop ends.
template <int slot, class R>
RNNCC_DEVICE void publish(const R& run, int entry, int64_t unit, float value) {
  put_images<0, slot>(run, entry, unit, value);
  if constexpr (R::Program::tables.slots[slot].shared) put_home<slot>(run, entry, unit, value);
}

// Stores the same value in all other places that want it.
template <int slot, class R>
RNNCC_DEVICE void store_rest(const R& run, int entry, int64_t unit, float value) {
  constexpr SlotInfo info = R::Program::tables.slots[slot];
  if constexpr (info.read && !info.shared) put_home<slot>(run, entry, unit, value);
  put_outputs<info.first_destination, info.destinations>(run, entry, unit, value);
  if constexpr (info.lasting) {
    constexpr int record = records_before(R::Program::tables, slot);
    put<typename R::Scalar>(run, run.own.records[record], entry, unit, value);
  }
}

template <int slot, class R>
RNNCC_DEVICE void store(const R& run, int entry, int64_t unit, float value) {
  publish<slot>(run, entry, unit, value);
  store_rest<slot>(run, entry, unit, value);
}

}  // namespace rnncc
