"""A mask that is denser than the cell says: the op is told, so that dense kernels run."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn.utils import prune

import rnncc
from rnncc.ir.structure import DENSER
from tests.runtime.test_sparsity import DENSE, PLANNED, SPARSE, layer_of, planned_layer, x


def told(layer: Any) -> list[int]:
    """What the op of each layer and direction is told."""
    layer(x.repeat(1, 1, layer.input_size // 6))
    return [sizes[DENSER] for sizes in layer._sizes]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Planned. the mask")
def test_kernels_are_told_of_a_mask_that_is_denser_than_planned() -> None:
    """Whoever changes it, and how."""
    layer = planned_layer()
    assert told(layer) == [1]  # the mask has every element before it is set
    layer.set_mask("R", SPARSE)
    assert told(layer) == [0] and told(copy.deepcopy(layer)) == told(pickle.loads(pickle.dumps(layer))) == [0]
    layer.set_mask("R", DENSE)
    assert told(layer) == [1] and told(copy.deepcopy(layer)) == [1]
    layer.weight_hh_mask_l0.copy_(SPARSE)
    assert told(layer) == [0]
    layer.load_state_dict(planned_layer().state_dict())
    assert told(layer) == [1]
    prune.custom_from_mask(layer, "weight_hh_l0", SPARSE)  # type: ignore[no-untyped-call]
    assert told(layer) == [0]
    layer.reset_parameters()
    assert told(layer_of()) == told(layer_of().sparsify("R")) == [0]
    both = planned_layer(num_layers=2, bidirectional=True)
    for number, reverse in ((0, False), (0, True), (1, False)):
        both.set_mask("R", SPARSE, number, reverse=reverse)
    # Directions run together.
    assert told(both) == [0, 0, 1, 1]


def test_a_look_at_masks_is_only_for_masks_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look, the host waits for the GPU."""
    layer = planned_layer()
    layer.set_mask("R", SPARSE)
    told(layer)
    looks: list[str] = []
    monkeypatch.setattr(type(layer), "_look_at_density", lambda self, parameter, *rest: looks.append(parameter.name))
    told(layer)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    told(layer)
    assert looks == []
    layer.weight_hh_mask_l0.logical_and_(SPARSE)
    told(layer)
    assert looks == ["R"]


@pytest.mark.filterwarnings("ignore:Planned. the mask")
def test_a_compiled_call_is_told_too() -> None:
    layer = planned_layer()
    layer.set_mask("R", SPARSE)
    torch._dynamo.reset()
    seen: list[list[int]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        (loop,) = (node for node in graph.graph.nodes if str(node.target).endswith("planned_0_forward"))
        seen.append(next(arg for arg in loop.args if isinstance(arg, list) and arg[:2] == [6, 8]))
        return graph

    run: Any = torch.compile(layer, backend=backend, fullgraph=True)
    assert torch.equal(run(x)[0], layer(x)[0])
    layer.set_mask("R", DENSE)
    assert torch.equal(run(x)[0], layer(x)[0])
    assert seen == [[6, 8, 0], [6, 8, 1]]


def test_masks_that_are_drawn_anew_are_as_planned() -> None:
    """The host knows that without a look, and so does a call that is compiled next."""
    layer = rnncc.compile(PLANNED.replace("mask(", "sparse("), "drawn").Planned(6, 8, dtype=torch.float64)
    with pytest.warns(UserWarning, match="the mask of weight_hh_l0 has 100.0%"):
        layer.set_mask("R", DENSE)
    assert layer._sizes[0][DENSER] == 1
    layer.reset_parameters()
    assert layer._sizes[0][DENSER] == 0


def test_a_layer_that_was_made_of_one_that_warned_may_warn() -> None:
    layer = planned_layer()
    with pytest.warns(UserWarning, match="has 100.0% of the elements"):
        layer.set_mask("R", DENSE)
    layer.set_mask("R", SPARSE)
    made = layer.sparsify("R")
    with pytest.warns(UserWarning, match="has 100.0% of the elements"):
        made.set_mask("R", DENSE)
