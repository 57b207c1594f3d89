"""Layers whose weights change between calls, and layers that are frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.utils import swap_tensors

from tests.long import runs_all
from tests.runtime.test_whole import CELLS, flat, make


def double_weight(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.mul_(2)


def writers() -> dict[str, Callable[[Any], None]]:
    def data(module: Any) -> None:
        module.weight_hh_l0.data.mul_(2)

    def optimiser(module: Any) -> None:
        module.weight_hh_l0.grad = -module.weight_hh_l0.detach().clone()
        torch.optim.SGD([module.weight_hh_l0], 1.0).step()

    def state_dict(module: Any) -> None:
        module.load_state_dict(module.state_dict() | {"weight_hh_l0": 2 * module.weight_hh_l0.detach()})

    def process(module: Any) -> None:
        module.weight_hh_l0.data.share_memory_()
        module(torch.randn(1, 2, 3))
        other = processes.get_context("spawn").Process(target=double_weight, args=(module.weight_hh_l0.data,))
        other.start()
        other.join()

    def swapped(module: Any) -> None:
        swap: Callable[..., None] = swap_tensors
        swap(module.weight_hh_l0, torch.nn.Parameter(2 * module.weight_hh_l0.detach()))

    def parametrization(module: Any) -> None:
        class Double(torch.nn.Module):
            def forward(self, weight: Tensor) -> Tensor:
                return 2 * weight

        parametrize.register_parametrization(module, "weight_hh_l0", Double())

    return {
        "data": data,
        "new data": lambda module: setattr(module.weight_hh_l0, "data", 2 * module.weight_hh_l0.data),
        "optimiser": optimiser, "state_dict": state_dict, "another process": process, "swap_tensors": swapped,
        "parametrization": parametrization,
        "another parameter": lambda module: setattr(
            module, "weight_hh_l0", torch.nn.Parameter(2 * module.weight_hh_l0.detach())
        ),
    }  # fmt: skip


@pytest.mark.parametrize("how", list(writers()))
def test_new_weights_count_at_the_next_call(how: str) -> None:
    """However they are written: nothing of them is kept between calls."""
    layer = make("lstm", "LSTM", 3, 40)
    x, hx = torch.randn(1, 2, 3), (torch.randn(1, 2, 40), torch.randn(1, 2, 40))
    doubled = copy.deepcopy(layer)
    double_weight(doubled.weight_hh_l0)
    with torch.no_grad():
        before, expected = layer(x, hx)[0], doubled(x, hx)[0]
        assert not torch.equal(before, expected)
        writers()[how](layer)
        assert torch.equal(layer(x, hx)[0], expected)


def test_functional_parameters_count() -> None:
    layers = [make("lstm", "LSTM", 3, 4) for _ in range(2)]
    x = torch.randn(1, 2, 3)
    expected = [layer(x)[0] for layer in layers]
    own = dict(layers[1].named_parameters())
    assert torch.equal(functional_call(layers[0], own, (x,))[0], expected[1])
    stacked, buffers = stack_module_state(layers)
    found = vmap(lambda each: functional_call(layers[0], (each, buffers), (x,))[0])(stacked)
    assert torch.allclose(found, torch.stack(expected), atol=1e-6)
    assert torch.equal(layers[0](x)[0], expected[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("file", "name"), [*CELLS, ("started", "Started")])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(None, 1, 7), (None, 18, 70), (1, 5, 130), (9, 3, 64)])
def test_frozen_layers_compute_the_same(file: str, name: str, steps: int | None, batch: int, hidden: int) -> None:
    # float64 has files of its own to compile: one cell stands for all.
    for dtype in (torch.float32, torch.float64) if runs_all() or file == "lstm" else (torch.float32,):
        module = make(file, name if steps else f"{name}Cell", 5, hidden, dtype=dtype).eval()
        x = torch.randn(*([steps] if steps else []), batch, 5, dtype=dtype)
        with torch.no_grad():
            expected = flat(module(x))
            assert module.freeze()._frozen is not None
            assert all(map(torch.equal, flat(module(x)), expected))
        assert all(map(torch.equal, flat(module(x)), expected)), "calls with gradients read the parameters"


def test_a_frozen_layer_reads_its_packed_weights() -> None:
    """What goes past the version counters is not seen, as the documents say, until freeze is called again."""
    layer, x = make("lstm", "LSTM", 3, 64).eval().freeze(), torch.randn(1, 2, 3)
    with torch.no_grad():
        before = layer(x)[0]
        layer.weight_ih_l0.data.mul_(2)
        assert torch.equal(layer(x)[0], before)
        after = layer.unfreeze()(x)[0]
        assert not torch.equal(after, before)
        assert torch.equal(layer.freeze()(x)[0], after)


@pytest.mark.parametrize("how", ["optimiser", "state_dict", "swap_tensors", "parametrization", "another parameter",
                                 "in place", "in inference_mode", "new data"])  # fmt: skip
def test_changes_that_a_frozen_layer_sees(how: str) -> None:
    def inference(module: Any) -> None:
        with torch.inference_mode():
            module.weight_hh_l0.mul_(2)

    ways = writers() | {"in place": lambda module: double_weight(module.weight_hh_l0), "in inference_mode": inference}
    layer, x = make("lstm", "LSTM", 3, 64).eval(), torch.randn(1, 2, 3)
    hx = (torch.randn(1, 2, 64), torch.randn(1, 2, 64))
    doubled = copy.deepcopy(layer)
    double_weight(doubled.weight_hh_l0)
    with torch.no_grad():
        layer.freeze()(x, hx)
        ways[how](layer)
        assert torch.equal(layer(x, hx)[0], doubled(x, hx)[0])


def test_what_undoes_freeze() -> None:
    layer = make("lstm", "LSTM", 3, 4)
    with pytest.raises(RuntimeError, match="eval"):
        layer.freeze()
    for undo in (
        layer.train, layer.unfreeze, layer.double, layer.float, lambda: layer.to("cpu"),
        lambda: layer.load_state_dict(layer.state_dict()), lambda: torch.nn.Sequential(layer).train(),
    ):  # fmt: skip
        layer.eval().freeze()
        assert layer._frozen is not None
        assert copy.deepcopy(layer)._frozen is None
        undo()
        assert layer._frozen is None
    assert make("lstm", "LSTM", 3, 4, 2).eval().freeze()._frozen is None, "no op makes a call of two layers"
    with torch.inference_mode():
        made = make("lstm", "LSTM", 3, 4).eval()
    with pytest.raises(RuntimeError, match="inference_mode"):
        made.freeze()
