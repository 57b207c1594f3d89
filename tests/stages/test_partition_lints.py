"""Warnings and notes of `partition`: each where it belongs, none where it does not."""

from __future__ import annotations

import pytest

from rnncc.language.diagnostics import Severity
from tests.shipped import STEMS, cells_and_warnings
from tests.stages.checking import body, codes, diagnose


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("state h", "u = R@x", "h[t] = u + h[t-1]"), ["RNN256"]),
        (("state h", "h[t] = tanh(W@h[t-1] + R_u@x)", "u = R@h[t-1]"), ["RNN251", "RNN256", "RNN257", "RNN262"]),
        (("state h", "h[t] = exp(W@x) + h[t-1]"), []),
        (("state h", "h[t] = exp(W@x)*h[t-1]"), ["RNN259"]),
        (("input r: 1", "state h", "param a: vector", "g = exp(relu(a)*r)", "h[t] = R@(g*h[t-1]) + W@x"), ["RNN259"]),
        (("input r: 1", "state h", "param a: vector", "g = exp(relu(a)*r)", "h[t] = tanh(R@h[t-1] + W@x) + g"), []),
        (("state h", "h[t] = h[t-1]*exp(-softplus(W@x + R@h[t-1]))"), []),
        (("state h", "param a: vector", "h[t] = h[t-1]*exp(a) + W@x"), []),
        (("state h", "const tau = 20", "h[t] = exp(-1/tau)*h[t-1] + W@x"), []),
        (("state h, c", "u = softplus(W@x)", "h[t] = exp(-u)*h[t-1] + c[t-1]", "c[t] = exp(-u)*c[t-1] + W@x"), []),
        (("state h, c", "u = softplus(W@x)", "h[t] = exp(u)*h[t-1] + c[t-1]", "c[t] = exp(-u)*c[t-1]"), ["RNN259"]),
        (("state h", "h[t] = h[t-1]*exp(min(W@x, 1)) + exp(tanh(h[t-1])) + exp(0.5*sigmoid(R@h[t-1]))"), []),
        (("state h", "h[t] = exp(2*relu(h[t-1])) + W@x"), ["RNN259"]),
        (("state h, m", "m[t] = max(m[t-1], W@x)", "h[t] = exp(m[t-1] - m[t])*h[t-1]"), []),
        (("state h, m", "m[t] = max(m[t-1], W@x)", "h[t] = exp(m[t] - m[t-1])*h[t-1]"), ["RNN259"]),
        (("state h", "h[t] = softmax(W@x + R@h[t-1])"), ["RNN272"]),
        (("state h", "h[t] = softmax(2*h[t-1] + W@x)*softmax(h[t-1])"), ["RNN272"]),
        (("state h", "a = R@h[t-1]", "h[t] = exp(a - max(W@x, max(a, 0)))"), []),
        (("state h", "a = R@h[t-1]", "m = logaddexp(a, W@x)", "q = m", "h[t] = exp(a - q)"), []),
        (("state h", "a = R@h[t-1]", "h[t] = exp(min(a, W@x) - a)"), []),
        (("state h", "a = R@h[t-1]", "h[t] = exp(a - min(a, W@x))"), ["RNN259"]),
        (("state h", "a = R@h[t-1]", "h[t] = exp(max(a, W@x) - a)"), ["RNN259"]),
        (("state h", "a = W@x + R@h[t-1]", "h[t] = tanh(a - logsumexp(a))"), ["RNN272"]),
        (("state h", "a = W@x + R@h[t-1]", "h[t] = exp(logsumexp(a) - a)"), ["RNN259", "RNN272"]),
        (("state h", "h[t] = exp(-(W@x + R@h[t-1])**2)"), []),
        (("state h", "h[t] = exp((W@x + R@h[t-1])**2)"), ["RNN259"]),
        (("state h", "h[t] = exp(-(W@x + R@h[t-1])**3)"), ["RNN259"]),
        (("state h", "h[t] = exp(-h[t-1]*h[t-1]) + W@x"), []),
        (("state h", "h[t] = exp(-0.5*softplus(W@x + R@h[t-1]))"), []),
        (("state h", "h[t] = exp(sigmoid(h[t-1])*logsigmoid(W@x + R@h[t-1]))"), []),
        (("state h", "h[t] = exp(tanh(h[t-1])*logsigmoid(W@x + R@h[t-1]))"), ["RNN259"]),
        (("state h", "h[t] = exp(-0.5*logsigmoid(W@x + R@h[t-1]))"), ["RNN259"]),
        (("state h", "h[t] = W@x/h[t-1]"), ["RNN260"]),
        (("state h", "h[t] = W@x/(2*h[t-1])"), ["RNN260"]),
        (("state h", "h[t] = W@x/(1 + h[t-1])"), []),
        (("state h = 1", "h[t] = W@x/h[t-1]"), []),
        (("state h", "r = R@h[t-1]", "h[t] = tanh(W@x + R@r)"), ["RNN271"]),
        (("state h", "h[t] = layernorm(R@h[t-1]) + W@x"), ["RNN272"]),
        (("state h", "h[t] = layernorm(W@x) + R@h[t-1]"), []),
    ],
)  # fmt: skip
def test_findings(lines: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(codes(*lines)) == expected


def test_notes_come_after_warnings() -> None:
    """Also after those of `check`."""
    lines = ("state h", "r = R@h[t-1]", "h[t] = tanh(W@x + R@r)", "z = W@x")
    _, found = diagnose(body(*lines))
    severities = [each.severity for each in found]
    assert severities == sorted(severities, key=[Severity.WARNING, Severity.NOTE].index)
    assert severities[-1] is Severity.NOTE


@pytest.mark.parametrize("stem", STEMS)
def test_no_shipped_cell_has_an_exp_that_overflows(stem: str) -> None:
    """All of them are stabilised as published: a finding would be a false one."""
    for _, warnings in cells_and_warnings(stem):
        assert "RNN259" not in {found.code for found in warnings}
