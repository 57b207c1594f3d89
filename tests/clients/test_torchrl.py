"""torchrl's LSTMModule and GRUModule: trajectories within a batch, single steps, the ways that it makes layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rnncc.compat.nn import replace
from tests.clients.page import close, example, is_rnncc

pytestmark = pytest.mark.clients
modules = pytest.importorskip("torchrl.modules")
tensordict = pytest.importorskip("tensordict")

KINDS = {"lstm": ("LSTMModule", ("h", "c")), "gru": ("GRUModule", ("h",))}


def made(kind: str, **options: Any) -> tuple[Any, Any, list[Any]]:
    """Their module, the same with our layer, and the keys of results."""
    name, states = KINDS[kind]
    keys = ["y", *(("next", state) for state in states)]
    torch.manual_seed(0)
    theirs = getattr(modules, name)(input_size=4, hidden_size=6, in_keys=["x", *states], out_keys=keys, **options)
    ours = replace(copy.deepcopy(theirs), as_nn=True)
    assert is_rnncc(getattr(ours, kind))
    return theirs, ours, keys


def data(kind: str, layers: int) -> Any:
    """3 rows of 7 steps; in two of them a trajectory begins within."""
    torch.manual_seed(1)
    begins = torch.zeros(3, 7, 1, dtype=torch.bool)
    begins[:, 0] = begins[0, 3] = begins[2, 5] = True
    states = {state: torch.randn(3, 7, layers, 6) for state in KINDS[kind][1]}
    return tensordict.TensorDict({"x": torch.randn(3, 7, 4), "is_init": begins, **states}, [3, 7])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_of_a_batch_and_single_steps(kind: str, layers: int) -> None:
    theirs, ours, keys = made(kind, num_layers=layers)
    batch = data(kind, layers)
    for module in (theirs, ours):
        with modules.set_recurrent_mode(True):
            module(found := batch.clone())
        module.found = [found[key] for key in keys]
        sum(value.square().sum() for value in module.found).backward()
    close(ours.found, theirs.found)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(own.grad, other.grad)
    step = batch[:, 0]
    close([ours(step.clone())[key] for key in keys], [theirs(step.clone())[key] for key in keys])
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_takes_our_layer_and_torchrl_s_own_takes_its_weights(kind: str) -> None:
    theirs, ours, keys = made(kind)
    layer: Any = copy.deepcopy(getattr(ours, kind))
    assert isinstance(layer, nn.RNNBase)
    again = type(theirs)(**{kind: layer}, in_keys=ours.in_keys[:-1], out_keys=keys)
    step = data(kind, 1)[:, 0]
    close([again(step.clone())[key] for key in keys], [theirs(step.clone())[key] for key in keys])
    python = copy.deepcopy(ours).make_python_based()
    assert not is_rnncc(getattr(python, kind))
    close([python(step.clone())[key] for key in keys], [theirs(step.clone())[key] for key in keys])
    assert set(ours.make_tensordict_primer().primers.keys()) == set(KINDS[kind][1])


def test_parameters_from_outside_vmap_and_torch_compile() -> None:
    """As torchrl's losses call modules: with other parameters, several sets at once, compiled."""
    theirs, ours, _ = made("gru")
    batch = data("gru", 1)
    others = tensordict.from_module(theirs).data.clone().apply(lambda value: 2 * value)
    with modules.set_recurrent_mode(True):
        with others.to_module(ours), others.to_module(theirs):
            found, expected = ours(batch.clone())["y"], theirs(batch.clone())["y"]
        close(found, expected)
        assert not torch.allclose(ours(batch.clone())["y"], expected, atol=1e-3)
        compiled: Any = torch.compile(ours, backend="aot_eager")
        close(compiled(batch.clone())["y"], theirs(batch.clone())["y"])
    stack: Any = torch.stack
    step, sets = batch[:, 0], stack([tensordict.from_module(theirs).data.clone(), others])

    def run(values: Any) -> Any:
        with values.to_module(ours):
            return ours(step.clone())["y"]

    with others.to_module(theirs):
        close(torch.vmap(run)(sets)[1], theirs(step.clone())["y"])


def test_a_rollout_step_by_step_is_the_whole_at_once() -> None:
    """The environment ends and begins again within; states come from its primer."""
    envs, nets = pytest.importorskip("torchrl.envs"), pytest.importorskip("tensordict.nn")
    _, ours, _ = made("lstm")
    ours.in_keys[0] = "observation"
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.InitTracker()).append_transform(
        ours.make_tensordict_primer()
    )
    env.set_seed(0)
    choose = nets.TensorDictModule(lambda y: nn.functional.one_hot(y[..., 0].gt(0).long(), 2), ["y"], ["action"])
    rollout = env.rollout(60, nets.TensorDictSequential(ours, choose), break_when_any_done=False)
    assert rollout["is_init"].sum() > 1
    with modules.set_recurrent_mode(True):
        close(ours(rollout[None].clone())["y"][0], rollout["y"])


def test_the_page() -> None:
    example("torchrl")
