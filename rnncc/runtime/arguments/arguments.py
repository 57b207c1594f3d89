"""What callers give as numbers, flags and sizes, checked, as Python's own numbers.

Numbers of NumPy and tensors without dimensions are taken for the numbers that they hold. A module keeps Python's, which
every program can read that loads it. Imports no torch: rnncc.load reads constants by it, before torch is there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral, Real
from sys import float_info
from typing import Any


def held(name: str, value: Any) -> Any:
    """The Python number that a scalar of NumPy or a tensor without dimensions holds; anything else as it is. Raises
    TypeError for a tensor that has no number, or that would be trained."""
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    if getattr(value, "is_meta", False):
        raise TypeError(f"{name} is a tensor on the meta device, which holds no number")
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} is a number that is not trained, got a tensor that requires gradients")
    return value.item()


def read_int(name: str, value: Any) -> int:
    """Raises TypeError for what is no whole number."""
    if type(value) is int:
        return value
    number = held(name, value)
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
    return int(number)


def read_size(name: str, value: Any) -> int:
    """Raises TypeError, ValueError for what is no whole number above 0."""
    size = read_int(name, value)
    if size <= 0:
        raise ValueError(f"{name} must be greater than zero")
    return size


def read_flag(name: str, value: Any) -> bool:
    """Raises TypeError for what is neither True nor False."""
    flag = value if type(value) is bool else held(name, value)
    if not isinstance(flag, bool):
        raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")
    return flag


def is_number(value: object) -> bool:
    """Whether it is a real number of Python's."""
    return not isinstance(value, bool) and isinstance(value, Real)


def read_number(name: str, value: Any) -> float:
    """Raises TypeError for what is no real number, ValueError for one beyond float64."""
    number = value if type(value) is float else held(name, value)
    if not is_number(number):
        raise TypeError(f"{name} should be a number, got: {type(value).__name__}")
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{name} is an integer beyond the range of float64") from None


def read_shaping(name: str, value: Any, built: float | int | str) -> Any:
    """A constant that shapes the program, which was built with `built`. Raises TypeError where that is a number and the
    value is neither a number nor a name; True is no number, although it equals 1."""
    value = held(name, value)
    if not isinstance(built, str) and not isinstance(value, str):
        read_number(name, value)
    return value


def read_probability(name: str, value: Any) -> float:
    """Raises ValueError for what is no number from 0 to 1."""
    number = value if type(value) is float else held(name, value)
    if not is_number(number) or not 0 <= number <= 1:
        raise ValueError(
            f"{name} should be a number in range [0, 1] representing the probability of an element being zeroed"
        )
    return float(number)


def read_clip(value: Any) -> float | None:
    """A `recurrent_gradient_clip`. Raises TypeError, ValueError for what is none."""
    if value is None:
        return None
    name = "recurrent_gradient_clip"
    number = held(name, value)
    if not is_number(number):
        raise TypeError(f"{name} should be a number or None, got: {type(value).__name__}")
    if isinstance(number, int) and number > float_info.max:
        raise ValueError(f"{name} is a whole number that is too large for a float; None is off")
    if not number >= 0:
        raise ValueError(f"{name} should not be negative, nor NaN, got: {number}")
    return number if isinstance(number, int) else float(number)


def read_backend(value: Any) -> str | None:
    """Raises ValueError for what is no backend."""
    if value not in (None, "cpu", "cuda", "reference"):
        raise ValueError(f"backend must be None, 'cpu', 'cuda' or 'reference', got {value!r}")
    return value  # type: ignore[no-any-return]


def unexpected(owner: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that `owner` does not take: with the one that was meant, or with all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names)}"
    return TypeError(f"{owner} got an unexpected keyword argument {name!r}; {hint}")
