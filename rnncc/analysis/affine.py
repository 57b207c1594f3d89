"""Affine maps of states, and what operators make of them: the arithmetic of scans.

`classify` finds the class of a segment by it, `lower` the coefficients of a scan's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rnncc.ir.expr import Apply, Const, Expr, Ref, apply

ZERO, ONE = Const(0.0), Const(1.0)


@dataclass(frozen=True, slots=True)
class Affine:
    """`Σ slopes[s] * s[t-1] + offset`; free of states where `slopes` is empty."""

    slopes: tuple[tuple[str, Expr], ...]
    offset: Expr


def free(name: str) -> Affine:
    """A value that no state is in, by its name."""
    return Affine((), Ref(name))


def own(state: str) -> Affine:
    """The state itself."""
    return Affine(((state, ONE),), ZERO)


def in_names(form: Affine, target: str, enter: Callable[[str, Expr], Expr]) -> Affine:
    """The form of `target` with a name for every coefficient that is an operation: what is made of it then shares the
    coefficient, and does not grow with it. `enter` takes a name with its expression and returns what stands for it."""

    def short(suffix: str, expr: Expr) -> Expr:
        # No temporary's name ends so: it would be a group's, which holds no double underscore.
        return enter(f"{target}__{suffix}__", expr) if isinstance(expr, Apply) else expr

    slopes = tuple((state, short(f"slope{i}", slope)) for i, (state, slope) in enumerate(form.slopes))
    return Affine(slopes, short("offset", form.offset))


def form_of(expr: Expr, forms: Mapping[str, Affine | None]) -> Affine | None:
    """The form of an expression over those of names; names without one are free. None where it is not affine."""
    match expr:
        case Const():
            return Affine((), expr)
        case Ref(name):
            return forms.get(name, free(name))
        case Apply(operator, arguments):
            found = [form_of(argument, forms) for argument in arguments]
            affine = [form for form in found if form is not None]
            if len(affine) < len(found):
                return None
            if not any(form.slopes for form in affine):
                return Affine((), Apply(operator, tuple(form.offset for form in affine)))
            return linear(operator, affine)
        case _:
            assert_never(expr)


def linear(operator: str, forms: Sequence[Affine]) -> Affine | None:
    """The result where the operator keeps affine values affine; None where it does not."""
    match operator, forms:
        case "add" | "sub", [a, b]:
            return _pairwise(forms, lambda x, y: fold(operator, x, y))
        case "detach", [a]:
            return a
        case "neg", [a]:
            return _each(a, lambda x: fold("neg", x))
        case "mul", [a, b] if not b.slopes:
            return _each(a, lambda x: fold("mul", x, b.offset))
        case "mul", [a, b] if not a.slopes:
            return _each(b, lambda x: fold("mul", a.offset, x))
        case "div", [a, b] if not b.slopes:
            return _each(a, lambda x: fold("div", x, b.offset))
        case "where", [c, a, b] if not c.slopes:
            return _pairwise([a, b], lambda x, y: x if x == y == ZERO else apply("where", c.offset, x, y))
        case "pow", [a, b] if b.offset == ONE and not b.slopes:
            return a
        case _:
            return None


def _pairwise(forms: Sequence[Affine], make: Callable[[Expr, Expr], Expr]) -> Affine:
    a, b = forms
    left, right = dict(a.slopes), dict(b.slopes)
    slopes = {state: make(left.get(state, ZERO), right.get(state, ZERO)) for state in {**left, **right}}
    return _made(slopes, make(a.offset, b.offset))


def _each(form: Affine, make: Callable[[Expr], Expr]) -> Affine:
    return _made({state: make(slope) for state, slope in form.slopes}, make(form.offset))


def _made(slopes: Mapping[str, Expr], offset: Expr) -> Affine:
    return Affine(tuple((state, slope) for state, slope in slopes.items() if slope != ZERO), offset)


def fold(operator: str, *arguments: Expr) -> Expr:
    """`Apply`, with 0 and 1 folded where a coefficient of nothing or of the state itself brings them in."""
    match operator, arguments:
        case "add", (x, Const(0.0)) | (Const(0.0), x):
            return x
        case "sub", (x, Const(0.0)):
            return x
        case "sub", (Const(0.0), x):
            return fold("neg", x)
        case "mul", (Const(0.0), _) | (_, Const(0.0)):
            return ZERO
        case "mul", (x, Const(1.0)) | (Const(1.0), x):
            return x
        case "mul", (x, Const(-1.0)) | (Const(-1.0), x):
            return fold("neg", x)
        case "div", (Const(0.0), _):
            return ZERO
        case "div", (x, Const(1.0)):
            return x
        case "neg", (Const(value),):
            return Const(-value) if value else ZERO
        case "neg", (Apply("neg", (x,)),):
            return x
        case "add", (x, Apply("neg", (y,))):
            return fold("sub", x, y)
        case "sub", (x, Apply("neg", (y,))):
            return fold("add", x, y)
        case "add", (Const(a), Const(b)):
            return Const(a + b)
        case "sub", (Const(a), Const(b)):
            return Const(a - b)
        case "mul", (Const(a), Const(b)):
            return Const(a * b)
        case _:
            return apply(operator, *arguments)
