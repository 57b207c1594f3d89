"""A cell: sizes, parameters and equations, cut into batched parts and sequential loops.

Names of values are the user's. The compiler's own hold a double underscore, which users may not write:

    h__1        the state h at t-1 (the value after a reset, where resets are compiled in)
    x__1        the input x at t-1
    h__delay1   a hidden delay state: h at t-1 kept for the next step; h[t-2] is `h__delay1__1`
    n_1         the loop instance n[1]
    W_i, b_i    the member of group W (b) that belongs to gate i; `beta` for a `param`
    i__W, i__0  temporaries that `partition` makes: a product, a hoisted or named subexpression

Layout of a value of width k*base under N heads: [k, N, base/N], flattened. Width 1 is one number for all units;
width `num_heads` (what a reduction leaves) is one number per head. A matrix that changes with the step is a value with
a `grid` (rnncc/ir/dim.py): [N, rows/N, columns/N], flattened, which is its width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from rnncc.ir.dim import Dim, Grid
from rnncc.ir.expr import Expr, Ref, references, substitute
from rnncc.ir.formula import Formula
from rnncc.ir.row_operator import MATRICES, WITHIN_ROWS, RowOperator
from rnncc.ir.structure import DENSE, Sparsity, Structure
from rnncc.language.diagnostics import InternalError
from rnncc.language.source import NOWHERE, Source, Span


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


class Role(Enum):
    """Where a value comes from."""

    INPUT = "input"  # x and the extra inputs, at t, or per sequence
    PREVIOUS = "previous"  # s__1
    PARAMETER = "parameter"  # a member of a group, or a param
    CONSTANT = "constant"  # a number given at run time
    NODE = "node"  # what a node defines; new states among them


class Placement(Enum):
    """Where a value is computed (docs/language.md, "What the compiler finds out by itself")."""

    P = "P"  # from parameters only: once per call
    Q = "Q"  # from inputs per sequence, and parameters: once per call, for each sequence
    X = "X"  # from inputs (and finished segments) only: batched over all steps
    S = "S"  # the sequential part
    Y = "Y"  # depends on states, no state depends on it: batched afterwards


@dataclass(frozen=True, slots=True)
class Value:
    """A value has a name, a shape and an origin. A matrix of parameters has `columns` and a structure, which says what
    is stored of it: [width, columns] or less. One that changes with the step has a `grid`."""

    name: str
    role: Role
    placement: Placement
    width: Dim
    columns: Dim | None = None
    structure: Structure = DENSE
    span: Span = _span()
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`target = expr`, element by element; widths 1 and num_heads broadcast. In placement P, `expr` may also work on
    whole matrices (operators of `OF_MATRICES`)."""

    target: str
    expr: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Contraction:
    """`target = matrix @ operand`, or `matrixᵀ @ operand` where `transposed`; block by block for blocked matrices."""

    target: str
    matrix: str
    operand: str
    transposed: bool = False
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class RowOp:
    """`target = operator(operands)` along each row. `offset` is in elements (a Dim), `times` a static integer, `grid`
    the shape of the matrix that an operator of matrices takes or makes.

    `epsilon` is layernorm's. rnncc/analysis/norms.py says what norms and softmax are made of."""

    target: str
    operator: RowOperator
    operands: tuple[str, ...]
    offset: Dim = Dim(())
    times: int = 1
    epsilon: float = 0.0
    span: Span = _span()
    grid: Grid | None = None

    @property
    def makes_matrix(self) -> bool:
        """Whether the target is a matrix that changes with the step."""
        return self.grid is not None and self.operator in MATRICES | WITHIN_ROWS


@dataclass(frozen=True, slots=True)
class Delay:
    """`target[t] = operand[t-1]`; it is zero before the start and after a reset. Only batched parts have it: `x[t-1]`
    of an input x, `u[t-1]` of a value u that inputs make."""

    target: str
    operand: str
    span: Span = _span()


Node = Pointwise | Contraction | RowOp | Delay


@dataclass(frozen=True, slots=True)
class Initialiser:
    """How a parameter starts. `kind`: `default` (U(±1/√H)), `constant` (value), `uniform` (low, high), `normal`
    (mean, std), `xavier`, `xavier_normal`, `kaiming`, `orthogonal`, `eye`, `spectral` (radius); matrices per gate and
    head. `left_factor`, `right_factor`: of a product that varies as `default` does. `formula`: what `formula` says."""

    kind: str = "default"
    values: tuple[float, ...] = ()
    formula: Formula | None = None

    @property
    def is_for_matrices(self) -> bool:
        """Whether a vector cannot start so."""
        return self.kind in ("xavier", "xavier_normal", "kaiming", "orthogonal", "eye", "spectral")


@dataclass(frozen=True, slots=True)
class Member:
    """One gate's share of a packed parameter: the value `name`, `width` rows, its initialiser."""

    name: str
    width: Dim
    initialiser: Initialiser


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the module. A vector is [Σwidth]; a matrix [Σwidth, what is stored of a row].

    `name` is the group or param; `attribute` the module's attribute without layer and direction
    (`weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`, else the name). `is_bias`: `bias=False` removes it (b and bR).
    `sparsity`: the module has a mask beside it. `trained`: it has gradients; else it is a buffer of the module.
    `grid`: it is where a matrix state starts, a vector here, which the module has as [N, rows/N, columns/N].
    """

    name: str
    attribute: str
    members: tuple[Member, ...]
    columns: Dim | None = None
    structure: Structure = DENSE
    is_bias: bool = False
    sparsity: Sparsity | None = None
    trained: bool = True
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """A dim of the cell. `default` is a formula of I, H and num_heads, or a number; None for a required keyword.
    `solved` is set where the constraints give it (then `divisible` pairs (numerator, denominator) must divide without
    remainder). I and H are not listed."""

    name: str
    default: Dim | None
    solved: Dim | None = None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Constraint:
    """`left == right` must hold at construction; or `left % right == 0` where `divides`. `why` ends the sentence
    "input_size must equal hidden_size because of …" ("line 7")."""

    left: Dim
    right: Dim
    why: str
    divides: bool = False
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Constant:
    """A constructor keyword. `shaping` constants (loop bounds, delays, widths, function names) are compiled in:
    another value means another build; the others are passed at run time as numbers.

    Where `size` is named, it is no keyword: the number is that size of a layer, and `value` means nothing."""

    name: str
    value: float | int | str
    shaping: bool
    span: Span = _span()
    size: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """`drawn`: `zoneout` or `recurrent_dropout`, a mask for the state `of` that a layer draws; else the caller's, who
    may leave it out where it has a `default`. `per_sequence`: it is [B, width] in place of [T, B, width]. `grid`: for
    callers it is a matrix, [B, rows, columns]; for equations a vector, whose units `unflatten` lays out."""

    name: str
    width: Dim
    span: Span = _span()
    drawn: str = ""
    of: str = ""
    default: float | None = None
    per_sequence: bool = False
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class State:
    """`initial` is a number, or None where it is learned (the parameter `h0` for state h). A hidden delay state has
    `delay_of`: the state whose value it keeps; its initial value is that state's. `grid`: it is a matrix. `diagonal`:
    `initial` stands on the diagonal of each block, and zeros beside it."""

    name: str
    width: Dim
    initial: float | None = 0.0
    delay_of: str | None = None
    span: Span = _span()
    grid: Grid | None = None
    diagonal: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """A tensor [T, B, Σwidth] that a loop reads step by step: its members lie side by side in this order. Where they
    are of placement Q, they are the same at all steps, and the tensor's stride over T is 0.

    Where several members are `group_g @ operand (+ other groups' terms)` of one packed group, they form one
    stream, so that one product makes it. `name` is the only member's, or the group's.
    """

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor a loop reads at every step: a packed Parameter (`members` its rows in order), or one value of
    placement P (`members` is its name alone)."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A strongly connected group of states and its loop.

    batched    nodes computed over all steps before the loop, from inputs and finished segments (in placement Q: once)
    nodes      the loop's body in dependence order: placement S, and the pointwise X and Y values sunk into it
    streams, weights, constants   what the body reads (beside s__1 of its own states)
    sequences  values of the body that can be returned for all steps: every visible state first, then what the
               output, later segments or the epilogue read
    phases     length of the longest chain of dependent contractions in a step
    """

    states: tuple[str, ...]
    streams: tuple[Stream, ...]
    weights: tuple[Weight, ...]
    constants: tuple[str, ...]
    batched: tuple[Node, ...]
    nodes: tuple[Node, ...]
    sequences: tuple[str, ...]
    phases: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that passed every check.

    prologue   nodes of placement P
    segments   in order of dependence
    epilogue   nodes of placement Y that are not sunk into a loop: batched after the last segment; and nodes of
               placements X and Q that no segment reads
    output     the value the layer returns: a sequence of a segment or a value of the epilogue
    values     every value by name: inputs, members, previous states, node targets
    delays     the targets of Delay nodes, in the order in which a layer takes and returns what they hold
    zoneout, recurrent_dropout
               what `regularise` made the cell for: states with zoneout, and whether there is recurrent dropout
    """

    name: str
    sizes: tuple[Size, ...]
    constants: tuple[Constant, ...]
    inputs: tuple[Input, ...]
    states: tuple[State, ...]
    parameters: tuple[Parameter, ...]
    prologue: tuple[Node, ...]
    segments: tuple[Segment, ...]
    epilogue: tuple[Node, ...]
    output: str
    values: tuple[Value, ...]
    constraints: tuple[Constraint, ...]
    delays: tuple[str, ...] = ()
    comment: str = field(default="", compare=False)
    source: Source = field(default=Source("", ""), compare=False, repr=False)
    single_head_because: str = ""
    zoneout: tuple[str, ...] = ()
    recurrent_dropout: bool = False


def value_table(cell: Cell) -> dict[str, Value]:
    """The cell's values by name."""
    return {value.name: value for value in cell.values}


def is_per_sequence(stream: Stream, table: Mapping[str, Value]) -> bool:
    """Whether a stream is the same at all steps. `table`: the cell's values by name."""
    return all(table[member].placement is Placement.Q for member in stream.members)


# The last two streams of a masked cell (rnncc/stages/mask.py).
RESET = "reset__"
ACTIVE = "active__"


def restarted(state: str) -> str:
    """The value that a masked cell's step starts from: a state's s__1, or its initial value where a reset was."""
    return f"{state}__restarted"


def declared_state(state: State, states: Mapping[str, State]) -> State:
    """The state of the text that a hidden delay state keeps older values of; of another state, itself."""
    while state.delay_of is not None:
        state = states[state.delay_of]
    return state


def declared_names(cell: Cell, segment: Segment) -> tuple[str, ...]:
    """The segment's states that the text declares: without what delays keep."""
    hidden = {state.name for state in cell.states if state.delay_of is not None}
    return tuple(name for name in segment.states if name not in hidden)


def operands(node: Node) -> tuple[str, ...]:
    """The values a node reads (a contraction's matrix first), without repetition."""
    match node:
        case Pointwise(_, expr):
            return tuple(dict.fromkeys(references(expr)))
        case Contraction(_, matrix, operand):
            return (matrix, operand)
        case RowOp():
            return node.operands
        case Delay(_, operand):
            return (operand,)


def without_heads(nodes: Sequence[Node], kept: Collection[str]) -> set[str]:
    """The values that are not divided among heads: those that are read for no more than copies per head, and that none
    of `kept` is. `nodes`: all that read them, in dependence order."""
    found, others = set[str](), {*kept}
    for node in reversed(nodes):
        copies = isinstance(node, RowOp) and node.operator is RowOperator.PER_HEAD
        is_one = isinstance(node, Pointwise) and node.target in found and node.target not in others
        (found if copies or is_one else others).update(operands(node))
    return found - others


def rename(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other operands. A delay's is no value of a loop, and has no other name."""
    match node:
        case Pointwise(_, expr):
            return replace(node, expr=substitute(expr, {old: Ref(new) for old, new in names.items()}))
        case Contraction(_, _, operand):
            return replace(node, operand=names.get(operand, operand))
        case RowOp(_, _, read):
            return replace(node, operands=tuple(names.get(name, name) for name in read))
        case Delay(_, operand):
            if operand in names:
                raise InternalError(f"the delay of a loop's value, {operand}")
            return node
        case _:
            assert_never(node)
