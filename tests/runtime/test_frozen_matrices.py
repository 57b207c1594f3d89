"""Frozen layers whose weights are functions of matrices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrize, prune
from torch.utils import swap_tensors

import rnncc
from tests.runtime.test_whole import flat

WIDTH = 6  # of inputs too: some cells want as many
CELLS = [
    ("exprnn", "ExpRNN"), ("scornn", "ScoRNN"), ("ternarylstm", "TernaryLSTM"), ("rglru", "RGLRU"), ("s6", "S6"),
    ("fastgrnn", "FastGRNN"), ("dalernn", "DaleRNN"), ("griffinblock", "GriffinBlock"),
]  # fmt: skip


def made(file: str, name: str, **options: Any) -> Any:
    """A layer of a shipped cell for inference."""
    return getattr(rnncc.load(file), name)(WIDTH, WIDTH, **options).eval()


@pytest.mark.one_in(24)
@pytest.mark.parametrize(("file", "name"), CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bias": False}, {"bidirectional": True}])
def test_they_compute_the_same(file: str, name: str, options: dict[str, Any]) -> None:
    layer, x = made(file, name, **options), torch.randn(7, 3, WIDTH)
    with torch.no_grad():
        expected = flat(layer(x))
        assert layer.freeze()._frozen is not None
        assert all(map(torch.equal, flat(layer(x)), expected))
        assert all(map(torch.equal, flat(layer(x, lengths=[7, 0, 3])), flat(layer.unfreeze()(x, lengths=[7, 0, 3]))))
    layer.freeze()
    layer(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters()), "gradients reach what is frozen"


def test_a_single_step_keeps_them_too() -> None:
    step, x = made("exprnn", "ExpRNNCell"), torch.randn(3, WIDTH)
    with torch.no_grad():
        state = step(x)
        expected = step(x, state)
        assert torch.equal(step.freeze()(x, state), expected)
        step.A.data.mul_(2)
        assert torch.equal(step(x, state), expected) and not torch.equal(step.unfreeze()(x, state), expected)


def test_they_are_not_computed_again() -> None:
    """What goes past the version counters is not seen, as the documents say, until freeze is called again."""
    layer, x = made("exprnn", "ExpRNN").freeze(), torch.randn(4, 2, WIDTH)
    with torch.no_grad():
        before = layer(x)[0]
        layer.A_l0.data.mul_(3)
        assert torch.equal(layer(x)[0], before)
        after = layer.unfreeze()(x)[0]
        assert not torch.equal(after, before)
        assert torch.equal(layer.freeze()(x)[0], after)


class Tripled(torch.nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 3 * weight


def ways() -> dict[str, Callable[[Any], None]]:
    """What triples A of an ExpRNN."""

    def in_place(layer: Any) -> None:
        with torch.no_grad():
            layer.A_l0.mul_(3)

    def in_inference_mode(layer: Any) -> None:
        with torch.inference_mode():
            layer.A_l0.mul_(3)

    def optimiser(layer: Any) -> None:
        layer.A_l0.grad = -2 * layer.A_l0.detach()
        torch.optim.SGD([layer.A_l0], 1.0).step()

    def swapped(layer: Any) -> None:
        swap: Callable[..., None] = swap_tensors
        swap(layer.A_l0, torch.nn.Parameter(3 * layer.A_l0.detach()))

    return {
        "in place": in_place, "in inference mode": in_inference_mode, "optimiser": optimiser, "swapped": swapped,
        "state dict": lambda layer: layer.load_state_dict(layer.state_dict() | {"A_l0": 3 * layer.A_l0.detach()}),
        "parametrization": lambda layer: parametrize.register_parametrization(layer, "A_l0", Tripled()),
        "new data": lambda layer: setattr(layer.A_l0, "data", 3 * layer.A_l0.data),
        "another": lambda layer: setattr(layer, "A_l0", torch.nn.Parameter(3 * layer.A_l0.detach())),
    }  # fmt: skip


@pytest.mark.parametrize("way", list(ways()))
@pytest.mark.parametrize("layers", [1, 2])
def test_a_change_counts_at_the_next_call(way: str, layers: int) -> None:
    layer, x = made("exprnn", "ExpRNN", num_layers=layers), torch.randn(4, 2, WIDTH)
    expected = copy.deepcopy(layer)
    ways()["in place"](expected)
    with torch.no_grad():
        layer.freeze()(x)
        ways()[way](layer)
        assert torch.equal(layer(x)[0], expected(x)[0])


def test_other_parameters_and_constants_count() -> None:
    layer, other, x = made("exprnn", "ExpRNN").freeze(), made("exprnn", "ExpRNN"), torch.randn(4, 2, WIDTH)
    with torch.no_grad():
        assert torch.equal(functional_call(layer, dict(other.named_parameters()), (x,))[0], other(x)[0])
        unstable = made("antisymmetricrnn", "AntisymmetricRNN").freeze()
        before = unstable(x)[0]
        unstable.constants["gamma"] = 0.5
        assert not torch.equal(unstable(x)[0], before)
        assert torch.equal(unstable(x)[0], unstable.unfreeze()(x)[0])


def test_without_gradients_alone() -> None:
    """With gradients on, the matrices are functions of the parameters, whatever was kept."""
    layer, x = made("exprnn", "ExpRNN").freeze(), torch.randn(4, 2, WIDTH)
    layer(x)[0].pow(2).sum().backward()
    expected = made("exprnn", "ExpRNN")
    expected.load_state_dict(layer.state_dict())
    expected(x)[0].pow(2).sum().backward()
    assert torch.equal(layer.A_l0.grad, expected.A_l0.grad) and layer.A_l0.grad.abs().sum() > 0


def test_a_compiled_layer_reads_the_parameters() -> None:
    layer, x = made("exprnn", "ExpRNN").freeze(), torch.randn(4, 2, WIDTH)
    with torch.no_grad():
        compiled: Any = torch.compile(layer, backend="eager")
        expected = layer(x)[0]
        torch.testing.assert_close(compiled(x)[0], expected)
        layer.A_l0.data.mul_(3)
        torch.testing.assert_close(compiled(x)[0], layer.unfreeze()(x)[0])


def computed_elsewhere() -> dict[str, Callable[[Any], Callable[[], None]]]:
    """Who makes a parameter at each call; each returns what changes it afterwards."""

    def pruned(layer: Any) -> Callable[[], None]:
        half: Callable[..., None] = prune.l1_unstructured
        half(layer, "A_l0", 0.5)
        return lambda: layer.load_state_dict({name: 3 * value for name, value in layer.state_dict().items()})

    def parametrized(layer: Any) -> Callable[[], None]:
        parametrize.register_parametrization(layer, "A_l0", Tripled())
        return lambda: double(layer.parametrizations.A_l0.original)

    def attribute(layer: Any) -> Callable[[], None]:
        weight = layer.A_l0.detach().clone()
        del layer.A_l0
        layer.A_l0 = weight
        return lambda: double(weight)

    return {"prune": pruned, "parametrize": parametrized, "attribute": attribute}


def double(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


@pytest.mark.parametrize("who", list(computed_elsewhere()))
@pytest.mark.parametrize("changed_before", [True, False])
def test_what_something_else_makes_is_not_kept(who: str, changed_before: bool) -> None:
    layer, x = made("exprnn", "ExpRNN"), torch.randn(4, 2, WIDTH)
    change = computed_elsewhere()[who](layer)
    if changed_before:
        change()
    layer.freeze()
    if not changed_before:
        change()
    with torch.no_grad():
        found = layer(x)[0]
        assert torch.equal(found, layer.unfreeze()(x)[0])


def test_memory_that_comes_again_is_other_memory() -> None:
    """An allocator gives the address of what was freed again."""
    layer, x = rnncc.load("exprnn").ExpRNN(256, 256).eval().freeze(), torch.randn(2, 1, 256)
    with torch.no_grad():
        for _ in range(4):
            layer.A_l0.data = layer.A_l0.data * 1.5
            assert torch.equal(layer(x)[0], copy.deepcopy(layer)(x)[0])


def test_tracers_see_the_parameters() -> None:
    layer, x = made("exprnn", "ExpRNN").freeze(), torch.randn(4, 2, WIDTH)
    with torch.no_grad():
        trace: Callable[..., Any] = torch.jit.trace
        traced = trace(layer, (x,))
        double(layer.A_l0)
        torch.testing.assert_close(traced(x)[0], layer(x)[0])


def test_freezing_within_a_transform_keeps_nothing() -> None:
    layers, x = [made("exprnn", "ExpRNN") for _ in range(2)], torch.randn(4, 2, WIDTH)
    stacked, buffers = stack_module_state(layers)

    def run(parameters: Any) -> Any:
        return functional_call(layers[0].freeze(), (parameters, buffers), (x,))[0]

    with torch.no_grad():
        torch.testing.assert_close(vmap(run)(stacked), torch.stack([layer(x)[0] for layer in layers]))
    assert layers[0]._frozen is None
