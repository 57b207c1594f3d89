"""What the host does around a loop: few of torch's operations, and nothing that a later call would find."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import rnncc


class Names(TorchDispatchMode):
    """The operations that are called, by their names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(op).split("::")[-1].split(".")[-2])
        return op(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> list[str]:
    seen = Names()
    with seen:
        run()
    return seen.names


def total(output: Any) -> Tensor:
    while isinstance(output, tuple):
        output = output[0]
    return output.sum()  # type: ignore[no-any-return]


def test_a_single_step_is_a_product_and_a_loop() -> None:
    step, x = rnncc.load("lstm").LSTMCell(3, 4), torch.randn(2, 3)
    states = (torch.zeros(2, 4), torch.zeros(2, 4))
    with torch.no_grad():
        assert operations(lambda: step(x, states)) == ["unsqueeze", "linear", "lstm_0_forward"]
        # The initial values of both states are the same zeros.
        assert operations(lambda: step(x)) == ["unsqueeze", "new_full", "linear", "lstm_0_forward"]


def test_a_layer_copies_its_final_states_alone() -> None:
    layer, x = rnncc.load("lstm").LSTM(3, 4), torch.randn(5, 2, 3)
    states = (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    with torch.no_grad():
        assert operations(lambda: layer(x, states)) == [
            "squeeze", "squeeze", "linear", "lstm_0_forward", "stack", "stack",
        ]  # fmt: skip
        both = rnncc.load("lstm").LSTM(3, 4, 3, bidirectional=True)
        assert operations(lambda: both(x)).count("new_full") == 1


def test_the_backward_of_a_step_is_one_op_or_two() -> None:
    step, x = rnncc.load("lstm").LSTMCell(3, 4), torch.randn(2, 3)
    states = tuple(torch.zeros(2, 4, requires_grad=True) for _ in range(2))
    for way, expected in (
        (nullcontext(), ["lstm_0_whole_backward"]),
        (Names(), ["lstm_0_backward", "linear_backward"]),
    ):
        with way:  # a mode sees the long way
            loss = total(step(x, states))
        found = operations(lambda: torch.autograd.grad(loss, [*step.parameters(), *states]))  # noqa: B023
        own = [name for name in found if name not in ("ones_like", "expand", "detach")]
        assert own == expected, found


@pytest.mark.parametrize("single", [False, True])
def test_parameters_may_be_other_ones_at_every_call(single: bool) -> None:
    """Sizes are kept between calls, parameters never."""
    cells = rnncc.load("lstm")
    module: Any = cells.LSTMCell(3, 4) if single else cells.LSTM(3, 4)
    name = "weight_hh" if single else "weight_hh_l0"
    x = torch.randn(2, 3) if single else torch.randn(5, 2, 3)
    states = tuple(torch.randn((2, 4) if single else (1, 2, 4)) for _ in range(2))
    before = total(module(x, states))
    doubled = copy.deepcopy(module)
    with torch.no_grad():
        getattr(doubled, name).mul_(2)
    expected = total(doubled(x, states))
    assert not torch.equal(before, expected)

    class Double(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(module, name, Double())
    assert torch.equal(total(module(x, states)), expected)
    parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    assert torch.equal(total(module(x, states)), before)
    setattr(module, name, torch.nn.Parameter(2 * getattr(module, name)))
    assert torch.equal(total(module(x, states)), expected)
    assert total(module.double()(x.double(), tuple(s.double() for s in states))).dtype == torch.float64


def test_a_parametrization_is_asked_once_a_call() -> None:
    """It may change something when it is asked, as spectral_norm does."""

    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            self.calls += 1
            return weight

    for module, x in ((rnncc.load("lstm").LSTM(3, 4), torch.randn(5, 2, 3)),
                      (rnncc.load("lstm").LSTMCell(3, 4), torch.randn(2, 3))):  # fmt: skip
        for name in list(dict(module.named_parameters())):
            counting = Counting()
            parametrize.register_parametrization(module, name, counting)
            before = counting.calls
            module(x)
            assert counting.calls == before + 1


@pytest.mark.parametrize("steps", [0, 3])
def test_states_are_tensors_of_their_own(steps: int) -> None:
    """Writing into one changes no other, though all began with the same zeros, nor what was given."""
    layer, x = rnncc.load("lstm").LSTM(3, 4), torch.randn(steps, 2, 3)
    given = (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    for hx in (None, given):
        kept = copy.deepcopy(given)
        with torch.no_grad():
            output, (h, c) = layer(x, hx)
            expected = c.clone(), output.clone()
            h.fill_(7)
        assert torch.equal(c, expected[0]) and torch.equal(output, expected[1])
        assert all(map(torch.equal, given, kept))
        # As between the chunks of a long sequence.
        for state in layer(x, hx)[1]:
            assert not state.detach_().requires_grad


def test_the_op_by_its_name_is_what_a_layer_calls() -> None:
    """Eager code goes past the dispatcher's autograd: the same numbers and the same gradients."""
    layer = rnncc.load("lstm").LSTM(3, 4)
    kernels, _ = layer._choose(torch.zeros(1))
    stream = torch.randn(5, 2, 16, requires_grad=True)
    states = [torch.randn(2, 4, requires_grad=True) for _ in range(2)]
    given: Any = ([stream], [layer.weight_hh_l0], states, None, 0, None, None, [], [3, 4], 1, [False])
    given += ([0, 1], True, False)
    found = []
    for call in (kernels.ops["lstm_0"], kernels.calls["lstm_0"]):
        sequences, finals, _ = call(*given)
        values = [*sequences, *finals]
        weighted = [(k + 1) * value.square().sum() for k, value in enumerate(values)]
        found.append([*values, *torch.autograd.grad(sum(weighted), [stream, layer.weight_hh_l0, *states])])
    assert all(map(torch.equal, *found))


def test_the_benchmark_measures_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    host = import_module("host")
    forward, both = host.compare(host.CASES[0], "cpu", 0.0)
    assert (forward["backward"], both["backward"]) == (False, True)
    for row in (forward, both):
        assert row["ratio"] > 0 and all(0 < row["least_us"][who] <= row["median_us"][who] for who in ("rnncc", "nn"))
