"""How far back `[t-k]` may reach: states less far than inputs, because kernels carry every step of a state."""

from __future__ import annotations

import pytest

from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from tests.compiling import front


def _check(term: str) -> None:
    lines = ("cell Echo", "state h", "u = W@x", f"h[t] = tanh(u + V@{term} + R@h[t-1])", "weights V: matrix")
    front(Source("echo.rnn", "\n".join((*lines, ""))))


@pytest.mark.parametrize("term", ["h[t-64]", "u[t-64]", "x[t-65]", "x[t-1024]"])
def test_within_the_limit(term: str) -> None:
    _check(term)


@pytest.mark.parametrize(
    ("term", "most"), [("h[t-65]", "64"), ("h[t-300]", "64"), ("u[t-65]", "64"), ("x[t-1025]", "1,024")]
)
def test_beyond_the_limit(term: str, most: str) -> None:
    with pytest.raises(RnnccError) as raised:
        _check(term)
    (found,) = raised.value.diagnostics
    assert found.code == "RNN221" and f"'{term}' reaches back more than {most} steps" in found.message
