"""The operator table: one row per elementwise operator. Every stage that handles operators reads it.

A derivative is written once, generically: `derivative(f, y, *arguments)` returns the partial derivative with respect
to each argument, built with `+ - * /` and with other operators of the table as attributes of `f`; `y` is the
operator's own value, so derivatives stand in output form (σ' = y(1-y)), which stays finite where the textbook form
gives NaN. The same rows are evaluated on sympy expressions (differentiate) and on tensors (the table's tests).

Definitions, and derivatives at kinks and ties, are those of torch with default arguments (docs/language.md, "Operators
and functions").
Where an operator passes a gradient or drops it (relu, max), its derivative is a `where` of which one side is 0: a
gradient that is infinite or no number is dropped like any other. What `grad=` gives to a step function in place of a
derivative of 0 stands in surrogates.py.
"""

from __future__ import annotations

import math
from typing import Any

from rnncc.language import bound as bounds
from rnncc.language import surrogates
from rnncc.language.bound import Bound
from rnncc.language.operator_row import Derivative, Operator

_EXACT = (0.0, 0.0)


def _zero(f: Any, y: Any, *arguments: Any) -> tuple[Any, ...]:
    return tuple(0 for _ in arguments)


def _infix(name: str, symbol: str, derivative: Derivative, **extra: Any) -> Operator:
    text = f"({{0}} {symbol} {{1}})"
    return Operator(name, 2, derivative, text, text, user=False, **extra)


def _comparison(name: str, symbol: str) -> Operator:
    return Operator(
        name,
        2,
        _zero,
        f"{name}({{0}}, {{1}})",
        f"f.{name}({{0}}, {{1}})",
        ties=True,
        user=False,
        smooth=False,
        bound=bounds.unit,
        instructions=1,
        ulps=_EXACT,
    )


def _unary(name: str, derivative: Derivative, torch: str | None = None, **extra: Any) -> Operator:
    return Operator(name, 1, derivative, f"{name}({{0}})", torch or f"torch.{name}({{0}})", **extra)


def _whole(name: str, arity: int, torch: str) -> Operator:
    """An operator on whole matrices, in placement P only, where torch computes and differentiates. Matrices are
    [blocks, out, in], or [out, in] where they are dense, and vectors [blocks, width], or [width]."""
    return Operator(name, arity, _zero, "", torch, user=False, in_loop=False)


def _step(name: str, torch: str | None = None, kinks: tuple[float, ...] = (0.0,), **extra: Any) -> Operator:
    return _unary(name, _zero, torch, kinks=kinks, smooth=False, step=True, ulps=_EXACT, **extra)


_ROWS = (
    _infix(
        "add",
        "+",
        lambda f, y, a, b: (1, 1),
        bound=Bound.plus,
        value=lambda a, b: a + b,
        clamps=(0, 1),
        instructions=1,
    ),
    _infix(
        "sub",
        "-",
        lambda f, y, a, b: (1, -1),
        bound=lambda a, b: a.plus(b.negated),
        value=lambda a, b: a - b,
        clamps=(0, 1),
        instructions=1,
    ),
    _infix(
        "mul",
        "*",
        lambda f, y, a, b: (b, a),
        bound=Bound.times,
        value=lambda a, b: a * b,
        clamps=(0, 1),
        instructions=1,
    ),
    _infix(
        "div",
        "/",
        lambda f, y, a, b: (1 / b, -y / b),
        domain=(0.5, 3.0),
        value=lambda a, b: a / b,
        clamps=(0,),
        instructions=8,
        fast="divide({0}, {1})",
    ),
    Operator(
        "neg",
        1,
        lambda f, y, a: (-1,),
        "(-{0})",
        "(-{0})",
        user=False,
        bound=lambda a: a.negated,
        value=lambda a: -a,
        clamps=(0,),
        instructions=1,
    ),
    Operator(
        "pow",
        2,
        # torch: d/da = b*a^(b-1) (0 where b == 0), d/db = a^b*log(a) (0 where a == 0 and b >= 0).
        lambda f, y, a, b: (
            f.where(f.eq(b, 0), 0, b * f.pow(a, b - 1)),
            f.where(f.eq(a, 0) * f.ge(b, 0), 0, y * f.log(a)),
        ),
        "pow({0}, {1})",
        "f.pow({0}, {1})",
        domain=(0.5, 3.0),
        user=False,
        value=lambda a, b: a**b,
    ),
    _comparison("lt", "<"),
    _comparison("le", "<="),
    _comparison("gt", ">"),
    _comparison("ge", ">="),
    _comparison("eq", "=="),
    _comparison("ne", "!="),
    Operator(
        "where",
        3,
        lambda f, y, c, a, b: (0, f.where(c, 1, 0), f.where(c, 0, 1)),
        "where({0}, {1}, {2})",
        "f.where({0}, {1}, {2})",
        kinks=(0.0,),
        bound=lambda c, a, b: a.plus(b),
        clamps=(1, 2),
        instructions=1,
        ulps=_EXACT,
    ),
    _unary("tanh", lambda f, y, a: (1 - y * y,), bound=bounds.signed, value=math.tanh, fast="tanh({0})"),
    _unary("sigmoid", lambda f, y, a: (y * (1 - y),), bound=bounds.unit, fast="sigmoid({0})"),
    _unary(
        "relu",
        lambda f, y, a: (f.where(f.gt(y, 0), 1, 0),),
        kinks=(0.0,),
        bound=bounds.ray,
        clamps=(0,),
        instructions=1,
        ulps=_EXACT,
    ),
    _unary("exp", lambda f, y, a: (y,), bound=bounds.ray, value=math.exp, fast="exp({0})"),
    _unary("log", lambda f, y, a: (1 / a,), domain=(0.1, 4.0), bound=bounds.logarithm, value=math.log),
    _unary("log1p", lambda f, y, a: (1 / (1 + a),), domain=(-0.9, 4.0), bound=bounds.logarithm, value=math.log1p),
    _unary(
        "sqrt",
        lambda f, y, a: (1 / (2 * y),),
        domain=(0.1, 4.0),
        bound=bounds.ray,
        value=math.sqrt,
        instructions=8,
        fast="sqrt({0})",
    ),
    # What norms multiply by. It takes a GPU much less time than a quotient by a square root.
    _unary(
        "rsqrt",
        lambda f, y, a: (-0.5 * y * y * y,),
        domain=(0.1, 4.0),
        user=False,
        value=lambda a: 1 / math.sqrt(a),
        instructions=16,
        fast="rsqrt({0})",
    ),
    _unary("abs", lambda f, y, a: (f.sign(a),), kinks=(0.0,), bound=bounds.ray, value=abs, instructions=1, ulps=_EXACT),
    _unary("sin", lambda f, y, a: (f.cos(a),), bound=bounds.signed, value=math.sin),
    _unary("cos", lambda f, y, a: (-f.sin(a),), bound=bounds.signed, value=math.cos),
    _unary("erf", lambda f, y, a: (1.1283791670955126 * f.exp(-a * a),), user=False, bound=bounds.signed),
    _unary(
        "softplus",
        # Above the threshold 20 torch returns the argument itself.
        lambda f, y, a: (f.where(f.gt(a, 20), 1, f.sigmoid(a)),),
        "torch.nn.functional.softplus({0})",
        bound=bounds.ray,
        fast="softplus({0})",
    ),
    _unary(
        "logsigmoid",
        lambda f, y, a: (f.sigmoid(-a),),
        "torch.nn.functional.logsigmoid({0})",
        bound=lambda a: Bound(above=True, not_positive=True),
        fast="logsigmoid({0})",
    ),
    _unary(
        "silu",
        lambda f, y, a: (f.sigmoid(a) * (1 + a * (1 - f.sigmoid(a))),),
        "torch.nn.functional.silu({0})",
        bound=bounds.from_below,
        ulps=(3, 4),  # float: a product of two rounded factors
    ),
    _unary(
        "gelu",
        lambda f, y, a: (0.5 * (1 + f.erf(0.7071067811865476 * a)) + 0.3989422804014327 * a * f.exp(-0.5 * a * a),),
        "torch.nn.functional.gelu({0})",
        bound=bounds.from_below,
    ),
    _unary(
        "hardsigmoid",
        lambda f, y, a: (f.where(f.gt(a, -3) * f.lt(a, 3), 1 / 6, 0),),
        # torch's own hardsigmoid multiplies its gradient by a sixth in float32, in float64 too.
        "(torch.nn.functional.relu6({0} + 3) / 6)",
        kinks=(-3.0, 3.0),
        domain=(-5.0, 5.0),
        bound=bounds.unit,
        clamps=(0,),
    ),
    _unary(
        "hardtanh",
        lambda f, y, a: (f.where(f.gt(a, -1) * f.lt(a, 1), 1, 0),),
        "torch.nn.functional.hardtanh({0})",
        kinks=(-1.0, 1.0),
        bound=bounds.signed,
        clamps=(0,),
        ulps=_EXACT,
    ),
    _unary(
        "elu",
        lambda f, y, a: (f.where(f.gt(a, 0), 1, y + 1),),
        "torch.nn.functional.elu({0})",
        kinks=(0.0,),
        in_loop=False,
    ),
    _unary(
        "leakyrelu",
        lambda f, y, a: (f.where(f.gt(a, 0), 1, 0.01),),
        "torch.nn.functional.leaky_relu({0})",
        kinks=(0.0,),
        in_loop=False,
        ulps=_EXACT,
    ),
    Operator(
        "max",
        2,
        lambda f, y, a, b: (
            f.where(f.lt(a, b), 0, f.where(f.eq(a, b), 0.5, 1)),
            f.where(f.lt(b, a), 0, f.where(f.eq(a, b), 0.5, 1)),
        ),
        "max({0}, {1})",
        "f.max({0}, {1})",
        ties=True,
        bound=bounds.largest,
        value=max,
        clamps=(0, 1),
        instructions=1,
        ulps=_EXACT,
    ),
    Operator(
        "min",
        2,
        lambda f, y, a, b: (
            f.where(f.gt(a, b), 0, f.where(f.eq(a, b), 0.5, 1)),
            f.where(f.gt(b, a), 0, f.where(f.eq(a, b), 0.5, 1)),
        ),
        "min({0}, {1})",
        "f.min({0}, {1})",
        ties=True,
        bound=bounds.smallest,
        value=min,
        clamps=(0, 1),
        instructions=1,
        ulps=_EXACT,
    ),
    Operator(
        "logaddexp",
        2,
        lambda f, y, a, b: (f.sigmoid(a - b), f.sigmoid(b - a)),
        "logaddexp({0}, {1})",
        "f.logaddexp({0}, {1})",
    ),
    Operator(
        "clamp",
        3,
        # Where the bounds are the wrong way round, the value is the upper one.
        lambda f, y, a, low, high: (
            f.where(f.ge(a, low) * f.le(a, high), 1, 0),
            f.where(f.lt(low, high) * f.lt(a, low), 1, 0),
            f.where(f.ge(high, low) * f.le(a, high), 0, 1),
        ),
        "clamp({0}, {1}, {2})",
        "f.clamp({0}, {1}, {2})",
        ties=True,
        bound=bounds.between,
        clamps=(0,),
        ulps=_EXACT,
    ),
    Operator(
        "mod",
        2,
        lambda f, y, a, b: (1, -(a - y) / b),
        "remainder({0}, {1})",
        "f.mod({0}, {1})",
        domain=(0.5, 3.0),
        in_loop=False,
        value=lambda a, b: a % b,  # of the divisor's sign, as torch's
        ulps=_EXACT,
    ),
    # Step functions: their derivative is 0 unless `grad=` names another.
    _step("sign", bound=bounds.signed),
    _step("heaviside", "f.heaviside({0})", meaning="`heaviside(v)` is 1 where v > 0, else 0", bound=bounds.unit),
    _step("floor", period=1.0, bound=bounds.same),
    _step("round", kinks=(0.5,), period=1.0, bound=bounds.same),
    *surrogates.ROWS,
    Operator(
        "detach",
        1,
        _zero,
        "{0}",
        "{0}.detach()",
        smooth=False,
        bound=bounds.same,
        clamps=(0,),
        instructions=0,
        ulps=_EXACT,
    ),
    # The machine epsilon of the compute dtype (rmsnorm's default eps); its argument only gives the dtype.
    Operator("epsilon", 1, _zero, "epsilon({0})", "f.epsilon({0})", user=False, smooth=False),
)

# These work on whole matrices. `norm` also takes the number of heads: see `Emitter` and the reference.
_OF_MATRICES = (
    _whole("transpose", 1, "{0}.transpose(-1, -2)"),
    _whole("matmul", 2, "({0} @ {1})"),
    _whole("eye", 1, "m.eye_like({0})"),
    _whole("tril", 1, "torch.tril({0})"),
    _whole("triu", 1, "torch.triu({0})"),
    _whole("expm", 1, "m.expm({0})"),
    _whole("inv", 1, "m.inv({0})"),
    _whole("cayley", 1, "m.cayley({0})"),
    _whole("softmax_rows", 1, "torch.softmax({0}, -1)"),
    _whole("softmax_columns", 1, "torch.softmax({0}, -2)"),
    _whole("normalize_rows", 1, "m.normalize({0}, -1)"),
    _whole("normalize_columns", 1, "m.normalize({0}, -2)"),
    _whole("cumsum_rows", 1, "torch.cumsum({0}, -1)"),
    _whole("cumsum_columns", 1, "torch.cumsum({0}, -2)"),
    # The second argument says by how many places; the third, of a shift, is what comes in.
    _whole("roll_rows", 2, "m.roll({0}, {1}, -1)"),
    _whole("roll_columns", 2, "m.roll({0}, {1}, -2)"),
    _whole("shift_rows", 3, "m.shift({0}, {1}, {2}, -1)"),
    _whole("shift_columns", 3, "m.shift({0}, {1}, {2}, -2)"),
    _whole("norm", 1, "m.norm({0})"),
    _whole("diag", 1, "torch.diag_embed({0})"),
    # A matrix as one that changes with the step is laid out.
    _whole("entries", 1, "{0}.flatten()"),
    # diag(v) @ M and M @ diag(v).
    _whole("scale_rows", 2, "({0}.unsqueeze(-1) * {1})"),
    _whole("scale_columns", 2, "({0} * {1}.unsqueeze(-2))"),
)

OPERATORS: dict[str, Operator] = {row.name: row for row in (*_ROWS, *_OF_MATRICES)}
OF_MATRICES = frozenset(row.name for row in _OF_MATRICES)
# What takes `grad=`.
STEPS = tuple(row.name for row in _ROWS if row.step)
