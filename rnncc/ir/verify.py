"""Executable invariants of a Cell: what every stage after `partition` may rely on.

`verify(cell)` returns the cell, or raises InternalError naming what does not hold. Tests run it between stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from rnncc.ir import dim as dims
from rnncc.ir.cell import (
    Cell,
    Contraction,
    Delay,
    Node,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Segment,
    Value,
    operands,
)
from rnncc.ir.dim import HEADS, ONE, Dim, Grid
from rnncc.ir.expr import Apply, Const, Expr, Ref
from rnncc.ir.row_operator import BATCHED_ONLY, RowOperator
from rnncc.ir.structure import DENSE, diagonal_blocks
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS

_REDUCTIONS = (RowOperator.SUM, RowOperator.MEAN, RowOperator.MAX, RowOperator.SQUARES, RowOperator.VARIANCE)
_VECTOR_AS_MATRIX = (RowOperator.BY_ROW, RowOperator.BY_COLUMN, RowOperator.ON_DIAGONAL)
_MATRIX_AS_VECTOR = (
    RowOperator.ROW_SUMS,
    RowOperator.COLUMN_SUMS,
    RowOperator.ROW_MAXIMA,
    RowOperator.COLUMN_MAXIMA,
    RowOperator.DIAGONAL,
)
_OF_COLUMNS = (RowOperator.BY_COLUMN, RowOperator.COLUMN_SUMS, RowOperator.COLUMN_MAXIMA)
_SAME_WIDTH = (
    RowOperator.CUMSUM,
    RowOperator.CUMSUM_REVERSED,
    RowOperator.LAYERNORM,
    RowOperator.RMSNORM,
    RowOperator.SOFTMAX,
    RowOperator.ROLL,
    RowOperator.SHIFT,
    RowOperator.ARANGE,
)


def verify(cell: Cell) -> Cell:
    """The cell itself, if every invariant holds."""
    _Verifier(cell).run()
    return cell


class _Verifier:
    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.values: dict[str, Value] = {}
        self.sizes = {"I", "H", "num_heads", *(size.name for size in cell.sizes)}
        self.defined: set[str] = set()

    def demand(self, condition: bool, message: str) -> None:
        if not condition:
            raise InternalError(f"cell {self.cell.name}: {message}")

    def run(self) -> None:
        cell = self.cell
        for value in cell.values:
            self.demand(value.name not in self.values, f"two values named {value.name}")
            self.values[value.name] = value
            self.widths(value)
        self.roles()
        known = {value.name for value in cell.values if value.role in (Role.INPUT, Role.PARAMETER, Role.CONSTANT)}
        self.nodes(cell.prologue, known, "the prologue", {Placement.P})
        known |= {node.target for node in cell.prologue}
        for position, segment in enumerate(cell.segments):
            known |= self.segment(segment, f"segment {position}", known)
        self.nodes(cell.epilogue, known, "the epilogue", {Placement.Q, Placement.X, Placement.Y})
        known |= {node.target for node in cell.epilogue}
        self.demand(cell.output in known, f"the output {cell.output} is not computed")
        nodes = {value.name for value in cell.values if value.role is Role.NODE}
        self.demand(nodes == self.defined, f"values without a node: {sorted(nodes ^ self.defined)}")
        batched = [node for segment in cell.segments for node in segment.batched]
        delays = [node.target for node in (*batched, *cell.epilogue) if isinstance(node, Delay)]
        self.demand(sorted(delays) == sorted(cell.delays), f"delays {delays}, listed as {list(cell.delays)}")

    def widths(self, value: Value) -> None:
        for width in (value.width, value.columns or ONE, diagonal_blocks(value.structure)):
            unknown = dims.names(width) - self.sizes
            self.demand(not unknown, f"{value.name} has a width of unknown {sorted(unknown)}")
            self.demand(any(factor > 0 for _, factor in width.terms), f"{value.name} has no width")
        is_plain = value.structure == DENSE
        self.demand(value.columns is not None or is_plain, f"{value.name} is a vector with the structure of a matrix")

    def roles(self) -> None:
        """Inputs, states and parameters are values of their role, and no other value has it."""
        cell = self.cell
        expected = {
            Role.INPUT: {given.name: given.width for given in cell.inputs},
            Role.PREVIOUS: {f"{state.name}__1": state.width for state in cell.states},
            Role.PARAMETER: {row.name: row.width for parameter in cell.parameters for row in parameter.members},
            Role.CONSTANT: {constant.name: ONE for constant in cell.constants if not constant.shaping},
        }
        for role, widths in expected.items():
            found = {value.name: value.width for value in cell.values if value.role is role}
            self.demand(found == widths, f"values of role {role.value}: {sorted(found)}, declared {sorted(widths)}")
        for parameter in cell.parameters:
            for row in parameter.members:
                value = self.values[row.name]
                same = (value.columns, value.structure) == (parameter.columns, parameter.structure)
                self.demand(same, f"{row.name} is shaped otherwise than its parameter {parameter.name}")
        names = [state.name for state in cell.states]
        for state in cell.states:
            kept = state.delay_of is None or state.delay_of in names
            self.demand(kept, f"{state.name} delays {state.delay_of}, which is no state")
        written = [name for segment in cell.segments for name in segment.states]
        self.demand(sorted(written) == sorted(names), f"segments hold the states {written}, the cell {names}")

    def segment(self, segment: Segment, where: str, known: set[str]) -> set[str]:
        """Check one segment; the values it makes known to what follows."""
        self.nodes(segment.batched, known, f"{where}, batched", {Placement.Q, Placement.X})
        batched = {node.target for node in segment.batched}
        streams = self.members("stream", where, ((each.name, each.members) for each in segment.streams))
        weights = self.members("weight", where, ((each.name, each.members) for each in segment.weights))
        missing = streams - known - batched
        self.demand(not missing, f"{where}: streams of values that are not known: {sorted(missing)}")
        wrong = {name for name in weights if self.values[name].placement is not Placement.P}
        self.demand(not wrong, f"{where}: weights that are not of placement P: {sorted(wrong)}")
        previous = {f"{name}__1" for name in segment.states}
        constants = set(segment.constants)
        at_hand = streams | weights | previous | constants
        self.nodes(segment.nodes, at_hand, f"{where}, loop", set(Placement) - {Placement.P, Placement.Q})
        made = {node.target for node in segment.nodes}
        self.demand(set(segment.states) <= made, f"{where}: a state is not written")
        self.in_loop(segment.nodes, where)
        read = {name for node in segment.nodes for name in operands(node)}
        idle = (streams | constants) - read
        self.demand(not idle, f"{where}: read by nobody: {sorted(idle)}")
        sequences = set(segment.sequences)
        self.demand(len(sequences) == len(segment.sequences), f"{where}: a sequence stands twice")
        self.demand(sequences <= made | previous, f"{where}: sequences of other values: {segment.sequences}")
        visible = tuple(s.name for s in self.cell.states if s.name in segment.states and s.delay_of is None)
        self.demand(segment.sequences[: len(visible)] == visible, f"{where}: sequences begin with {visible}")
        self.demand(segment.phases == _phases(segment.nodes), f"{where}: phases is {segment.phases}")
        return batched | sequences

    def members(self, kind: str, where: str, entries: Iterable[tuple[str, tuple[str, ...]]]) -> set[str]:
        names: list[str] = []
        found: list[str] = []
        for name, members in entries:
            names.append(name)
            found += members
        self.demand(len(set(names)) == len(names), f"{where}: two {kind}s of one name: {names}")
        self.demand(len(set(found)) == len(found), f"{where}: a member of two {kind}s: {found}")
        unknown = [name for name in found if name not in self.values]
        self.demand(not unknown, f"{where}: {kind}s of unknown values {unknown}")
        return set(found)

    def nodes(self, nodes: Sequence[Node], known: set[str], where: str, placements: set[Placement]) -> None:
        """Every operand is known before its node, every target is written once and placed here."""
        known = set(known)
        for node in nodes:
            missing = [name for name in operands(node) if name not in known]
            self.demand(not missing, f"{where}: {node.target} reads {missing} before they are known")
            self.demand(node.target in self.values, f"{where}: {node.target} is no value")
            self.demand(node.target not in self.defined, f"{where}: {node.target} is written twice")
            value = self.values[node.target]
            self.demand(value.role is Role.NODE, f"{where}: {node.target} is {value.role.value}")
            self.demand(value.placement in placements, f"{where}: {node.target} has placement {value.placement.value}")
            self.shape(node, value, where)
            self.defined.add(node.target)
            known.add(node.target)

    def shape(self, node: Node, value: Value, where: str) -> None:
        match node:
            case Pointwise(target, expr):
                width = self.width(expr, where)
                fits = width in (ONE, HEADS) or self.equal(width, value.width)
                self.demand(fits, f"{where}: {target} has width {dims.show(value.width)}, not {dims.show(width)}")
            case Contraction(target, name, operand, transposed):
                matrix, vector = self.values[name], self.values[operand]
                self.demand(matrix.columns is not None, f"{where}: {name} is no matrix")
                columns = matrix.columns or ONE
                rows, columns = (columns, matrix.width) if transposed else (matrix.width, columns)
                fits = self.equal(columns, vector.width) and self.equal(rows, value.width)
                self.demand(fits, f"{where}: {target} = {name} @ {operand} does not fit")
            case RowOp():
                self.row(node, value, where)
            case Delay(target, operand):
                same = self.equal(self.values[operand].width, value.width)
                self.demand(same, f"{where}: {target} delays a value of another width")
                placed = self.values[operand].placement
                self.demand(placed is Placement.X, f"{where}: {target} delays a value of placement {placed.value}")
            case _:
                assert_never(node)

    def row(self, node: RowOp, value: Value, where: str) -> None:
        widths = [self.values[name].width for name in node.operands]
        expected: Dim | None = None
        match node.operator:
            case operator if operator in _SAME_WIDTH:
                expected = widths[0]
            case operator if operator in _REDUCTIONS:
                narrow = value.width in (ONE, HEADS)
                self.demand(narrow, f"{where}: {node.target} is a reduction of width {dims.show(value.width)}")
            case RowOperator.CONCAT:
                expected = dims.constant(0)
                for width in widths:
                    expected = dims.add(expected, width)
            case RowOperator.REPEAT:
                expected = dims.scale(widths[0], node.times)
            case operator if node.grid is not None:
                side = node.grid.columns if operator in _OF_COLUMNS else node.grid.rows
                if operator in _VECTOR_AS_MATRIX:
                    expected = node.grid.width
                    self.demand(
                        self.equal(widths[0], side), f"{where}: {node.target} is not made of its rows or columns"
                    )
                elif operator in _MATRIX_AS_VECTOR:
                    expected = side
                    self.demand(self.equal(widths[0], node.grid.width), f"{where}: {node.target} is of another matrix")
                elif operator is RowOperator.TRANSPOSE:
                    expected = node.grid.width
            case _:
                pass
        if expected is not None:
            fits = self.equal(expected, value.width)
            self.demand(fits, f"{where}: {node.target} = {node.operator.value}(…) does not fit")

    def width(self, expr: Expr, where: str) -> Dim:
        match expr:
            case Const():
                return ONE
            case Ref(name):
                self.demand(name in self.values, f"{where}: {name} is no value")
                return self.values[name].width
            case Apply(operator, arguments):
                self.demand(operator in OPERATORS, f"{where}: no operator {operator}")
                arity = OPERATORS[operator].arity
                self.demand(arity == len(arguments), f"{where}: {operator} has {len(arguments)} arguments")
                found = [self.width(argument, where) for argument in arguments]
                if operator == "matmul":
                    return found[0]
                if operator == "transpose":
                    return self.columns(arguments[0])
                if operator == "norm":
                    return HEADS
                if operator == "entries":
                    return Grid(found[0], self.columns(arguments[0])).width
                if operator == "scale_columns":
                    demanded = self.columns(arguments[0])
                    self.demand(self.equal(demanded, found[1]), f"{where}: {operator} does not fit")
                    return found[0]
                wide = [width for width in found if width not in (ONE, HEADS)]
                same = all(self.equal(wide[0], width) for width in wide)
                self.demand(same, f"{where}: {operator} of widths {[dims.show(width) for width in wide]}")
                return wide[0] if wide else HEADS if HEADS in found else ONE
            case _:
                assert_never(expr)

    def columns(self, expr: Expr) -> Dim:
        """The columns of matrix arithmetic."""
        match expr:
            case Ref(name):
                return self.values[name].columns or ONE
            case Apply("transpose", (matrix,)):
                return self.width(matrix, "the prologue")
            case Apply("matmul" | "scale_rows", (_, right)):
                return self.columns(right)
            case Apply("scale_columns", (left, _)):
                return self.columns(left)
            case Apply("diag", (vector,)):
                return self.width(vector, "the prologue")
            case Apply("norm" | "entries"):
                return ONE
            case Apply(_, arguments):
                return next((found for found in map(self.columns, arguments) if found != ONE), ONE)
            case Const():
                return ONE
            case _:
                assert_never(expr)

    def equal(self, left: Dim, right: Dim) -> bool:
        """Whether two widths are equal, given what the cell solves and demands of its sizes."""
        if left == right:
            return True
        known = {size.name: size.solved for size in self.cell.sizes if size.solved is not None}
        equalities = [(each.left, each.right) for each in self.cell.constraints if not each.divides]
        exact = [
            (_rewrite(each.left, known, equalities, []), each.right) for each in self.cell.constraints if each.divides
        ]
        sides = [_rewrite(side, known, equalities, exact) for side in (left, right)]
        return sides[0] == sides[1]

    def in_loop(self, nodes: Sequence[Node], where: str) -> None:
        """Loops hold no delays, no matrix arithmetic and no function that only torch computes."""
        for node in nodes:
            self.demand(not isinstance(node, Delay), f"{where}: a delay in a loop")
            is_batched = isinstance(node, RowOp) and node.operator in BATCHED_ONLY
            self.demand(not is_batched, f"{where}: {node.target} is made by an operator that no loop has")
            if isinstance(node, Pointwise):
                bad = _find(node.expr, lambda operator: not OPERATORS[operator].in_loop)
                self.demand(not bad, f"{where}: {node.target} uses {bad} in a loop")


def _find(expr: Expr, test: Callable[[str], bool]) -> list[str]:
    if not isinstance(expr, Apply):
        return []
    found = [expr.operator] if test(expr.operator) else []
    return found + [operator for argument in expr.arguments for operator in _find(argument, test)]


def _rewrite(
    width: Dim, solved: dict[str, Dim], equalities: list[tuple[Dim, Dim]], exact: list[tuple[Dim, Dim]]
) -> Dim:
    """The width in terms of as few sizes as the cell's constraints allow."""
    for _ in range(len(solved) + len(equalities) + 1):
        width = dims.substitute(width, solved)
        for left, right in equalities:
            for name, value in ((_name(right), left), (_name(left), right)):
                if name is not None and name not in dims.names(value):
                    width = dims.substitute(width, {name: value})
                    break
    for numerator, divisor in exact:
        quotient = dims.floor_divide(numerator, divisor)
        # 4*(H//4) is H where 4 divides H.
        for atoms, factor in quotient.terms:
            times = dims.as_int(divisor) or 0
            for found, coefficient in width.terms:
                if found == atoms and factor == 1 and times and coefficient % times == 0:
                    whole = dims.scale(numerator, coefficient // times)
                    width = dims.add(dims.subtract(width, dims.scale(quotient, coefficient)), whole)
    return width


def _name(width: Dim) -> str | None:
    match width.terms:
        case (((str(name),), 1),):
            return name
        case _:
            return None


def _phases(nodes: Sequence[Node]) -> int:
    depth: dict[str, int] = {}
    for node in nodes:
        below = max((depth.get(name, 0) for name in operands(node)), default=0)
        depth[node.target] = below + isinstance(node, Contraction)
    return max(depth.values(), default=0)
