"""Warnings of `check`: each where it belongs, none where it does not."""

from __future__ import annotations

import pytest

from rnncc.language.diagnostics import Severity
from tests.stages.checking import ELMAN, body, codes, diagnose


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("state h", ELMAN), []),
        (("state h", "z = W@x", ELMAN), ["RNN251"]),
        (("state h", "y = W@x", "z = y*2", ELMAN), ["RNN251", "RNN251"]),
        (("state h", "param k: scalar", "weights p: vector", "const c = 1", "dim P = 2", ELMAN), ["RNN252"] * 4),
        (("state h", "local q: 3", ELMAN), ["RNN252"]),
        (("dim P", "state h, p: P", "p[t] = R@h[t-1]", "h[t] = tanh(W@x + R@p[t])"), ["RNN271"]),
        (("input x, gap: 1", "state h", ELMAN), ["RNN253"]),
        (("state h", "h[t] = tanh(R@h[t-1] + b)"), ["RNN253"]),
        (("state h", "h[t] = tanh(W@x[t-1] + R@h[t-1])"), []),
        (("state h", "u = W@x", "h[t] = tanh(u[t-1] + R@h[t-1])"), []),
        (("state h", "u = W@x", "h[t] = tanh(W@x + R@h[t-1])", "z = u[t-1]"), ["RNN251", "RNN251"]),
        (("state h, c", ELMAN, "c[t] = h[t] + c[t-1]"), ["RNN254"]),
        (("state h, c", "h[t] = tanh(W@x + c[t-1])", "c[t] = h[t] + c[t-1]"), []),
        (("state h", "output y", ELMAN, "y = W@x"), ["RNN255"]),
        (("state h", "g = max(log(0), 2)", "k = -log(-1)*2", "h[t] = tanh(W@x + R@h[t-1] + g + k)"), ["RNN263"] * 2),
        (("state h", "g = 2*sqrt(2) - exp(1)", "h[t] = tanh(W@x + R@h[t-1] + g - inf/2 + 0*inf)"), []),
        (("state h", "const z = 0", "h[t] = tanh(W@x + R@h[t-1] + 1/z)"), []),
        (("state h", "h[t] = heaviside(W@x + h[t-1])"), ["RNN261"]),
        (("state h", "h[t] = heaviside(W@x + h[t-1], grad=atan(2))"), []),
        (("state h", "buffer s: vector = normal(0, 1)", "h[t] = tanh(W@x + sign(2*s)*h[t-1])"), []),
        (("state h", "param s: vector = normal(0, 1)", "h[t] = tanh(W@x + sign(2*s)*h[t-1])"), ["RNN261"]),
        (("state h", "buffer s: vector = 1", "h[t] = tanh(sign(s*(W@x)) + h[t-1])"), ["RNN261"]),
        (("state h", "weights R: diag", ELMAN), ["RNN273"]),
    ],
)  # fmt: skip
def test_findings(lines: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(codes(*lines)) == expected


def test_a_missing_bias_is_found_for_who_asks() -> None:
    _, found = diagnose(body("state h", "i = W@x", "h[t] = tanh(i + R@h[t-1] + b)"))
    assert [(each.code, each.severity) for each in found] == [("RNN258", Severity.WARNING)]
