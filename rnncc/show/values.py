"""Cells, equations and expressions as text. A cell reads top to bottom like the program it is:

cell GRU(I, H)
state h: H = 0
parameter W weight_ih: 3*H x I = W_r H, W_z H, W_n H
segment 0: states h, phases 1
  batched
    r__W = W_r @ x                                    # H
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import (
    Cell,
    Constraint,
    Contraction,
    Delay,
    Initialiser,
    Input,
    Node,
    Parameter,
    Placement,
    Pointwise,
    RowOp,
    Segment,
    State,
    Stream,
    Value,
    Weight,
    value_table,
)
from rnncc.ir.dim import Dim, Grid
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.step import Place
from rnncc.ir.structure import BlockDiagonal, Dense, Sparsity, Structure
from rnncc.ir.typed import Typed
from rnncc.language.words import EYE, LEARNED

Shown = TypeVar("Shown")

# Operators that are written between their operands, and how tightly they bind (as in Python).
_INFIX = {
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
    "add": ("+", 2), "sub": ("-", 2), "mul": ("*", 3), "div": ("/", 3), "matmul": ("@", 3),
}  # fmt: skip
_NEGATION = 4
_COMMENT_COLUMN = 60


def show_number(value: float) -> str:
    """The shortest text of a number: `2`, `0.1`, `-inf`."""
    is_whole = abs(value) < 1e15 and value == int(value) and str(value) != "-0.0"
    return str(int(value)) if is_whole else repr(value)


def show_start(state: State) -> str:
    """What a state starts at, as the text has it."""
    if state.initial is None:
        return LEARNED
    number = show_number(state.initial)
    if state.diagonal:
        return EYE if number == "1" else f"{number}*{EYE}"
    return number


def show_expr(expr: Expr, binding: int = 0) -> str:
    """The expression in the language's notation; `binding` is how tightly what stands around it binds."""
    match expr:
        case Const(value):
            text = show_number(value)
            return f"({text})" if text.startswith("-") and binding else text
        case Ref(name):
            return name
        case Apply(operator, arguments):
            return show_applied(operator, arguments, binding, show_expr)
        case _:
            assert_never(expr)


def show_applied(operator: str, arguments: tuple[Shown, ...], binding: int, show: Callable[[Shown, int], str]) -> str:
    """An operator and its arguments, which `show` prints by how tightly what stands around them binds."""
    match arguments:
        case (operand,) if operator == "neg":
            text = f"-{show(operand, _NEGATION)}"
            return f"({text})" if binding else text
        case (left, right) if operator in _INFIX:
            symbol, tightness = _INFIX[operator]
            # `a - (b - c)` keeps its parentheses: the order of the user's arithmetic is shown.
            text = f"{show(left, tightness)} {symbol} {show(right, tightness + 1)}"
            return f"({text})" if tightness < binding else text
        case _:
            return f"{operator}({', '.join(show(argument, 0) for argument in arguments)})"


def show_node(node: Node) -> str:
    """One equation."""
    match node:
        case Pointwise(target, expr):
            return f"{target} = {show_expr(expr)}"
        case Contraction(target, matrix, operand, transposed):
            return f"{target} = {f'T({matrix})' if transposed else matrix} @ {operand}"
        case RowOp(target, operator, operands, offset, times, epsilon):
            extra = "" if node.grid is None else f", {show_grid(node.grid)}"
            extra += f", offset={dims.show(offset)}" if offset.terms else ""
            extra += f", times={times}" if times != 1 else ""
            extra += f", epsilon={epsilon:g}" if epsilon else ""
            return f"{target} = {operator.value}({', '.join(operands)}{extra})"
        case Delay(target, operand):
            return f"{target} = delay({operand})"
        case _:
            assert_never(node)


def show_shape(width: Dim, columns: Dim | None, structure: Structure) -> str:
    """`H`, `4*H x I`, `4*H x H in num_heads blocks`."""
    text = dims.show(width)
    if columns is not None:
        text += f" x {dims.show(columns)}"
    return show_structured(text, structure)


def show_grid(grid: Grid) -> str:
    """A matrix that changes, rows by columns: `H x K`."""
    return " x ".join(map(dims.show, grid.sides))


def show_value(width: Dim, grid: Grid | None) -> str:
    """A width, or rows by columns."""
    return dims.show(width) if grid is None else show_grid(grid)


def show_structured(text: str, structure: Structure) -> str:
    """A matrix of that structure: `matrix`, `matrix in 4 blocks`."""
    match structure:
        case Dense():
            return text
        case BlockDiagonal(blocks):
            return f"{text} in {dims.show(blocks)} blocks"
        case _:
            assert_never(structure)


def show_sparsity(sparsity: Sparsity | None) -> str:
    """`, sparse: 0.1, in blocks of 16`, or nothing."""
    if sparsity is None:
        return ""
    blocks = "" if sparsity.block == 1 else f", in blocks of {sparsity.block}"
    return f", {'sparse' if sparsity.drawn else 'masked'}: {show_number(sparsity.density)}{blocks}"


def show_initialiser(initialiser: Initialiser) -> str:
    """`default`, `1`, `uniform(0, 1)`."""
    if initialiser.formula is not None:
        return initialiser.formula.text
    numbers = ", ".join(show_number(value) for value in initialiser.values)
    if initialiser.kind == "constant":
        return numbers
    return f"{initialiser.kind}({numbers})" if numbers else initialiser.kind


def show_constraint(constraint: Constraint) -> str:
    """`I == H`, `num_heads divides H`."""
    left, right = dims.show(constraint.left), dims.show(constraint.right)
    return f"{right} divides {left}" if constraint.divides else f"{left} == {right}"


def show_place(place: Place, width: Dim | None = None) -> str:
    """`SAVED[1] from H`: a tensor of the call, and where in it."""
    offset = f" from {dims.show(place.offset)}" if place.offset.terms else ""
    units = f", {dims.show(width)} units" if width is not None else ""
    return f"{place.table.value}[{place.index}]{offset}{units}"


def _parameter(parameter: Parameter) -> str:
    rows = dims.constant(0)
    for member in parameter.members:
        rows = dims.add(rows, member.width)
    members = ", ".join(
        f"{member.name}: {dims.show(member.width)} = {show_initialiser(member.initialiser)}"
        for member in parameter.members
    )
    bias = ", bias" if parameter.is_bias else ""
    shape = show_shape(rows, parameter.columns, parameter.structure) + show_sparsity(parameter.sparsity)
    kind = "parameter" if parameter.trained else "buffer"
    return f"{kind} {parameter.name} as {parameter.attribute}: {shape}{bias}: {members}"


def show_nodes(nodes: tuple[Node, ...], describe: Callable[[str], str], indent: str) -> Iterator[str]:
    """Equations with what `describe` says of each target."""
    return (commented(f"{indent}{show_node(node)}", describe(node.target)) for node in nodes)


def commented(text: str, comment: str) -> str:
    """A line with a comment in a column of its own."""
    return f"{text:<{_COMMENT_COLUMN}} # {comment}".rstrip()


def _members(entry: Stream | Weight) -> str:
    return entry.name if entry.members == (entry.name,) else f"{entry.name}({', '.join(entry.members)})"


def _describe(values: dict[str, Value]) -> Callable[[str], str]:
    def describe(name: str) -> str:
        value = values.get(name)
        if value is None:
            return "?"
        placement = "" if value.placement is Placement.S else f"{value.placement.value} "
        if value.grid is not None:
            return f"{placement}{show_structured(show_grid(value.grid), BlockDiagonal(dims.HEADS))}"
        return placement + show_shape(value.width, value.columns, value.structure)

    return describe


def show_segment(segment: Segment, position: int, describe: Callable[[str], str]) -> Iterator[str]:
    """A segment: what is batched before its loop, what the loop reads, its body, what it yields."""
    yield f"segment {position}: states {', '.join(segment.states)}; phases {segment.phases}"
    if segment.batched:
        yield "  batched"
        yield from show_nodes(segment.batched, describe, "    ")
    yield f"  streams {', '.join(_members(stream) for stream in segment.streams) or 'none'}"
    yield f"  weights {', '.join(_members(weight) for weight in segment.weights) or 'none'}"
    if segment.constants:
        yield f"  constants {', '.join(segment.constants)}"
    yield "  loop"
    yield from show_nodes(segment.nodes, describe, "    ")
    yield f"  sequences {', '.join(segment.sequences)}"


def show_declared(cell: Cell | Typed) -> Iterator[str]:
    """A cell's name, sizes, constants, inputs and states."""
    yield f"cell {cell.name}"
    for size in cell.sizes:
        solved = "" if size.solved is None else f" = {dims.show(size.solved)}, solved"
        default = "" if size.default is None else f" = {dims.show(size.default)}"
        yield f"dim {dims.show(dims.named(size.name))}{default}{solved}"
    for constant in cell.constants:
        if constant.size:
            yield f"const {constant.name}, the size {constant.size}"
            continue
        value = constant.value if isinstance(constant.value, str) else show_number(constant.value)
        yield f"const {constant.name} = {value}{', shaping' if constant.shaping else ''}"
    for given in cell.inputs:
        default = "" if given.default is None else f" = {show_number(given.default)}"
        words = " per sequence" if given.per_sequence else ""
        yield f"input {given.name}: {_declared_shape(given)}{words}{default}"
    for state in cell.states:
        initial = show_start(state)
        delay = "" if state.delay_of is None else f", delay of {state.delay_of}"
        yield f"state {state.name}: {_declared_shape(state)} = {initial}{delay}"


def _declared_shape(declared: Input | State) -> str:
    if declared.grid is None:
        return dims.show(declared.width)
    return f"matrix({', '.join(map(dims.show, declared.grid.sides))})"


def show_cell(cell: Cell) -> Iterator[str]:
    """A cell's parts, top to bottom."""
    describe = _describe(value_table(cell))
    yield from show_declared(cell)
    yield from (_parameter(parameter) for parameter in cell.parameters)
    for constraint in cell.constraints:
        yield f"constraint {show_constraint(constraint)} ({constraint.why})"
    if cell.single_head_because:
        yield f"one head only: {cell.single_head_because}"
    if cell.prologue:
        yield "prologue"
        yield from show_nodes(cell.prologue, describe, "  ")
    for position, segment in enumerate(cell.segments):
        yield from show_segment(segment, position, describe)
    if cell.epilogue:
        yield "epilogue"
        yield from show_nodes(cell.epilogue, describe, "  ")
    yield f"output {cell.output}"
