"""One step of a program in torch: the meaning of the language, written from docs/language.md.

A vector is [k, N, D]: width k*base in N heads of D units; [1, N, 1] is one number per head, [1, 1, 1] one number. A
width that depends on inputs alone has no heads: [k, 1, D].
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from math import inf, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.definitions import definition
from tests.generated.matrices import BINARY, Parameters
from tests.generated.narrow import OF_WIDTHS, makes_vectors
from tests.generated.program import HEADS, Equation, Program, Width, is_time, sides
from tests.language.loop import Start, States, Values, given

COMPARE: dict[type[ast.cmpop], Callable[[Tensor, Tensor], Tensor]] = {
    ast.Lt: torch.lt, ast.LtE: torch.le, ast.Gt: torch.gt, ast.GtE: torch.ge, ast.Eq: torch.eq, ast.NotEq: torch.ne,
}  # fmt: skip
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "layernorm": lambda r: F.layer_norm(r, r.shape[-1:]), "rmsnorm": lambda r: F.rms_norm(r, r.shape[-1:]),
    "softmax": lambda r: r.softmax(-1), "cumsum": lambda r: r.cumsum(-1),
    "normalize": lambda r: F.normalize(r, dim=-1),
}  # fmt: skip


def surrogate(name: str, v: Tensor, k: float) -> Tensor:
    """The derivative of that name."""
    match name:
        case "fast_sigmoid":
            return 1 / (1 + k * v.abs()) ** 2
        case "atan":
            return k / 2 / (1 + (pi * k * v / 2) ** 2)
        case "sigmoid":
            return k * torch.sigmoid(k * v) * torch.sigmoid(-k * v)
        case "triangular":
            return k * torch.relu(1 - v.abs())
    raise AssertionError(name)


class Step:
    """Computes a step: `Case.step`."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, p: Any, s: Any, x: Any, k: Any) -> Values:
        return Vectors(self.program, p, s, x, k.N).results()


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp,
    "norm": lambda v, units, keepdim: torch.linalg.vector_norm(v, dim=units, keepdim=keepdim),
}  # fmt: skip


class Vectors(Parameters):
    """The values of a step whose states are vectors."""

    def __init__(self, program: Program, p: Any, s: Any, x: Any, heads: int) -> None:
        self.program, self.inputs_alone, self.heads = program, program.input_sizes(), heads
        self.p, self.s, self.x = p, s, x
        self.known: dict[str, Tensor] = {}
        self.argument: dict[str, Tensor] = {}  # of a derivative
        self.older: set[str] = set()  # the values of equations that are read at an older step
        self.equation = next(iter(program.equations.values()))

    def results(self) -> Values:
        found = {name: self.value(name).reshape(-1) for name in self.program.states}
        if self.program.output:
            found["out"] = self.value(self.program.output).reshape(-1)
        # What later steps read; it may read older values in turn.
        while missing := sorted(self.older - found.keys()):
            found |= {name: self.value(name) for name in missing}
        return found

    # Widths

    def layout(self, width: Width) -> tuple[int, int, int]:
        """The shape of a vector of this width."""
        plain = bool(width.names) and width.names <= self.inputs_alone
        heads = 1 if plain or width.size == 1 else self.heads
        return width.k, heads, width.size // (width.k * heads)

    def lay(self, flat: Tensor, width: Width | None) -> Tensor:
        """[width] as a vector."""
        if width is None and flat.numel() in (1, self.heads):
            return flat.reshape(1, -1, 1)  # a parameter of another equation, which is narrow
        shape = self.layout(width or self.program.width("H"))
        assert flat.numel() == shape[0] * shape[1] * shape[2], (flat.shape, shape)
        return flat.reshape(shape)

    def fill(self, value: Tensor, width: Width) -> Tensor:
        """A value as its target has it: numbers spread over the units, but a number stays one."""
        if width.is_narrow and HEADS not in width.names:
            return value
        shape = self.layout(width)
        return value.expand(shape) if self.is_narrow(value) else value.reshape(shape)

    def stays_narrow(self, target: str, value: Tensor) -> bool:
        """Whether a target that nothing declares is one number per head: its value is, and is not made of scalars."""
        program = self.program
        if program.is_declared(target) or not self.is_narrow(value):
            return False
        kinds = {**program.params, **program.groups}
        scalars = {name for name, kind in kinds.items() if kind == "scalar"} | {*program.constants}
        read = {node.id for node in ast.walk(program.equations[target].value) if isinstance(node, ast.Name)}
        known = {*program.inputs, *program.states, *program.equations, *program.params, *program.groups}
        loops = {re.sub(r"_\d+$", "", name) for name in program.equations}
        return bool(read & (known | loops) - scalars) or makes_vectors(program.equations[target].value)

    def is_narrow(self, value: Tensor) -> bool:
        return value.shape[0] == 1 and value.shape[2] == 1 and value.shape[1] in (1, self.heads)

    def together(self, values: list[Tensor]) -> list[Tensor]:
        """Where an input as wide as H meets a value with heads, it has heads too."""
        heads = max(value.shape[1] for value in values)
        return [v if self.is_narrow(v) else v.reshape(v.shape[0], heads, -1) for v in values]

    def width(self, node: ast.expr) -> Width | None:
        """The width that the values in an expression give it; None where parameters alone could."""
        match node:
            case ast.Name(name):
                if name in self.program.inputs:
                    return self.wide(self.program.inputs[name])
                if name in self.program.equations and not self.is_matrix(node):
                    return self.of_target(name)
                if declared := re.fullmatch(r"vector\((.*)\)", self.program.params.get(name, "")):
                    return self.wide(declared[1])
            case ast.Subscript(ast.Name(name)):
                if name in self.program.states:
                    return self.wide(self.program.states[name])
                if name in self.program.inputs:
                    return self.wide(self.program.inputs[name])
                return self.of_target(name if is_time(node.slice) else self.instance(node))
            case ast.BinOp(left, op, right) if not isinstance(op, ast.MatMult):
                return self.width(left) or self.width(right)
            case ast.UnaryOp(_, operand):
                return self.width(operand)
            case ast.Compare(left, _, [right]):
                return self.width(left) or self.width(right)
            case ast.IfExp():
                return self.width(self.chosen(node))
            case ast.Call(ast.Name(name), arguments):
                if name in REDUCTIONS and len(arguments) == 1:
                    return None
                if name in OF_WIDTHS:
                    return self.wide(ast.unparse(arguments[0]))
                if name == "heads":
                    return self.of_heads(arguments)
                if name in ("concat", "repeat"):
                    one = Width(1, self.heads, frozenset({HEADS}), True)
                    joined = arguments if name == "concat" else arguments[:1]
                    parts = [self.width(argument) or one for argument in joined]
                    times = 1 if name == "concat" else self.static(arguments[1])
                    names = frozenset[str]().union(*(part.names for part in parts))
                    # Values of different sizes have one head, and so one part.
                    k = sum(part.k for part in parts) if len({part.size // part.k for part in parts}) == 1 else 1
                    return Width(k * times, sum(part.size for part in parts) * times, names)
                return next((w for w in map(self.width, arguments) if w is not None), None)
        return None

    def of_heads(self, arguments: list[ast.expr]) -> Width:
        """The width of `heads(v, g)`: g groups of units, one of them for each head."""
        whole = self.width(arguments[0])
        assert whole is not None
        groups = self.static(arguments[1]) if len(arguments) > 1 else 1
        # A width of a number is a number of parts.
        k = whole.k // groups if whole.names else whole.size // groups
        return Width(k, whole.size // groups * self.heads, whole.names | {HEADS}, False)

    def wide(self, text: str) -> Width | None:
        width = self.program.width(text)
        return None if width.is_narrow else width

    def of_target(self, target: str) -> Width | None:
        if not self.program.is_declared(target) and self.is_narrow(self.value(target)):
            return None
        width = self.target_width(target)
        return None if width.is_narrow else width

    def target_width(self, target: str) -> Width:
        return self.program.target_width(target)

    # Values

    def value(self, target: str) -> Tensor:
        if target not in self.known:
            outer, self.equation = self.equation, self.program.equations[target]
            width = self.target_width(target)
            found = self.right_side(self.equation, width)
            self.known[target] = found if self.stays_narrow(target, found) else self.fill(found, width)
            self.equation = outer
        return self.known[target]

    def right_side(self, equation: Equation, width: Width) -> Tensor:
        if len(equation.targets) == 1:
            return self.eval(equation.value, width)
        assert isinstance(equation.value, ast.Call)
        whole = self.eval(equation.value.args[0], None)
        parts = [self.program.target_width(target) for target in equation.targets]
        before = parts[: equation.index]
        if sum(part.k for part in parts) == whole.shape[0]:
            first = sum(part.k for part in before)
            return whole[first : first + width.k]
        # Values of different sizes have one head.
        start = sum(part.size for part in before)
        return whole.reshape(-1)[start : start + width.size].reshape(self.layout(width))

    def static(self, node: ast.expr) -> Any:
        names = {**self.program.constants, **self.program.sizes, **self.equation.loop}
        return eval(ast.unparse(node), {"__builtins__": {}}, names)

    def chosen(self, node: ast.IfExp) -> ast.expr:
        return node.body if self.static(node.test) else node.orelse

    def instance(self, node: ast.Subscript) -> str:
        assert isinstance(node.value, ast.Name)
        return f"{node.value.id}_{self.static(node.slice)}"

    def number(self, value: float) -> Tensor:
        return torch.full((1, 1, 1), value, dtype=torch.float64)

    def eval(self, node: ast.expr, want: Width | None) -> Tensor:
        """The vector of an expression. `want` is the width that its place asks for, if it does."""
        match node:
            case ast.Constant(value):
                return self.number(float(str(value)))
            case ast.Name(name):
                return self.named(name, want)
            case ast.Subscript():
                return self.indexed(node)
            case ast.IfExp():
                return self.eval(self.chosen(node), want)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.eval(operand, want)
            case ast.BinOp(left, ast.MatMult(), right):
                return self.product(left, right, want)
            case ast.BinOp(left, op, right):
                return BINARY[type(op)](*self.operands([left, right], want or self.width(node)))
            case ast.Compare(left, [op], [right]):
                return COMPARE[type(op)](*self.operands([left, right], want or self.width(node))).double()
            case ast.Call(ast.Name(name), arguments, keywords):
                return self.call(str(self.program.constants.get(name, name)), arguments, keywords, node, want)
        raise AssertionError(ast.dump(node))

    def operands(self, nodes: list[ast.expr], want: Width | None) -> list[Tensor]:
        return self.together([self.eval(node, want) for node in nodes])

    def named(self, name: str, want: Width | None) -> Tensor:
        program = self.program
        if name in ("pi", "inf"):
            return self.number({"pi": pi, "inf": inf}[name])
        if name in self.argument:
            return self.argument[name]
        if name in program.inputs:
            return self.lay(self.x(name), program.width(program.inputs[name]))
        if name in program.constants or name in program.sizes:
            return self.number(float({**program.sizes, **program.constants}[name]))
        if name in program.equations:
            return self.value(name)
        flat = self.parameter(name)
        return flat.reshape(1, 1, 1) if self.kind(name) == "scalar" else self.lay(flat, want)

    def indexed(self, node: ast.Subscript) -> Tensor:
        if not is_time(node.slice):
            return self.value(self.instance(node))
        inner = node.value
        assert isinstance(inner, ast.Name | ast.Subscript)
        name = inner.id if isinstance(inner, ast.Name) else self.instance(inner)
        back = -eval(ast.unparse(node.slice), {"__builtins__": {}}, {**self.program.constants, "t": 0})
        if name in self.program.inputs:
            return self.lay(self.x(name, back), self.program.width(self.program.inputs[name]))
        if back == 0:
            return self.value(name)
        if name not in self.program.states:
            self.older.add(name)
            older: Tensor = self.x(name, back)
            return older.expand(self.value(name).shape) if older.dim() == 0 else older
        width = self.program.width(self.program.states[name])
        before: Tensor = self.s(name, back)
        return before.reshape(self.layout(width))

    def call(
        self, name: str, arguments: list[ast.expr], keywords: list[ast.keyword], node: ast.expr, want: Width | None
    ) -> Tensor:
        first = arguments[0]
        match name:
            case "sum" | "mean" | "max" | "min" | "norm" | "logsumexp" if len(arguments) == 1:
                return REDUCTIONS[name](self.eval(first, self.width(first)), (0, 2), keepdim=True)
            case "concat":
                return self.concat([self.eval(part, self.width(part)) for part in arguments])
            case "repeat":
                return self.repeat(first, self.static(arguments[1]), want)
            case "roll":
                value = self.eval(first, want or self.width(first))
                return self.roll(value, self.static(arguments[1]), [self.eval(each.value, None) for each in keywords])
            case "ones" | "arange":
                k, count, units = self.layout(self.program.width(text := ast.unparse(first)))
                if name == "ones":
                    return torch.ones(k, count, units, dtype=torch.float64)
                # The heads themselves are counted where the width is their number.
                numbers = torch.arange(count if text == HEADS else k * units, dtype=torch.float64)
                return numbers.reshape(k, -1, units).expand(k, count, units)
            case "heads":
                width, whole = self.of_heads(arguments), self.eval(first, self.width(first))
                groups = whole.reshape(-1, width.size // self.heads)
                copies = groups.repeat_interleave(self.heads // len(groups), 0)
                return copies.reshape(self.heads, width.k, -1).transpose(0, 1)
        if name in ROWS:
            value = self.eval(first, want or self.width(first))
            rows = ROWS[name](value.transpose(0, 1).reshape(value.shape[1], -1))
            return rows.reshape(value.shape[1], value.shape[0], -1).transpose(0, 1)
        values = self.operands(arguments, want or self.width(node))
        found = definition(name)(*values)
        return given(values[0], found, self.slope(values[0].detach(), keywords[0].value)) if keywords else found

    def concat(self, parts: list[Tensor]) -> Tensor:
        if len({part.shape[1:] for part in parts}) == 1:
            return torch.cat(parts, 0)
        # One number beside one per head; or values of different sizes, which have one head.
        if all(self.is_narrow(part) for part in parts):
            return torch.cat([part.expand(1, self.heads, 1) for part in parts], 0)
        return torch.cat([part.reshape(1, 1, -1) for part in parts], 2)

    def roll(self, value: Tensor, places: int, fill: list[Tensor]) -> Tensor:
        rows = value.transpose(0, 1).reshape(value.shape[1], -1)
        moved = [int(unit) - places for unit in range(rows.shape[1])]
        columns = [
            fill[0].reshape(1).expand(len(rows)) if fill and not 0 <= unit < len(moved) else rows[:, unit % len(moved)]
            for unit in moved
        ]
        return torch.stack(columns, -1).reshape(value.shape[1], value.shape[0], -1).transpose(0, 1)

    def repeat(self, node: ast.expr, times: int, want: Width | None) -> Tensor:
        value = self.eval(node, self.width(node))
        rows = value.transpose(0, 1).reshape(value.shape[1], -1).repeat_interleave(times, -1)
        k = want.k if want is not None else value.shape[0] * times
        return rows.reshape(value.shape[1], k, -1).transpose(0, 1)

    def slope(self, value: Tensor, grad: ast.expr) -> Tensor:
        """What `grad=` says that the derivative of a step function is."""
        match grad:
            case ast.Call(ast.Name(name), [sharpness]):
                return surrogate(name, value, self.static(sharpness))
            case ast.Lambda(ast.arguments(args=[argument]), body):
                self.argument[argument.arg] = value
                return self.eval(body, None)
            case _:
                return self.number(self.static(grad))

    # Products

    def product(self, left: ast.expr, right: ast.expr, want: Width | None) -> Tensor:
        operand = self.eval(right, self.width(right))
        width = want or self.program.width("H")
        if isinstance(left, ast.Name) and self.kind(left.id) == "diag":
            return self.parameter(left.id).reshape(operand.shape) * operand
        if isinstance(left, ast.Name) and self.kind(left.id).startswith("lowrank"):
            group, gate = self.member(left.id).split("_", 1)
            factors = [getattr(self.p, f"{group}__{factor}_{gate}") for factor in "uv"]
            made = self.times(factors[0], self.times(factors[1], operand)[None])
        else:
            made = self.times(self.matrix(left), operand)
        assert made.numel() == width.size, (made.shape, width)
        rows = made.reshape(made.shape[0], width.k, -1).transpose(0, 1)
        return rows.reshape(self.layout(width))


def states(program: Program, heads: int = 1) -> States:
    """Widths, or blocks of matrices, and initial values of the states."""
    found: dict[str, tuple[int | tuple[int, ...], Start]] = {}
    for name, text in program.states.items():
        both = sides(text)
        blocks = (heads, *(program.width(side).size // heads for side in both))
        start: Start = program.initial[name]
        if name in program.diagonal:
            assert isinstance(start, float)
            start = start * torch.eye(blocks[-1], dtype=torch.float64).expand(blocks)
        found[name] = (blocks if both else program.width(text).size, start)
    return found
