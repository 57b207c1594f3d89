"""What can be told of widths: which belong to inputs alone, what several make together, and one way to write each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rnncc.ir import dim as dims
from rnncc.ir.dim import HEADS, ONE, Dim, FloorDiv


def is_of_inputs(width: Dim, input_dims: frozenset[str]) -> bool:
    """Whether inputs alone have this width: it is not laid out by heads."""
    found = dims.names(width)
    return bool(found) and found <= input_dims


def is_narrow(width: Dim) -> bool:
    """One number, or one per head: it broadcasts over wider values."""
    return width in (ONE, HEADS)


def reduced(width: Dim, input_dims: frozenset[str]) -> Dim:
    """The width of a sum or mean: one number per head, or one number where inputs alone have that width."""
    return ONE if width == ONE or is_of_inputs(width, input_dims) else HEADS


def joint(widths: Sequence[Dim], input_dims: frozenset[str]) -> Dim:
    """The width of an elementwise result. The wide operands must be equally wide, where I == H say: the result has the
    width of one with heads, if there is one."""
    wide = [width for width in widths if not is_narrow(width)]
    if not wide:
        return HEADS if HEADS in widths else ONE
    return next((width for width in wide if not is_of_inputs(width, input_dims)), wide[0])


def canonical(width: Dim, solved: Mapping[str, Dim], divisible: Collection[tuple[Dim, Dim]]) -> Dim:
    """The width in the sizes that are left, H for 4*K where K is solved as H//4, and in the names of quotients."""
    return by_quotients(divided(dims.substitute(width, solved), divisible), solved)


def divided(width: Dim, divisible: Collection[tuple[Dim, Dim]]) -> Dim:
    """The width with `4*(H//4)` written H where 4 is known to divide H: (H, 4) is among `divisible`."""
    if not any(isinstance(atom, FloorDiv) for atoms, _ in width.terms for atom in atoms):
        return width
    total = dims.constant(0)
    for atoms, coefficient in width.terms:
        term = Dim(((atoms, coefficient),))
        for atom in atoms:
            if isinstance(atom, FloorDiv) and (atom.numerator, atom.denominator) in divisible:
                divisor = dims.as_int(atom.denominator) or 1
                if len(atoms) == 1 and coefficient % divisor == 0:
                    term = dims.scale(atom.numerator, coefficient // divisor)
        total = dims.add(total, term)
    return total


def by_quotients(width: Dim, solved: Mapping[str, Dim]) -> Dim:
    """The width with sizes that were solved by a division under their own names: K, not H//4."""
    names = {value.terms[0][0][0]: name for name, value in solved.items() if _is_quotient(value)}
    if not names:
        return width
    total = dims.constant(0)
    for atoms, coefficient in width.terms:
        term = dims.constant(coefficient)
        for atom in atoms:
            factor = dims.named(names[atom]) if atom in names else Dim((((atom,), 1),))
            term = dims.multiply(term, factor)
        total = dims.add(total, term)
    return total


def _is_quotient(width: Dim) -> bool:
    match width.terms:
        case (((FloorDiv(),), 1),):
            return True
        case _:
            return False
