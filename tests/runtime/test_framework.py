"""What training code does with modules: checkpointing, parametrizations, conversion, hooks, deterministic mode."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import rnncc
from tests.runtime.test_ops import arguments

T, B, IN, H = 5, 4, 3, 8


def make(**options: Any) -> Any:
    torch.manual_seed(0)
    return rnncc.load("lstm").LSTM(IN, H, **options)


def sample() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(T, B, IN)


def gradients(layer: Any, output: Tensor, *others: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), [*layer.parameters(), *others]))


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_computes_the_same_again(reentrant: bool) -> None:
    """The same dropout too, whose random numbers both kinds draw again."""
    layer = make(num_layers=2, dropout=0.5)
    found = []
    for checkpointed in (False, True):
        x = sample().requires_grad_()
        torch.manual_seed(2)
        output = checkpoint(layer, x, use_reentrant=reentrant)[0] if checkpointed else layer(x)[0]
        layer.zero_grad()
        output.square().sum().backward()
        assert x.grad is not None
        found.append([output, x.grad, *(tensor.grad for tensor in layer.parameters())])
    assert equal(*found)


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of an op that reach a kernel."""

    def __init__(self, op: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.count = op, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += op is self.op
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize(("choice", "calls"), [(CheckpointPolicy.MUST_SAVE, 1), (CheckpointPolicy.PREFER_RECOMPUTE, 2)])
def test_selective_checkpointing_keeps_or_repeats_the_loop(choice: CheckpointPolicy, calls: int) -> None:
    """A policy knows the op of the loop like any other."""
    layer, x = make(), sample()
    expected = gradients(layer, layer(x)[0])
    forward = layer._choose(x)[0].ops["lstm_0"].default

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        return choice if op is forward else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    with Calls(forward) as seen:
        output = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)[0]
        assert equal(gradients(layer, output), expected)
    assert seen.count == calls


def test_saved_tensors_may_be_packed() -> None:
    """As for keeping them on the host."""
    layer, x = make(), sample()
    with torch.autograd.graph.save_on_cpu():
        output = layer(x)[0]
    assert equal(gradients(layer, output), gradients(layer, layer(x)[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conversion(dtype: torch.dtype) -> None:
    layer, x = make(num_layers=2), sample()
    expected = layer(x)[0]
    converted = copy.deepcopy(layer).to(dtype)
    output = converted(x.to(dtype))[0]
    assert output.dtype == dtype
    assert all(gradient.dtype == dtype for gradient in gradients(converted, output))
    bound = 1e-6 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.float(), expected, atol=bound, rtol=bound)
    with pytest.raises(ValueError, match="does not match weight dtype"):
        converted(x)


def test_half_and_the_meta_device() -> None:
    layer = make().half()
    assert {tensor.dtype for tensor in layer.parameters()} == {torch.float16}
    empty = rnncc.load("lstm").LSTM(IN, H, device="meta")
    output, _ = empty(sample().to("meta"))
    assert output.is_meta and output.shape == (T, B, H)
    empty.to_empty(device="cpu").load_state_dict(make().state_dict())
    assert torch.equal(empty(sample())[0], make()(sample())[0])


@pytest.mark.parametrize("names", [("weight_hh_l0",), ("weight_ih_l0", "weight_hh_l0")])
def test_weight_norm(names: tuple[str, ...]) -> None:
    layer, x = make(), sample()
    expected = layer(x)[0]
    for name in names:
        parametrizations.weight_norm(layer, name)
    torch.testing.assert_close(layer(x)[0], expected)
    output = layer(x)[0]
    assert len(gradients(layer, output)) == 3 + len(names)
    # A copy, and a state dict, hold what was parametrized.
    assert torch.equal(copy.deepcopy(layer)(x)[0], output)
    again = make()
    for name in names:
        parametrizations.weight_norm(again, name)
    nn.init.ones_(again.parametrizations.weight_hh_l0.original0)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x)[0], output)
    for name in names:
        parametrize.remove_parametrizations(layer, name)
    assert torch.equal(layer(x)[0], output)


def test_an_orthogonal_matrix_stays_one() -> None:
    layer, x = make(), sample()
    parametrizations.orthogonal(layer, "weight_hh_l0")
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    losses = []
    for _ in range(3):
        loss: Any = layer(x)[0].square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.testing.assert_close(layer.weight_hh_l0.T @ layer.weight_hh_l0, torch.eye(H), atol=1e-5, rtol=0)
    assert losses[2] < losses[0]


def test_pruning() -> None:
    layer, x = make(), sample()
    prune.random_unstructured(layer, "weight_hh_l0", 0.5)  # type: ignore[no-untyped-call]
    output = layer(x)[0]
    output.square().sum().backward()
    assert ((layer.weight_hh_l0 == 0) == (layer.weight_hh_l0_orig.grad == 0)).all()
    dense = make()
    dense.weight_hh_l0.data = layer.weight_hh_l0.detach()
    assert torch.equal(dense(x)[0], output)
    prune.remove(layer, "weight_hh_l0")  # type: ignore[no-untyped-call]
    assert torch.equal(layer(x)[0], output)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_mode(deterministic: None) -> None:
    """Nothing that a layer calls is refused, and memory that torch then fills with NaN is not read."""
    options = {"lengths": torch.tensor([5, 0, 3, 1]), "reset": torch.rand(T, B) > 0.5}
    layer, x = make(num_layers=2, bidirectional=True), sample()
    first, second = (gradients(layer, layer(x, **options)[0]) for _ in range(2))
    assert equal(first, second) and all(gradient.isfinite().all() for gradient in first)


def test_a_state_dict_alone_is_safe_to_load() -> None:
    layer, stream = make(), io.BytesIO()
    torch.save(layer.state_dict(), stream)
    stream.seek(0)
    again = rnncc.load("lstm").LSTM(IN, H)
    again.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(again(sample())[0], layer(sample())[0])


def test_anomaly_mode_inference_mode_and_averages() -> None:
    layer, x = make(), sample()
    expected = gradients(layer, layer(x)[0])
    with torch.autograd.set_detect_anomaly(True):
        assert equal(gradients(layer, layer(x)[0]), expected)
    with torch.inference_mode():
        output = layer(x)[0]
    assert output.is_inference() and torch.equal(output, layer(x)[0])
    average = torch.optim.swa_utils.AveragedModel(layer)
    average.update_parameters(layer)
    assert torch.equal(average(x)[0], output)


def test_opcheck_of_tensors_in_any_layout() -> None:
    """Weights, states and masks that are no rows one after the other."""
    layer = rnncc.load("lstm").LSTM(3, 4, dtype=torch.float64)
    reset = torch.rand(2, 4) > 0.5
    op, given = arguments(layer, lengths=torch.tensor([4, 9, 2, 9])[::2], reset=reset.t())

    def strided(tensor: Tensor) -> Tensor:
        made: Tensor = tensor.detach().mT.contiguous().mT.requires_grad_()
        assert not made.is_contiguous()
        return made

    groups = [[strided(tensor) for tensor in group] for group in given[:3]]
    assert set(torch.library.opcheck(op, (*groups, *given[3:])).values()) == {"SUCCESS"}


class Wrapped(Tensor):
    """A tensor in another's place, as quantized and sharded ones are."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Wrapped:
        made: Wrapped = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, strides=held.stride())
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def opened(value: Any) -> Any:
            return value.held if isinstance(value, Wrapped) else value

        return op(*torch.utils._pytree.tree_map(opened, args), **(kwargs or {}))


def test_a_subclass_among_the_weights_alone_is_asked() -> None:
    """The dispatcher looks into the op's list of weights."""
    layer, x = make(), sample()
    with torch.no_grad():
        expected, weight = layer(x)[0], layer.weight_hh_l0
        del layer.weight_hh_l0
        layer.weight_hh_l0 = Wrapped(weight)
        assert torch.equal(layer(x)[0], expected)
