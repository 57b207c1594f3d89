"""torch.func over what takes most care: spikes, whose derivative is a surrogate, and masks that vmap batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import rnncc

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H, EACH = 4, 3, 3, 4, 3
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
SPIKING = [("lif", "LIF"), ("egru", "EGRU")]


def make(file: str, name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, **DOUBLE, **options)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def loss_of(layer: Any) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        value: Tensor = functional_call(layer, parameters, (x,))[0].square().sum()
        return value

    return loss


def gradients(layer: Any, x: Tensor) -> dict[str, Tensor]:
    """By kernels."""
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(layer(x)[0].square().sum(), parameters), strict=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize(("file", "name"), SPIKING)
def test_surrogates_under_every_transform(file: str, name: str, backend: str | None) -> None:
    kernels, layer = make(file, name, bidirectional=True), make(file, name, bidirectional=True, backend=backend)
    parameters, loss = {key: p.detach() for key, p in layer.named_parameters()}, loss_of(layer)
    x = 2 * torch.randn(EACH, T, B, IN, **DOUBLE)
    assert kernels(x[0])[0].abs().max() > 0  # something spikes
    close(grad(loss)(parameters, x[0]), gradients(kernels, x[0]))
    each = vmap(grad(loss), (None, 0))(parameters, x)
    close(each, {key: torch.stack([gradients(kernels, one)[key] for one in x]) for key in parameters})

    def output(x: Tensor) -> Tensor:
        value: Tensor = layer(x)[0]
        return value

    small = x[0, :2, :2]
    jacobian: Any = torch.autograd.functional.jacobian
    expected = jacobian(lambda x: kernels(x)[0], small)
    close(jacrev(output)(small), expected)
    close(jacfwd(output)(small), expected)
    close(jvp(output, (small,), (small.cos(),))[1], torch.einsum("tbhsci,sci->tbh", expected, small.cos()))
    second: Any = torch.autograd.functional.hessian
    close(hessian(lambda x: output(x).square().sum())(small), second(lambda x: kernels(x)[0].square().sum(), small))


@pytest.mark.parametrize(("file", "name"), SPIKING)
def test_an_ensemble_of_spiking_layers(file: str, name: str) -> None:
    layers = [make(file, name) for _ in range(EACH)]
    for layer in layers:
        layer.reset_parameters()
    stacked, _ = stack_module_state(layers)
    x = 2 * torch.randn(T, B, IN, **DOUBLE)
    found = vmap(grad(loss_of(layers[0])), (0, None))(stacked, x)
    close(found, {key: torch.stack([gradients(layer, x)[key] for layer in layers]) for key in stacked})


@pytest.mark.long
def test_gradients_of_each_batch_entry_compiled() -> None:
    layer = make("lif", "LIF")
    parameters = {key: p.detach() for key, p in layer.named_parameters()}
    x = 2 * torch.randn(EACH, 2, 2, IN, **DOUBLE)
    torch._dynamo.reset()
    compiled: Any = torch.compile(vmap(grad(loss_of(layer)), (None, 0)), fullgraph=True, backend="aot_eager")
    expected = {key: torch.stack([gradients(layer, one)[key] for one in x]) for key in parameters}
    close(compiled(parameters, x), expected)
    torch._dynamo.reset()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("file", "name", "options"),
    [
        ("lstm", "LSTM", {"bidirectional": True, "num_layers": 2}),
        ("mingru", "minGRU", {}),
        ("slstm", "sLSTM", {"num_heads": 2}),
        ("lif", "LIF", {}),
    ],
)
def test_lengths_resets_and_states_are_batched(file: str, name: str, options: dict[str, Any]) -> None:
    """Each alone and all together, against kernels that run one after the other."""
    layer = make(file, name, **options)
    x = torch.randn(EACH, T, B, IN, **DOUBLE)
    lengths, reset = torch.tensor([[4, 0, 2], [1, 4, 3], [3, 3, 4]]), torch.rand(EACH, T, B) > 0.6
    widths = [state.width(layer._sizes[0]) for state in layer.spec.visible_states()]
    hx: Any = tuple(torch.randn(EACH, len(layer._sizes), B, width, **DOUBLE) for width in widths)
    hx = hx if len(hx) > 1 else hx[0]

    def call(x: Tensor, hx: Any, lengths: Tensor | None, reset: Tensor | None) -> list[Tensor]:
        return torch.utils._pytree.tree_leaves(layer(x, hx, lengths=lengths, reset=reset))

    every: tuple[Any, ...] = (x, hx, lengths, reset)
    for places in ((2,), (0, 2), (3,), (0, 3), (1,), (0, 1, 2, 3)):
        dims = tuple(0 if place in places else None for place in range(4))
        fixed: tuple[Any, ...] = (x[0], None, None, None)
        given = tuple(every[place] if place in places else fixed[place] for place in range(4))
        one_by_one = []
        for i in range(EACH):
            own = [
                v if d is None else torch.utils._pytree.tree_map(lambda t, i=i: t[i], v)
                for v, d in zip(given, dims, strict=True)
            ]
            one_by_one.append(call(*own))
        close(vmap(call, dims)(*given), [torch.stack(same) for same in zip(*one_by_one, strict=True)])


def test_gradients_with_lengths_of_each() -> None:
    layer = make("lstm", "LSTM")
    x, lengths = torch.randn(EACH, T, B, IN, **DOUBLE), torch.tensor([[4, 0, 2], [1, 4, 3], [3, 3, 4]])

    def loss(x: Tensor, lengths: Tensor) -> Tensor:
        value: Tensor = layer(x, lengths=lengths)[0].square().sum()
        return value

    leaf = x.clone().requires_grad_()
    torch.autograd.backward([loss(one, own) for one, own in zip(leaf, lengths, strict=True)])
    close(vmap(grad(loss))(x, lengths), leaf.grad)
    with pytest.raises(ValueError, match="lengths must lie between 0"):
        vmap(lambda x: loss(x, lengths[0] + 2))(x)


def test_offsets_are_batched() -> None:
    layer = make("lstm", "LSTM", bidirectional=True)
    rows, offsets = torch.randn(2, 9, IN, **DOUBLE), torch.tensor([[0, 4, 4, 9], [0, 1, 5, 9]])
    found = vmap(lambda rows, offsets: layer(rows, offsets=offsets, max_length=6)[0])(rows, offsets)
    close(found, torch.stack([layer(own, offsets=each)[0] for own, each in zip(rows, offsets, strict=True)]))
    with pytest.raises(ValueError, match="under vmap, offsets need max_length"):
        vmap(lambda rows, offsets: layer(rows, offsets=offsets)[0])(rows, offsets)
