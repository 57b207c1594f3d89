"""The cell's nodes as lines of plain torch code.

A value's name is also its Python variable, but for the few names that the generated functions use themselves. Widths
become expressions of `sizes`. `elementwise`, `grids`, `matrices` and `rows` are modules of the runtime that a package
contains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from rnncc.analysis.recurrent import CLIP, with_aliases
from rnncc.ir.cell import (
    Cell,
    Contraction,
    Delay,
    Member,
    Node,
    Parameter,
    Placement,
    Pointwise,
    Role,
    RowOp,
    Value,
    value_table,
)
from rnncc.ir.dim import HEADS, ONE, Dim, Grid, floor_divide, repeats_whole, split_multiple
from rnncc.ir.dim import add as add_dims
from rnncc.ir.dim import constant as constant_dim
from rnncc.ir.expr import Apply, Const, Expr, Ref, references
from rnncc.ir.row_operator import WITHIN_ROWS, RowOperator
from rnncc.ir.step import row_parts
from rnncc.ir.structure import BlockDiagonal, Dense
from rnncc.language.diagnostics import InternalError
from rnncc.language.operators import OPERATORS
from rnncc.stages.render.notation import python_dim, without_brackets

_OWN_NAMES = frozenset(
    {
        "torch", "elementwise", "grids", "matrices", "rows", "tools", "values", "parameters", "constants", "sizes",
        "streams", "states", "weights", "step", "inf",
    }
)  # fmt: skip
# An operator's form that is a call: its arguments stand between brackets and commas.
_CALL = re.compile(r"[\w.]+\(\{0\}(, \{\d\})*\)")
# On plain numbers Python computes these as torch would.
_NUMBER_OPERATORS = frozenset({"add", "sub", "mul", "neg"})


def variable(name: str) -> str:
    """The Python variable of a value. Users may not write `__`, so the result clashes with none of theirs."""
    return f"{name}__value" if name in _OWN_NAMES else name


def over_steps(text: str) -> str:
    """A value of placement Q for code that computes with values of all steps."""
    return f"tools.over_steps({text})"


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member of a packed parameter lies: it has the rows from `start` to `start + width`."""

    parameter: Parameter
    index: int
    start: Dim
    member: Member


def member_places(cell: Cell) -> dict[str, MemberPlace]:
    """For each member's name the place where it lies."""
    places = {}
    for parameter in cell.parameters:
        start = constant_dim(0)
        for index, member in enumerate(parameter.members):
            places[member.name] = MemberPlace(parameter, index, start, member)
            start = add_dims(start, member.width)
    return places


def _layout(matrix: Value, blocks: Dim) -> str:
    """The last arguments of rows.contract."""
    if matrix.columns is None:
        raise InternalError(f"the contraction of {matrix.name}, which is no matrix")
    return f"{python_dim(blocks)}, {split_multiple(matrix.width)[0]}, {split_multiple(matrix.columns)[0]}"


class Emitter:
    """Turns nodes into lines. `linear` makes the text of a dense product from the texts of operand and matrix. `like`
    is a tensor whose dtype and device numbers take. `aliases` are `RecurrentReads.aliases`, which products read.
    `over_steps`: values are those of all steps, so that a value of placement Q [1, B, width] meets values
    [T, B, width]."""

    def __init__(
        self,
        cell: Cell,
        linear: Callable[[str, str], str],
        like: str,
        aliases: Mapping[str, str] | None = None,
        *,
        over_steps: bool = False,
    ) -> None:
        self.aliases = aliases or {}
        self.table: Mapping[str, Value] = with_aliases(value_table(cell), self.aliases)
        self.linear = linear
        self.like = like
        self.over_steps = over_steps

    def read(self, name: str, target: Value) -> str:
        """A value where the definition of another one reads it."""
        return over_steps(variable(name)) if self._is_spread(name, target) else variable(name)

    def term(self, target: str, product: Contraction) -> str:
        """A product as a part of the value `target`."""
        text = self.text(product)
        return over_steps(text) if self._is_spread(product.operand, self.table[target]) else text

    def _is_spread(self, name: str, target: Value) -> bool:
        """Whether one value per sequence meets values of all steps in the definition of `target`."""
        per_sequence = self.table[name].placement is Placement.Q
        return self.over_steps and per_sequence and target.placement is not Placement.Q

    def node(self, node: Node) -> str:
        """One node as `variable = …`."""
        return f"{variable(node.target)} = {self.text(node)}"

    def text(self, node: Node) -> str:
        """The value of a node as an expression."""
        match node:
            case Pointwise(target) if target in self.aliases:
                return f"elementwise.clip_gradient({variable(self.aliases[target])}, {CLIP.name})"
            case Pointwise(target, expr):
                return self._pointwise(self.table[target], expr)
            case Contraction(_, matrix, operand, transposed):
                return self._contraction(self.table[matrix], operand, transposed)
            case RowOp():
                return self._row_operation(node)
            case Delay(target, operand):
                return f"tools.delay({target!r}, {variable(operand)})"
            case _:
                assert_never(node)

    def _pointwise(self, target: Value, expr: Expr) -> str:
        if target.columns is not None:
            text = self.expression(expr, target)
            match target.structure:
                case Dense():
                    return text
                case BlockDiagonal(blocks):
                    return f"rows.from_blocks({text}, {python_dim(blocks)}, {split_multiple(target.width)[0]})"
                case _:
                    assert_never(target.structure)
        if isinstance(expr, Apply) and expr.operator == "norm":
            return self.norm(expr, target, "norms")
        if isinstance(expr, Apply) and expr.operator == "entries":
            return self.expression(expr, target)
        text = self.expression(expr, target)
        wide = any(self.table[name].width == target.width for name in references(expr) if name in self.table)
        if target.width != ONE and not wide:
            # A value with one number per head is one number where a row has one head.
            return f"rows.widen({text}, {python_dim(target.width)}, {self.like})"
        return f"rows.number({text})" if self.is_number(expr) else text

    def _is_per_head(self, name: str, target: Value) -> bool:
        return self.table[name].width == HEADS and target.width not in (HEADS, ONE)

    def is_number(self, expr: Expr) -> bool:
        """Whether an expression is of numbers alone."""
        return all(self.table[name].role is Role.CONSTANT for name in references(expr))

    def expression(self, expr: Expr, target: Value) -> str:
        """Write an expression in the definition of `target`."""
        return without_brackets(self.operand(expr, target))

    def operand(self, expr: Expr, target: Value) -> str:
        """An expression that may stand beside an operator: the table's infix forms bring their own brackets."""
        match expr:
            case Const(value):
                return _number_text(value)
            case Ref(name):
                return self.reference(name, target)
            case Apply("norm"):
                return self.norm(expr, target, "norm")
            case Apply(operator, arguments):
                form = re.sub(r"\bf\.", "elementwise.", OPERATORS[operator].torch)
                form = re.sub(r"\bm\.", "matrices.", form)
                spell = self.expression if _CALL.fullmatch(form) else self.operand
                texts = [spell(argument, target) for argument in arguments]
                if operator not in _NUMBER_OPERATORS and self.is_number(expr):
                    texts[0] = f"rows.number({without_brackets(texts[0])})"
                return form.format(*texts)
            case _:
                assert_never(expr)

    def norm(self, norm: Apply, target: Value, function: str) -> str:
        """Write the norm of a matrix as a call of a function of `matrices`."""
        return f"matrices.{function}({self.expression(norm.arguments[0], target)}, {python_dim(HEADS)})"

    def _in_matrices(self, value: Value, structure: BlockDiagonal) -> str:
        """A vector, or one number per head, where it meets matrices in blocks."""
        blocks = python_dim(structure.blocks)
        if value.width == HEADS:
            return f"matrices.per_block({variable(value.name)}, {blocks})"
        return f"rows.split_heads({variable(value.name)}, {blocks}, {split_multiple(value.width)[0]})"

    def reference(self, name: str, target: Value) -> str:
        """Write a value as an expression of `target` meets it."""
        value = self.table[name]
        if value.columns is None and value.width != ONE and target.columns is not None:
            match target.structure:
                case Dense():
                    return variable(name)
                case BlockDiagonal():
                    return self._in_matrices(value, target.structure)
                case _:
                    assert_never(target.structure)
        match value.structure:
            case Dense():
                pass
            case BlockDiagonal(blocks):
                return f"rows.to_blocks({variable(name)}, {python_dim(blocks)}, {split_multiple(value.width)[0]})"
            case _:
                assert_never(value.structure)
        if self._is_per_head(name, target) and target.columns is None:
            k = split_multiple(target.width)[0]
            return f"rows.per_head({self.read(name, target)}, {python_dim(HEADS)}, {k}, {python_dim(target.width)})"
        return self.read(name, target)

    def contraction_onto(self, target: str, onto: str, node: Contraction, sign: int) -> str:
        """`onto` plus a product outside the loop, or minus it, as a part of the value `target`."""
        if node.transposed or self._is_spread(node.operand, self.table[target]):
            return f"{onto} {'+' if sign > 0 else '-'} {self.term(target, node)}"
        matrix, name, read = self.table[node.matrix], variable(node.matrix), variable(node.operand)
        match matrix.structure:
            case Dense():
                return f"tools.linear_onto({onto}, {read}, {name}{', -1' if sign < 0 else ''})"
            case BlockDiagonal(blocks):
                function = "contract_onto" if sign > 0 else "contract_off"
                return f"rows.{function}({onto}, {name}, {read}, {_layout(matrix, blocks)})"
            case _:
                assert_never(matrix.structure)

    def _contraction(self, matrix: Value, operand: str, transposed: bool) -> str:
        name, read = variable(matrix.name), variable(operand)
        match matrix.structure:
            case Dense():
                return f"{read} @ {name}" if transposed else self.linear(read, name)
            case BlockDiagonal(blocks):
                extra = ", transposed=True" if transposed else ""
                return f"rows.contract({name}, {read}, {_layout(matrix, blocks)}{extra})"
            case _:
                assert_never(matrix.structure)

    def layer_norm(self, node: RowOp, scale: str = "None", shift: str = "None") -> str:
        """A layernorm, with what it is multiplied by and what is added to it. Over all steps it has a kernel."""
        (name,) = node.operands
        module = "tools" if self.over_steps else "rows"
        shape = f"{python_dim(HEADS)}, {split_multiple(self.table[name].width)[0]}"
        return f"{module}.layer_norm({variable(name)}, {shape}, {node.epsilon!r}, {scale}, {shift})"

    def _matrix_operation(self, node: RowOp, grid: Grid) -> str:
        """An operator of matrices that change."""
        first, *others = (variable(name) for name in node.operands)
        name = f"grids.{node.operator.value}"
        heads, rows, columns = (python_dim(side) for side in (HEADS, _per_head(grid.rows), _per_head(grid.columns)))
        taken, made = (split_multiple(self.table[name].width)[0] for name in (node.operands[0], node.target))
        match node.operator:
            case RowOperator.BY_ROW:
                return f"{name}({first}, {heads}, {taken}, {columns})"
            case RowOperator.BY_COLUMN:
                return f"{name}({first}, {heads}, {taken}, {rows})"
            case RowOperator.ON_DIAGONAL:
                return f"{name}({first}, {heads}, {taken})"
            case RowOperator.TRANSPOSE:
                return f"{name}({first}, {heads}, {rows})"
            case RowOperator.MATMUL:
                return f"{name}({first}, {others[0]}, {heads}, {rows}, {columns})"
            case _ if node.operator in WITHIN_ROWS:
                # Each row is to them what a head's units are.
                places = "" if node.operator is RowOperator.CUMSUM else f"{python_dim(node.offset)}, "
                return f"rows.row_{node.operator.value}({first}, {places}{python_dim(grid.rows)}, 1)"
            case _:
                return f"{name}({first}, {heads}, {rows}, {made})"

    def _row_operation(self, node: RowOp) -> str:
        if node.grid is not None:
            return self._matrix_operation(node, node.grid)
        operand = variable(node.operands[0])
        k = split_multiple(self.table[node.operands[0]].width)[0]
        heads = python_dim(HEADS)
        match node.operator:
            case RowOperator.SUM:
                return f"rows.row_sum({operand}, {heads}, {k})"
            case RowOperator.MEAN:
                return f"rows.row_mean({operand}, {heads}, {k})"
            case RowOperator.MAX:
                return f"rows.row_max({operand}, {heads}, {k})"
            case RowOperator.SQUARES:
                return f"rows.row_squares({operand}, {heads}, {k})"
            case RowOperator.VARIANCE:
                return f"rows.row_variance({operand}, {heads}, {k})"
            case RowOperator.LAYERNORM:
                return self.layer_norm(node)
            case RowOperator.RMSNORM:
                return f"rows.rms_norm({operand}, {heads}, {k})"
            case RowOperator.SOFTMAX:
                return f"rows.softmax({operand}, {heads}, {k})"
            case RowOperator.CUMSUM:
                return f"rows.row_cumsum({operand}, {heads}, {k})"
            case RowOperator.SLICE:
                width = python_dim(self.table[node.target].width)
                return f"{operand}.narrow(-1, {python_dim(node.offset)}, {width})"
            case RowOperator.CONCAT:
                target = self.table[node.target]
                return f"rows.concat(({', '.join(self.read(name, target) for name in node.operands)},))"
            case RowOperator.REPEAT:
                result = self.table[node.target].width
                if repeats_whole(self.table[node.operands[0]].width, result):
                    return f"{operand}.repeat_interleave({node.times}, -1)"
                return f"rows.row_repeat({operand}, {node.times}, {heads}, {k}, {split_multiple(result)[0]})"
            case RowOperator.ROLL:
                return f"rows.row_roll({operand}, {python_dim(node.offset)}, {heads}, {k})"
            case RowOperator.SHIFT:
                return f"rows.row_shift({operand}, {python_dim(node.offset)}, {heads}, {k})"
            case RowOperator.ARANGE if self.table[node.target].width == HEADS:
                return f"rows.head_numbers({operand})"
            case RowOperator.ARANGE:
                return f"rows.row_arange({operand}, {heads}, {k})"
            case RowOperator.PER_HEAD:
                result = self.table[node.target].width
                return f"rows.per_heads({operand}, {heads}, {python_dim(result)}, {row_parts(result)})"
            case _:
                raise InternalError(f"{node.operator.value} in a forward program")


def _per_head(side: Dim) -> Dim:
    """The rows, or columns, of a head's block."""
    return floor_divide(side, HEADS)


def _number_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"inf": "inf", "-inf": "(-inf)"}[str(value)]
    # A whole number has no sign of its own for zero.
    is_whole = float(value).is_integer() and abs(value) < 1e15 and str(value) != "-0.0"
    text = repr(int(value)) if is_whole else repr(value)
    return f"({text})" if text.startswith("-") else text


def split_lines(names: Iterable[str], widths: Iterable[Dim], source: str, axis: int) -> str:
    """`a, b = source.split((…), axis)`, or `a = source` for one name."""
    variables = [variable(name) for name in names]
    if len(variables) == 1:
        return f"{variables[0]} = {source}"
    sizes = ", ".join(python_dim(width) for width in widths)
    return f"{', '.join(variables)} = {source}.split(({sizes}), {axis})"
