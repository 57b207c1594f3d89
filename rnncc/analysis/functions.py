"""Functions that take many instructions, such as `tanh`, and how many of them a loop may hold as code of its own.

A compiler puts a copy of a function wherever an equation applies it, which is the quickest for a few. For hundreds of
copies it takes minutes, since its time grows faster than the code. So a program of many functions calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rnncc.ir.expr import Expr, operators
from rnncc.language.operators import OPERATORS

# An operator of more instructions is a function.
_FEW_INSTRUCTIONS = 10
# A program with more functions calls them. The shipped cells have 13 at most. An LSTM with 10, 40 and 100 times tanh
# in each step (128 units, one thread, AVX-512) takes 1 to 5 % longer with calls. g++ 12 compiles that of 100 in 0.5 s,
# in place of 6.6 s.
MOST_COPIES = 32


def is_function(operator: str) -> bool:
    """Whether an operator takes many instructions."""
    return OPERATORS[operator].instructions > _FEW_INSTRUCTIONS


def functions_of(expressions: Iterable[Expr]) -> Iterator[str]:
    """The operators that are functions, with repetitions."""
    return (operator for expr in expressions for operator in operators(expr) if is_function(operator))
