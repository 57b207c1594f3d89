"""Parameters, and functions of whole matrices: what cells draw, and what torch says that they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.generated.program import Equation, Program, Width

# Functions of a matrix MF and a vector bs, whose numbers are of the size 1.
DRAWN = (
    "expm(0.4*MF - 0.4*T(MF))",
    "cayley(MF - T(MF))",
    "inv(eye(H) + 0.1*MF)",
    "softmax(MF, axis=rows)",
    "softmax(MF, axis=columns)",
    "normalize(MF, axis=rows)",
    "normalize(MF, axis=columns)",
    "(tril(MF) - 0.3*triu(MF))",
    "(diag(bs)@tanh(MF))",
    "(abs(MF)@diag(bs))",
    "(MF + diag(bs))",
    "(MF/norm(MF))",
)
# The same, in the place of one of these in some cells.
MOVED = (
    "(0.3*cumsum(MF, axis=rows))",
    "(0.3*cumsum(MF, axis=columns))",
    "roll(MF, 1, axis=rows)",
    "roll(MF, -2, axis=columns)",
    "roll(MF, 1, axis=columns, fill=0.25)",
    "roll(MF, -8, axis=rows, fill=0)",
)


def called(call: ast.Call) -> str:
    """The function's name, and then the axis."""
    parts = (call.func, *(keyword.value for keyword in call.keywords))
    return " ".join(part.id for part in parts if isinstance(part, ast.Name))


def _cayley(a: Tensor) -> Tensor:
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    result: Tensor = torch.linalg.inv(eye + a) @ (eye - a)
    return result


BINARY: dict[type[ast.operator], Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: torch.add, ast.Sub: torch.sub, ast.Mult: torch.mul, ast.Div: torch.div, ast.Pow: torch.pow,
}  # fmt: skip
ELEMENTWISE = {"abs": torch.abs, "tanh": torch.tanh}
# What functions of matrices are, by torch's definitions; the axis follows the name.
OF_MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "tril": torch.tril,
    "triu": torch.triu,
    "expm": torch.linalg.matrix_exp,
    "inv": torch.linalg.inv,
    "cayley": _cayley,
    "softmax rows": lambda a: a.softmax(-1),
    "softmax columns": lambda a: a.softmax(-2),
    "cumsum rows": lambda a: a.cumsum(-1),
    "cumsum columns": lambda a: a.cumsum(-2),
    "normalize rows": lambda a: a / torch.linalg.vector_norm(a, dim=-1, keepdim=True),
    "normalize columns": lambda a: a / torch.linalg.vector_norm(a, dim=-2, keepdim=True),
}


def rolled(matrix: Tensor, places: int, keywords: Mapping[str | None, ast.expr]) -> Tensor:
    """Line i of an axis is line i - places of the matrix; what is beyond it is the fill, if there is one."""
    axis = {"rows": -1, "columns": -2}[ast.unparse(keywords["axis"])]
    lines = list(matrix.unbind(axis))
    moved = [
        torch.full_like(lines[0], float(ast.literal_eval(keywords["fill"])))
        if "fill" in keywords and not 0 <= line - places < len(lines)
        else lines[(line - places) % len(lines)]
        for line in range(len(lines))
    ]
    return torch.stack(moved, axis)


class Parameters:
    """The parameters `p` of a program as vectors and matrices, for the equation at hand."""

    program: Program
    equation: Equation
    p: Any

    def eval(self, node: ast.expr, want: Width | None) -> Tensor:
        """The vector of an expression."""
        raise NotImplementedError

    def parameter(self, name: str) -> Tensor:
        """A param, or the member of a group that belongs to the equation at hand."""
        found: Tensor = getattr(self.p, name if name in self.program.params else self.member(name))
        return found

    def group(self, name: str) -> str:
        return name if name in self.program.groups else name.partition("_")[0]

    def member(self, name: str) -> str:
        """`W_i` for W in the equation of i."""
        return f"{name}_{self.equation.target}" if name in self.program.groups else name

    def kind(self, name: str) -> str:
        return self.program.params.get(name) or self.program.groups.get(self.group(name), "")

    def is_matrix(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(name) if name in self.program.equations:
                return self.is_matrix(self.program.equations[name].value)
            case ast.Name(name):
                return self.kind(name).startswith(("matrix", "blockdiag", "diag", "lowrank", "mask", "sparse"))
            case ast.Call(ast.Name(name)):
                is_elementwise = name in ELEMENTWISE and self.is_matrix(node.args[0])
                is_rolled = name == "roll" and self.is_matrix(node.args[0])
                return is_elementwise or is_rolled or name in ("T", "eye", "diag") or called(node) in OF_MATRICES
            case ast.BinOp(left, ast.MatMult(), right):
                return self.is_matrix(left) and self.is_matrix(right)
            case ast.BinOp(left, _, right):
                return self.is_matrix(left) or self.is_matrix(right)
            case ast.UnaryOp(_, operand):
                return self.is_matrix(operand)
        return False

    def matrix(self, node: ast.expr) -> Tensor:
        """A dense matrix [out, in] or a block-diagonal one [N, out, in]."""
        match node:
            case ast.Name(name) if name in self.program.equations:
                outer, self.equation = self.equation, self.program.equations[name]
                found = self.matrix(self.equation.value)
                self.equation = outer
                return found
            case ast.Name(name):
                return self.parameter(name)
            case ast.Call(ast.Name("T"), [inner]):
                return self.matrix(inner).transpose(-1, -2)
            case ast.Call(ast.Name("roll"), [inner, places], keywords):
                return rolled(self.matrix(inner), ast.literal_eval(places), {k.arg: k.value for k in keywords})
            case ast.Call(_, [inner]) if (name := called(node)) in OF_MATRICES:
                return OF_MATRICES[name](self.matrix(inner))
            case ast.Call(ast.Name(name), [inner]) if name in ELEMENTWISE:
                return ELEMENTWISE[name](self.matrix(inner))
            case ast.BinOp(left, ast.MatMult(), right):
                first, second = self.both(left, right)
                return first @ second
            case ast.BinOp(left, op, right):
                return BINARY[type(op)](*self.both(left, right))
            case ast.UnaryOp(_, operand):
                return -self.matrix(operand)
        raise AssertionError(ast.dump(node))

    def both(self, left: ast.expr, right: ast.expr) -> tuple[Tensor, Tensor]:
        """Two sides of matrix arithmetic: numbers scale, `eye` and `diag` have the shape of what stands beside them."""

        def side(node: ast.expr, other: ast.expr) -> Tensor:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _is_eye(node.right):
                return self.eval(node.left, None).reshape(()) * side(node.right, other)
            name = called(node) if isinstance(node, ast.Call) else ""
            if name == "diag" and isinstance(node, ast.Call):
                beside = self.matrix(other)
                return torch.diag_embed(self.parameter(ast.unparse(node.args[0])).reshape(beside.shape[:-1]))
            if name == "norm" and isinstance(node, ast.Call):
                return self.matrix(node.args[0]).square().sum((-2, -1), keepdim=True).sqrt()
            if _is_eye(node):
                return torch.eye(self.matrix(other).shape[-1], dtype=torch.float64)
            return self.matrix(node) if self.is_matrix(node) else self.eval(node, None).reshape(())

        return side(left, right), side(right, left)

    def times(self, matrix: Tensor, operand: Tensor) -> Tensor:
        """A matrix, dense or of blocks, times a vector: block by block."""
        blocks = matrix if matrix.dim() == 3 else matrix[None]
        count, k = blocks.shape[0], operand.shape[0]
        cut = operand.reshape(k, count, -1).transpose(0, 1).reshape(count, -1)
        return torch.einsum("noi,ni->no", blocks, cut)


def _is_eye(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "eye"
