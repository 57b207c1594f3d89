"""What is said of an operator: the fields of a row of the table in operators.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rnncc.language import bound as bounds
from rnncc.language.bound import Bound

Derivative = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row.

    name        the operator's name in `Apply`; for `user` operators also its name in the language
    arity       number of arguments
    derivative  see operators.py
    cpp         C++ text with `{0}`, `{1}`: an infix form, or a function that `rnncc/cpu/math.h` has for CPUs and
                `rnncc/cuda/math.cuh` for GPUs
    torch       Python text of the same; `f` is `rnncc.runtime.eager.elementwise`, `m` is `rnncc.runtime.eager.matrices`
    meaning     a sentence for docs/language.md, where torch has no such function of that name
    domain      where tests draw each argument from
    kinks       first arguments where the value or the derivative jumps (tests stay away)
    period      the distance at which all kinks repeat, where they do
    ties        whether one of them jumps where the first argument equals another, too
    user        may be written in a `.rnn` file under its name
    in_loop     may stand in a sequential loop
    smooth      False where the derivative is zero or undefined almost everywhere (comparisons, sign, heaviside)
    step        takes `grad=`
    bound       what is certain of the value, from what is certain of the arguments
    value       the value for numbers, if `check` is to know it; ZeroDivisionError, OverflowError and ValueError say
                that it is no finite number
    clamps      positions of arguments. Where one of these alone depends on a state, and is a clamp of an affine map of
                it, so is the value: x ↦ clamp(a*x + b, l, u) is closed under composition, whatever the sign of a
    instructions
                that it takes, roughly, for a vector of elements; functions take dozens
    ulps        the largest error of the C++ function for a CPU, in float and in double, in units of the last place of
                the value; 0 where the value is exactly torch's
    fast        C++ text of the form that GPU kernels take where tensors are 16-bit (device/fast.cuh), or nothing
    """

    name: str
    arity: int
    derivative: Derivative
    cpp: str
    torch: str
    meaning: str = ""
    domain: tuple[float, float] = (-3.0, 3.0)
    kinks: tuple[float, ...] = ()
    period: float = 0.0
    ties: bool = False
    user: bool = True
    in_loop: bool = True
    smooth: bool = True
    step: bool = False
    bound: Callable[..., Bound] = bounds.nothing
    value: Callable[..., float] | None = None
    clamps: tuple[int, ...] = ()
    instructions: int = 30
    ulps: tuple[float, float] = (2, 4)
    fast: str = ""

    @property
    def cheap(self) -> bool:
        """Whether it is cheaper to do again than to hold in a register."""
        return self.instructions <= 2
