// The schemas of a package's ops, without the ops' names. They are the same for every cell.
//
// `reverse` has an element for each direction of the layer, 0 or 1 (torch.jit.trace records no list of bool). Lists of
// tensors, given or returned, hold those of the first direction first. Indices of gradients count through all
// directions; `sequences` names the sequences that are wanted of each direction. A bound on the recurrent gradient may
// follow the loop's own `constants` (rnncc_segment::clips). `training` asks for `saved`, which the backward reads;
// where autograd records a call, it asks by itself. No list of tensors is optional, because the dispatcher does not
// look into an optional list.
//
// With `offsets`, tensors of all steps are packed: they are [rows, 1, width] in place of [T, B, width], and `reset` is
// [rows, 1]. `steps` is T then, and 0 without offsets. On the CPU rows lie step by step, and `offsets` [T + 1] says
// where the rows of each step begin. It says T too, and `steps` is not read: torch.jit.trace would record a number. A
// step has rows of the first batch entries, so entries stand in the order of falling lengths. On other devices rows lie
// entry by entry, `offsets` [B + 1] says where the rows of each entry begin, and no entry has more than T.
#pragma once

namespace rnncc {

inline constexpr const char* forward_schema =
    "(Tensor[] streams, Tensor[] weights, Tensor[] states, Tensor? offsets, SymInt steps, Tensor? lengths, "
    "Tensor? reset, float[] constants, SymInt[] sizes, SymInt num_heads, int[] reverse, int[] sequences, "
    "bool training, bool recompute) "
    "-> (Tensor[] sequences, Tensor[] final, Tensor[] saved)";

inline constexpr const char* backward_schema =
    "(Tensor[] d_sequences, int[] d_sequence_index, Tensor[] d_final, int[] d_final_index, Tensor[] streams, "
    "Tensor[] weights, Tensor[] states, Tensor[] saved, Tensor? offsets, SymInt steps, Tensor? lengths, "
    "Tensor? reset, float[] constants, SymInt[] sizes, SymInt num_heads, int[] reverse, bool[] needs) "
    "-> (Tensor[] d_streams, Tensor[] d_weights, Tensor[] d_states)";

// A whole layer in one direction, or a single step: the input's product and the loop. whole_op.h has it on the CPU, and
// whole_gpu.h on a GPU. `layout` is the number of the layer's Layout (whole_layout.h). `tensors` are x, the parameters and
// the states as callers have them; no states mean the initial values. The forward returns nothing where a tensor does not
// fit the layout; else the output of a layer, the final states, and in training what the backward reads. Neither op has
// autograd of its own: rnncc/runtime/modules/whole.py records calls. `packed`: nothing; or on the CPU a tensor for the weight that
// the input is multiplied by, and one for each weight that the loop reads. Each is what `pack` made, and is read in place
// of the weight. A weight that is not packed has a tensor without elements. `in_place`, of a single step on the CPU: the
// final states are written into the states that were given, and these are returned. No schema can say that of elements
// of a list that holds other tensors too, so the caller marks them as changed.
inline constexpr const char* whole_forward_schema =
    "(Tensor[] tensors, Tensor[] packed, int layout, float[] constants, bool training, bool in_place=False) -> "
    "Tensor[]";
inline constexpr const char* whole_layout_schema =
    "(Tensor like, int num_heads, bool has_time, int output, bool keeps_streams, int[] sizes, int[] shapes, "
    "int[] bias_places, int[] loop_weights, float[] initial) -> int";
inline constexpr const char* whole_backward_schema =
    "(Tensor[] tensors, int came, int needs, bool with_states, int layout, float[] constants) -> Tensor[]";

inline constexpr const char* pack_schema = "(Tensor weight, int members) -> Tensor";

inline constexpr const char* linear_schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor";
inline constexpr const char* linear_backward_schema = "(Tensor d_y, Tensor x, Tensor weight, bool[] needs) -> Tensor[]";

// Packages with GPU kernels have this op. It puts packed `rows` [rows, ...], which lie step by step, entry by entry; or
// the other way round (`to_steps`). Entries have falling lengths. The rows of each step begin at firsts [T + 1], those
// of each entry at starts [B + 1].
inline constexpr const char* permute_rows_schema =
    "(Tensor rows, Tensor firsts, Tensor starts, bool to_steps) -> Tensor";

// Where their layers call it, they also have layer norm over each head, and its gradients. The last dimension of
// `value`, k * heads * head_dim, is laid out [k, heads, head_dim]. Weight and bias are as wide. The result has their
// dtype, which is the value's or float32. `means` and `scales` are [..., heads] in float32; scales are
// 1 / sqrt(variance + epsilon). The backward returns the gradients of value, weight and bias, as far as `needs` asks for
// them.
inline constexpr const char* head_norm_schema =
    "(Tensor value, Tensor? weight, Tensor? bias, SymInt heads, SymInt k, float epsilon) "
    "-> (Tensor normalised, Tensor means, Tensor scales)";
inline constexpr const char* head_norm_backward_schema =
    "(Tensor d_normalised, Tensor value, Tensor? weight, Tensor means, Tensor scales, SymInt k, bool[] needs) "
    "-> Tensor[]";

}  // namespace rnncc
