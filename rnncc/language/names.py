"""Names that nobody may take, because the language, the generated code or the module that a cell becomes has them."""

from __future__ import annotations

import keyword
import re

from rnncc.language.functions import MATRIX_FUNCTIONS, OF_WIDTHS, PER_HEAD, ROW_FUNCTIONS
from rnncc.language.operators import OPERATORS
from rnncc.language.words import GROUPS, NUMBERS, SIZES, STEP

FUNCTIONS = frozenset(
    {name for name, row in OPERATORS.items() if row.user}.union(ROW_FUNCTIONS, MATRIX_FUNCTIONS, OF_WIDTHS, PER_HEAD)
)
_CPP_WORDS = """
    alignas alignof asm auto bool case catch char char8_t char16_t char32_t concept const consteval constexpr
    constinit const_cast co_await co_return co_yield decltype default delete do double dynamic_cast enum explicit
    export extern false float friend goto inline int long mutable namespace new noexcept nullptr operator private
    protected public register reinterpret_cast requires short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true typedef typeid typename union unsigned using virtual void volatile
    wchar_t and_eq bitand bitor compl not_eq or_eq xor xor_eq
"""
_CPP = frozenset(_CPP_WORDS.split())
_WORDS = frozenset((*GROUPS, *STEP, *SIZES, *NUMBERS))

# Constants and dims are keywords of the constructor, beside these.
_CONSTRUCTOR_WORDS = """
    self input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size device dtype num_heads
    state_dtype backend zoneout recurrent_dropout weight_dropout return_sequences_of return_all_layers return_delays
    recompute recurrent_gradient_clip reverse
"""
CONSTRUCTOR = frozenset(_CONSTRUCTOR_WORDS.split())
# Dims are keywords of the functional op too.
_FUNCTION_WORDS = "cell streams weights states lengths reset offsets max_length reverse constants"
FUNCTION = frozenset(_FUNCTION_WORDS.split())
# Inputs are keywords of the call, beside these.
CALL = frozenset({"self", "input", "hx", "lengths", "reset", "offsets", "max_length", "inplace"})
# A parameter is an attribute of a torch.nn.Module, which has these (and names with a `_` before them).
_MODULE_WORDS = """
    T_destination add_module apply backend bfloat16 bias bidirectional buffers call_super_init children compile
    constants cpu cuda dims document double dump_patches eval explain extra_repr float forward freeze gate_masks
    gate_parameters get_buffer get_extra_state get_parameter get_submodule half hidden_size input_size ipu
    load_state_dict modules mtia named_buffers named_children named_modules named_parameters num_heads parameters
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter recompute recurrent_dropout recurrent_gradient_clip
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ reset_parameters return_sequences_of
    reverse set_extra_state set_mask set_submodule share_memory sparsify spec state_dict state_dtype to to_empty train
    training type unfreeze weight_dropout xpu zero_grad zoneout
"""
MODULE = frozenset(_MODULE_WORDS.split())
_ARGUMENTS = {
    "constant": (CONSTRUCTOR, "an argument of every layer's constructor"),
    "dim": (CONSTRUCTOR | FUNCTION, "an argument of every layer's constructor or functional op"),
    "input": (CALL, "an argument of every layer's call"),
}


def reserved(name: str, kind: str = "") -> str:
    """Why a name may not be declared (as this kind of thing), or nothing."""
    if keyword.iskeyword(name) or name in _CPP:
        return "a keyword of Python or C++"
    if name in FUNCTIONS:
        return "a function"
    if name in _WORDS:
        return "a name of the language"
    if "__" in name:
        return "kept for the compiler: it holds '__'"
    if re.fullmatch(r"_[A-Z].*", name):
        return "kept for C++ compilers: it begins with '_' and a capital"
    if re.fullmatch(r"RNNCC(_.*)?|Early|Late|Kept|E_", name):
        return "a name of the generated code"
    if re.fullmatch(r"d_.*|saved_.*|t\d+", name):
        return "kept for the compiler: so are d_…, saved_… and t0, t1, …"
    names, why = _ARGUMENTS.get(kind, (frozenset(), ""))
    return why if name in names else ""


def instead_of_reserved(name: str, kind: str = "") -> str:
    """What to do about a name that is reserved."""
    if name == "lambda":
        return "write 'lam', or 'λ'"
    if (name, kind) == ("x", "state"):
        return (
            "'x' is the step's input; as state-space papers have it, 'input u in place of x' above all frees the name"
        )
    return "choose another name"


def reserved_attribute(name: str) -> bool:
    """Whether a module has an attribute of this name before it has parameters, or may have a buffer of it."""
    return name in MODULE or name.startswith(("_", "rnncc_"))
