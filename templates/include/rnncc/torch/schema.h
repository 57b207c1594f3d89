// The schemas of a package's ops, after their names; the same for every cell.
//
// `reverse` has an entry for each direction of the layer, 0 or 1 (torch.jit.trace records no list of bool). Lists of tensors,
// given or returned, hold those of the first direction first; indices of gradients count through all directions, `sequences`
// names those wanted of each. A bound on the recurrent gradient may follow the loop's own `constants` (rnncc_segment::clips).
// `training` asks for `saved`, what the backward reads; where autograd records a call, it asks by itself. No list of tensors
// is optional: the dispatcher does not look into one that is.
//
// With `offsets`, tensors of all steps are packed, [rows, 1, width] in place of [T, B, width], `reset` [rows, 1]; `steps` is T,
// which is 0 without them. On the CPU rows lie step by step: `offsets` [T + 1] says where each step's begin, which are those of
// its first columns; so columns stand in the order of falling lengths. On other devices rows lie column by column: `offsets`
// [B + 1] says where each column's begin, and T is no less than the longest one's.
#pragma once

namespace rnncc {

inline constexpr const char* forward_schema =
    "(Tensor[] streams, Tensor[] weights, Tensor[] states, Tensor? offsets, SymInt steps, Tensor? lengths, "
    "Tensor? reset, Tensor? seed, float[] constants, SymInt[] sizes, SymInt num_heads, int[] reverse, int[] sequences, "
    "bool training, bool recompute) "
    "-> (Tensor[] sequences, Tensor[] final, Tensor[] saved)";

inline constexpr const char* backward_schema =
    "(Tensor[] d_sequences, int[] d_sequence_index, Tensor[] d_final, int[] d_final_index, Tensor[] streams, "
    "Tensor[] weights, Tensor[] states, Tensor[] saved, Tensor? offsets, SymInt steps, Tensor? lengths, "
    "Tensor? reset, Tensor? seed, float[] constants, SymInt[] sizes, SymInt num_heads, int[] reverse, bool[] needs) "
    "-> (Tensor[] d_streams, Tensor[] d_weights, Tensor[] d_states)";

inline constexpr const char* linear_schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor";
inline constexpr const char* linear_backward_schema = "(Tensor d_y, Tensor x, Tensor weight, bool[] needs) -> Tensor[]";

// With GPU kernels. `rows` [rows, ...] of packed columns of falling lengths, step by step, are put column by column, or those column by
// column step by step (`to_steps`). Where rows begin: of each step firsts [T + 1], of each column starts [B + 1].
inline constexpr const char* permute_rows_schema = "(Tensor rows, Tensor firsts, Tensor starts, bool to_steps) -> Tensor";

}  // namespace rnncc
