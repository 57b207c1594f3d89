"""Norms and softmax as an author writes them out: of a value, or of a number that is spread over the units first."""

from __future__ import annotations

from random import Random

from tests.generated.leaves import Bounded

# Equations of two values by the operand `{v}`, and the bounds of the second.
_FORMS = (
    (("exp({v} - detach(max({v})))", "{a}/sum({a})"), (0.0, 1.0)),
    (("{v} - mean({v})", "{a}/sqrt(mean({a}*{a}) + 0.31)"), (-3.0, 3.0)),
    (("{v} - mean({v})", "{a}*(mean({a}*{a}) + 0.31)**(-0.5)"), (-3.0, 3.0)),
)


def written_out(random: Random, operand: str, name: str) -> tuple[list[str], list[str], Bounded]:
    """Declarations, equations, and the norm."""
    (first, second), (low, high) = random.choice(_FORMS)
    inner = f"{name}in"
    declarations = [f"local {value}: H" for value in (inner, name)]
    equations = [f"{inner} = {first.format(v=operand)}", f"{name} = {second.format(a=inner)}"]
    return declarations, equations, Bounded(name, low, high)
