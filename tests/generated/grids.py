"""Matrices that change with the step: what a text says of them, as docs/language.md has it.

A matrix is [N, P/N, Q/N], one block per head; rows and columns of a block are a head's units of vectors of these
widths.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.definitions import definition
from tests.generated.interpreter import COMPARE, REDUCTIONS, Vectors
from tests.generated.matrices import BINARY, OF_MATRICES, rolled
from tests.generated.program import HEADS, Program, Width, is_time, sides
from tests.language.loop import Values

# The widths of rows and columns; None where an expression does not say them.
Sides = tuple[Width | None, Width | None]
_AXES = {"rows": -1, "columns": -2}
_ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda m, axis: m.softmax(axis), "normalize": lambda m, axis: F.normalize(m, dim=axis),
    "cumsum": lambda m, axis: m.cumsum(axis),
}  # fmt: skip
_OVER: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp,
}  # fmt: skip


class GridStep:
    """Computes a step of a cell with matrices: `Case.step`. `kept`: of a state, which part of each element stays."""

    def __init__(self, program: Program, kept: Mapping[str, float]) -> None:
        self.program, self.kept = program, kept

    def __call__(self, p: Any, s: Any, x: Any, k: Any) -> Values:
        found = Grids(self.program, p, s, x, k.N).results()
        found |= {
            name: part * s(name).reshape(found[name].shape) + (1 - part) * found[name]
            for name, part in self.kept.items()
        }
        # Where the output is a state, it is what stays of the state.
        return found | ({"out": found[self.program.output].reshape(-1)} if self.program.output in self.kept else {})


class Grids(Vectors):
    """The values of a step."""

    def __init__(self, program: Program, p: Any, s: Any, x: Any, heads: int) -> None:
        super().__init__(program, p, s, x, heads)
        self.grids: dict[str, Tensor] = {}

    def results(self) -> Values:
        states = self.program.states
        found = {n: self.named_grid(n) if sides(text) else self.value(n).reshape(-1) for n, text in states.items()}
        if self.program.output:
            found["out"] = self.value(self.program.output).reshape(-1)
        while missing := sorted(self.older - found.keys()):
            found |= {name: self.value(name) for name in missing}
        return found

    # What an expression is

    def declared(self, name: str) -> str:
        base = name
        if name in self.program.equations and self.program.equations[name].loop:
            base = name.rpartition("_")[0]
        return self.program.states.get(name) or self.program.locals.get(base) or ""

    def name(self, node: ast.expr) -> str:
        """Of a value, with its turn in a loop; "" for what is no value."""
        match node:
            case ast.Name(name):
                return name
            case ast.Subscript(inner, index):
                return self.name(inner) if is_time(index) else self.instance(node)
        return ""

    def is_grid(self, node: ast.expr) -> bool:
        """Whether an expression is a matrix that changes with the step."""
        match node:
            case ast.Name() | ast.Subscript():
                name = self.name(node)
                if declared := self.declared(name):
                    return bool(sides(declared))
                equation = self.program.equations.get(name)
                return equation is not None and len(equation.targets) == 1 and self.is_grid(equation.value)
            case ast.Call(ast.Name(name), arguments):
                if name in ("eye", "unflatten"):
                    return True
                if name == "diag":
                    return not self.is_grid(arguments[0])
                reduces = name in REDUCTIONS and len(arguments) == 1
                return not reduces and any(map(self.is_grid, arguments))
            case ast.BinOp(left, ast.MatMult(), right):
                if self.is_column(right):
                    return not self.is_any(left)
                return self.is_any(right) and (self.is_grid(left) or self.is_grid(right))
            case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
                return self.is_grid(left) or self.is_grid(right)
            case ast.UnaryOp(_, operand):
                return self.is_grid(operand)
            case ast.IfExp():
                return self.is_grid(self.chosen(node))
        return False

    def is_matrix(self, node: ast.expr) -> bool:
        """Whether an expression is a matrix of parameters."""
        return not self.is_grid(node) and not self.makes_vector(node) and super().is_matrix(node)

    def makes_vector(self, node: ast.expr) -> bool:
        """Whether an expression is a vector that a matrix makes."""
        match node:
            case ast.Name(name) if name in self.program.equations:
                return self.makes_vector(self.program.equations[name].value)
            case ast.Call(ast.Name("diag"), [inner]):
                return self.is_grid(inner)
        return False

    def is_any(self, node: ast.expr) -> bool:
        """Whether an expression is a matrix of any kind."""
        return self.is_grid(node) or self.is_matrix(node)

    def is_column(self, node: ast.expr) -> bool:
        """Whether an expression is `T(v)` of a vector."""
        match node:
            case ast.Call(ast.Name("T"), [inner]):
                return not self.is_any(inner)
        return False

    def both_sides(self, node: ast.expr) -> Sides:
        """The widths of rows and columns."""
        match node:
            case ast.Name() | ast.Subscript():
                name = self.name(node)
                if text := sides(self.declared(name) or self.kind(name)):
                    return self.program.width(text[0]), self.program.width(text[1])
                equation = self.program.equations.get(name)
                return self.both_sides(equation.value) if equation is not None else (None, None)
            case ast.Call(ast.Name("T"), [inner]):
                rows, columns = self.both_sides(inner)
                return columns, rows
            case ast.Call(ast.Name("unflatten"), [_, rows, columns]):
                return self.program.width(ast.unparse(rows)), self.program.width(ast.unparse(columns))
            case ast.Call(ast.Name("eye"), [width]):
                return (self.program.width(ast.unparse(width)),) * 2
            case ast.Call(ast.Name("diag"), [vector]):
                return (self.width(vector),) * 2
            case ast.BinOp(left, ast.MatMult(), right):
                if self.is_column(right) and isinstance(right, ast.Call):
                    return self.width(left), self.width(right.args[0])
                return self.both_sides(left)[0], self.both_sides(right)[1]
            case ast.Call(_, arguments):
                return self.first_sides(arguments)
            case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
                return self.first_sides([left, right])
            case ast.UnaryOp(_, operand):
                return self.both_sides(operand)
            case ast.IfExp():
                return self.both_sides(self.chosen(node))
        return None, None

    def first_sides(self, nodes: list[ast.expr]) -> Sides:
        found = [self.both_sides(node) for node in nodes if self.is_any(node)]
        rows, columns = ([each[i] for each in found if each[i] is not None] for i in (0, 1))
        return rows[0] if rows else None, columns[0] if columns else None

    def width(self, node: ast.expr) -> Width | None:
        match node:
            case ast.Name(name) if name in self.program.params and self.kind(name).startswith("vector("):
                return self.wide(self.kind(name)[7:-1])
            case ast.BinOp(left, ast.MatMult(), _) if self.is_any(left):
                return self.both_sides(left)[0]
            case ast.Call(ast.Name("diag"), [inner]):
                return self.both_sides(inner)[0]
            case ast.Call(ast.Name(name), [inner], [ast.keyword(arg="axis", value=ast.Name(axis))]):
                if name in _OVER:
                    return self.both_sides(inner)[0 if axis == "rows" else 1]
        return super().width(node)

    def target_width(self, target: str) -> Width:
        """What nothing declares is as wide as its value says."""
        equation = self.program.equations[target]
        if self.program.is_declared(target):
            return super().target_width(target)
        outer, self.equation = self.equation, equation
        found = self.width(equation.value)
        self.equation = outer
        return found or self.program.width("H")

    # Values

    def named(self, name: str, want: Width | None) -> Tensor:
        kind = self.program.params.get(name, "")
        if kind.startswith("vector("):
            width = self.program.width(kind[7:-1])
            flat: Tensor = getattr(self.p, name)
            return flat.reshape(1, -1, 1) if HEADS in width.names and width.is_narrow else self.lay(flat, width)
        return super().named(name, want)

    def named_grid(self, name: str) -> Tensor:
        if name not in self.grids:
            outer, self.equation = self.equation, self.program.equations[name]
            text = sides(self.declared(name))
            want = (self.program.width(text[0]), self.program.width(text[1])) if text else (None, None)
            self.grids[name] = self.grid(self.equation.value, want)
            if text:
                assert self.grids[name].shape == self.shape(want), (name, self.grids[name].shape, want)
            self.equation = outer
        return self.grids[name]

    def shape(self, both: Sides) -> tuple[int, int, int]:
        rows, columns = both
        assert rows is not None and columns is not None
        return self.heads, rows.size // self.heads, columns.size // self.heads

    def by_head(self, vector: Tensor) -> Tensor:
        """[k, N, D] as [N, k*D]."""
        if vector.shape[1] != self.heads:
            assert self.heads == 1 or vector.shape[0] == 1, vector.shape
        return vector.transpose(0, 1).reshape(self.heads, -1)

    def units(self, node: ast.expr, want: Width | None) -> Tensor:
        """A vector, head by head: [N, P/N]."""
        width = self.width(node) or want or self.program.width("H")
        found = self.eval(node, width)
        return self.by_head(found.expand(self.layout(width)) if self.is_narrow(found) else found)

    def laid(self, rows: Tensor, width: Width | None) -> Tensor:
        """[N, P/N] as a vector."""
        assert width is not None
        return rows.reshape(len(rows), width.k, -1).transpose(0, 1)

    def eval(self, node: ast.expr, want: Width | None) -> Tensor:
        match node:
            case ast.BinOp(left, ast.MatMult(), right) if self.is_grid(left):
                rows, columns = self.both_sides(left)
                columns = columns or self.width(right)
                matrix = self.grid(left, (rows or want, columns))
                return self.laid(torch.einsum("npq,nq->np", matrix, self.units(right, columns)), rows or want)
            case ast.Call(ast.Name("diag"), [inner]):
                return self.laid(self.grid(inner, (None, None)).diagonal(dim1=-2, dim2=-1), self.width(node))
            case ast.Call(ast.Name(name), [inner], [ast.keyword(arg="axis", value=ast.Name(axis))]):
                both = (want, None) if axis == "rows" else (None, want)
                return self.laid(_OVER[name](self.grid(inner, both), dim=_AXES[axis]), self.width(node) or want)
            case ast.Call(ast.Name(name), [inner]) if name in REDUCTIONS and self.is_grid(inner):
                flat = self.grid(inner, (None, None)).flatten(1)
                made = torch.linalg.vector_norm(flat, dim=-1) if name == "norm" else _OVER[name](flat, dim=-1)
                return made.reshape(1, -1, 1)
        return super().eval(node, want)

    def grid(self, node: ast.expr, want: Sides) -> Tensor:
        """[N, P/N, Q/N]: a matrix that changes with the step, or one of parameters beside one."""
        want = (self.both_sides(node)[0] or want[0], self.both_sides(node)[1] or want[1])
        match node:
            case _ if not self.is_grid(node):
                return self.of_parameters(node)
            case ast.Name() | ast.Subscript():
                return self.value_of(node)
            case ast.Call(ast.Name("T"), [inner]):
                return self.grid(inner, (want[1], want[0])).transpose(1, 2)
            case ast.Call(ast.Name("eye")):
                heads, units, _ = self.shape(want)
                return torch.eye(units, dtype=torch.float64).expand(heads, units, units)
            case ast.Call(ast.Name("diag"), [vector]):
                return torch.diag_embed(self.units(vector, want[0]))
            case ast.Call(ast.Name("unflatten"), [vector, _, _]):
                heads, p, q = self.shape(want)
                names = frozenset[str]().union(*(each.names for each in want if each is not None))
                return self.units(vector, Width(1, heads * p * q, names | {HEADS})).reshape(heads, p, q)
            case ast.Call(ast.Name("roll"), [inner, places], keywords):
                given = {k.arg: k.value for k in keywords}
                if "fill" in given:
                    given["fill"] = ast.Constant(self.static(given["fill"]))
                return rolled(self.grid(inner, want), self.static(places), given)
            case ast.Call(ast.Name(name), [inner], [ast.keyword(arg="axis", value=ast.Name(axis))]):
                return _ALONG[name](self.grid(inner, want), _AXES[axis])
            case ast.Call(ast.Name(name), arguments):
                called = str(self.program.constants.get(name, name))
                return definition(called)(*(self.element(each, want) for each in arguments))
            case ast.BinOp(left, ast.MatMult(), right) if self.is_column(right) and isinstance(right, ast.Call):
                column = self.units(right.args[0], want[1])
                return torch.einsum("np,nq->npq", self.units(left, want[0]), column)
            case ast.BinOp(left, ast.MatMult(), right):
                inner_width = self.both_sides(left)[1] or self.both_sides(right)[0]
                return self.grid(left, (want[0], inner_width)) @ self.grid(right, (inner_width, want[1]))
            case ast.BinOp(left, op, right):
                return BINARY[type(op)](self.element(left, want), self.element(right, want))
            case ast.Compare(left, [op], [right]):
                return COMPARE[type(op)](self.element(left, want), self.element(right, want)).double()
            case ast.UnaryOp(ast.USub(), operand):
                return -self.grid(operand, want)
            case ast.IfExp():
                return self.grid(self.chosen(node), want)
        raise AssertionError(ast.dump(node))

    def value_of(self, node: ast.Name | ast.Subscript) -> Tensor:
        name = self.name(node)
        if isinstance(node, ast.Subscript) and is_time(node.slice) and ast.unparse(node.slice) != "t":
            before: Tensor = self.s(name, 1)
            return before
        return self.named_grid(name)

    def element(self, node: ast.expr, want: Sides) -> Tensor:
        """A matrix, or a number or one per head that meets one."""
        if self.is_any(node):
            return self.grid(node, want)
        found = self.eval(node, None)
        assert self.is_narrow(found), ast.unparse(node)
        return found.reshape(-1, 1, 1)

    def of_parameters(self, node: ast.expr) -> Tensor:
        """Blocks of parameters: whatever meets a matrix that changes has them."""
        match node:
            case ast.BinOp(left, op, right) if not isinstance(op, ast.MatMult):
                return BINARY[type(op)](self.element(left, (None, None)), self.element(right, (None, None)))
            case ast.Call(_, [inner], []) if not self.is_static(node):
                return definition(ast.unparse(node.func))(self.of_parameters(inner))
            case ast.Name(name) if self.kind(name).startswith("lowrank"):
                group, gate = self.member(name).split("_", 1)
                left, right = (getattr(self.p, f"{group}__{factor}_{gate}") for factor in "uv")
                made: Tensor = left @ right
                return made.reshape(self.heads, *made.shape[-2:])
        found = self.matrix(node)
        assert found.dim() == 3 or self.heads == 1, ast.unparse(node)
        return found.reshape(self.heads, *found.shape[-2:])

    def is_static(self, node: ast.Call) -> bool:
        return ast.unparse(node.func) in ("T", *OF_MATRICES)
