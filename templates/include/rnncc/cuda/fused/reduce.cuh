// Reductions over the units of a head: what a warp joins of its own units, and how lanes join their values. Every warp
// joins in the same order, so all have the same bits.
#pragma once

#include "step.cuh"

namespace rnncc {

// The sum of two numbers, or the larger one.
template <bool LARGEST>
RNNCC_DEVICE float joined(float a, float b) {
  return LARGEST ? maximum(a, b) : a + b;
}
// What changes nothing when it is joined: 0, or minus infinity.
template <bool LARGEST>
RNNCC_DEVICE float nothing_joined() {
  return LARGEST ? __uint_as_float(0xff800000u) : 0.0f;
}

// Joins the values of all lanes whose numbers differ only in the bits from FROM to TO. Both are masks of one bit.
template <bool LARGEST, int FROM, int TO>
RNNCC_DEVICE float joined_over_lanes(float x) {
#pragma unroll
  for (int mask = FROM; mask <= TO; mask *= 2) x = joined<LARGEST>(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

// What an item gives to a reduction: its units' values of entries 2q and 2q + 1, joined. `exists`: the lane's unit is
// one of the head's.
template <bool LARGEST>
RNNCC_DEVICE float2 joined_units(float x, float y, bool exists) {
  return make_float2(joined_over_lanes<LARGEST, 4, 16>(exists ? x : nothing_joined<LARGEST>()),
                     joined_over_lanes<LARGEST, 4, 16>(exists ? y : nothing_joined<LARGEST>()));
}

}  // namespace rnncc
