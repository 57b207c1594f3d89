"""Static loops of many rounds: the generated code calls its functions, and the stages take steps in proportion to the
rounds. Results and gradients are compared with a loop in torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import rnncc
from rnncc.analysis.functions import MOST_COPIES, functions_of
from rnncc.ir.request import Request
from rnncc.ir.step import TileStage
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.stages.render.programs import named_programs
from tests.compiling import lowered
from tests.packages import float64_package
from tests.rendering import for_cpus

ROUNDS = 40


def text_of(rounds: int) -> str:
    return f"""cell Turns
state h, c
i, f = sigmoid(W@x + R@h[t-1] + b)
v[0] = W@x + b
for m in 1..{rounds}:
    u[m] = sigmoid(v[m-1] - 0.2*h[t-1])
    v[m] = tanh(0.9*v[m-1] + 0.1*u[m]*c[t-1])
c[t] = f*c[t-1] + i*v[{rounds}]
h[t] = tanh(c[t]) + 0.1*v[{rounds // 2}]
"""


def turns(p: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f = (torch.sigmoid(x @ p[f"W_{g}"].T + h @ p[f"R_{g}"][0].T + p[f"b_{g}"]) for g in "if")
    v = [x @ p["W_v_0"].T + p["b_v_0"]]
    for _ in range(ROUNDS):
        v.append(torch.tanh(0.9 * v[-1] + 0.1 * torch.sigmoid(v[-1] - 0.2 * h) * c))
    c = f * c + i * v[ROUNDS]
    return torch.tanh(c) + 0.1 * v[ROUNDS // 2], c


# Each function that generated code may call, more than once: together they are more than it has copies of.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp(-Y*Y)": lambda v: (-v * v).exp(),
    "log(1.5 + Y*Y)": lambda v: (1.5 + v * v).log(),
    "log1p(Y*Y)": lambda v: (v * v).log1p(),
    "sin(Y)": torch.sin,
    "cos(Y)": torch.cos,
    "tanh(Y)": torch.tanh,
    "sigmoid(Y)": torch.sigmoid,
    "softplus(Y)": F.softplus,
    "logsigmoid(Y)": F.logsigmoid,
    "silu(Y)": F.silu,
    "gelu(Y)": F.gelu,
    "hardsigmoid(Y)": F.hardsigmoid,
    "hardtanh(2*Y)": lambda v: F.hardtanh(2 * v),
    "clamp(Y, -0.3, 0.4)": lambda v: v.clamp(-0.3, 0.4),
    "logaddexp(Y, 0.3*Y)": lambda v: torch.logaddexp(v, 0.3 * v),
    "(1.5 + Y*Y)**1.3": lambda v: (1.5 + v * v) ** 1.3,
    "Y*sign(Y - 0.1)": lambda v: v * (v - 0.1).sign(),
    "Y*heaviside(Y + 0.1)": lambda v: v * (v > -0.1),
    "Y*floor(3*Y)": lambda v: v * (3 * v).floor(),
    "Y*round(3*Y)": lambda v: v * (3 * v).round(),
}
EACH = "cell Each\nstate h\nv0 = W@x + R@h[t-1] + b\n" + "".join(
    f"v{n} = 0.5*v{n - 1} + 0.4*({function.replace('Y', f'v{n - 1}')})\n"
    for n, function in enumerate([*FUNCTIONS, *FUNCTIONS], 1)
)
EACH += f"h[t] = tanh(v{2 * len(FUNCTIONS)})\n"


def each(p: dict[str, Tensor], x: Tensor, h: Tensor) -> tuple[Tensor]:
    v = x @ p["W_v0"].T + h @ p["R_v0"][0].T + p["b_v0"]
    for function in [*FUNCTIONS.values(), *FUNCTIONS.values()]:
        v = 0.5 * v + 0.4 * function(v)
    return (torch.tanh(v),)


CELLS: dict[str, tuple[str, Callable[..., tuple[Tensor, ...]], int]] = {
    "Turns": (text_of(ROUNDS), turns, 2),
    "Each": (EACH, each, 1),
}


@pytest.mark.parametrize("name", CELLS)
def test_programs_of_many_functions_call_them(name: str) -> None:
    plan = lowered(Source("long.rnn", CELLS[name][0]))
    for named in named_programs(plan):
        stages = [stage for stage in named.program.stages if isinstance(stage, TileStage)]
        count = len([*functions_of(each.expr for stage in stages for each in stage.statements)])
        assert count > MOST_COPIES
    text = next(file.text for file in for_cpus([plan]).files if file.path.endswith("_functions.h"))
    body = [line for line in text.splitlines() if "const rnncc::Vec<T>" in line]
    for function in ("tanh", "sigmoid") if name == "Turns" else ("exp", "log", "gelu", "logaddexp", "clamp", "pow"):
        assert not any(f"rnncc::{function}(" in line for line in body)
        assert any(f"called__::{function}(" in line for line in body)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("hidden", [1, 19])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", CELLS)
def test_against_a_loop_in_torch(name: str, steps: int, hidden: int) -> None:
    """In whole vectors and in parts of one, with and without lengths, all gradients."""
    text, step, count = CELLS[name]
    torch.manual_seed(0)
    layer: Any = getattr(float64_package(text), name)(3, hidden, dtype=torch.float64)
    x = torch.randn(steps, 4, 3, dtype=torch.float64)
    lengths = torch.tensor([1, steps, (steps + 1) // 2, steps])
    initial = [0.5 * torch.randn(4, hidden, dtype=torch.float64) for _ in range(count)]
    weights = torch.randn(steps, 4, hidden, dtype=torch.float64)

    def loop(x: Tensor, *states: Tensor, masked: bool) -> Tensor:
        made = []
        p = dict(layer.gate_parameters())
        for t in range(steps):
            new = step(p, x[t], *states)
            is_active = (t < lengths)[:, None] if masked else torch.ones(4, 1, dtype=torch.bool)
            states = tuple(torch.where(is_active, a, b) for a, b in zip(new, states, strict=True))
            made.append(torch.where(is_active, states[0], 0))
        return torch.stack(made)

    for masked in (False, True):
        results = []
        for own in (True, False):
            given = [each.clone().requires_grad_() for each in (x, *initial)]
            if own:
                states = [state[None] for state in given[1:]]
                hx = tuple(states) if count > 1 else states[0]
                output = layer(given[0], hx, **({"lengths": lengths} if masked else {}))[0]
            else:
                output = loop(*given, masked=masked)
            wanted = (*given, *layer.parameters())
            gradients = torch.autograd.grad((output * weights).sum(), wanted, allow_unused=True, materialize_grads=True)
            results.append((output, *gradients))
        for own_value, expected in zip(*results, strict=True):
            torch.testing.assert_close(own_value, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.long
def test_stages_take_steps_in_proportion_to_the_rounds() -> None:
    """Twice the rounds take at most twice the lines of rnncc's own code that are run."""

    def lines(rounds: int) -> int:
        count = 0
        package = str(Path(rnncc.__file__).parent)

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace if frame.f_code.co_filename.startswith(package) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            compile_cells(Request(Source("long.rnn", text_of(rounds)), "long"))
        finally:
            sys.settrace(before)
        return count

    lines(2)  # what is read or computed once
    assert lines(60) <= 2 * lines(30)
