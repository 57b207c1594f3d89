"""Forward-mode derivatives by dual tensors: of layers, single steps, the functional op and what was exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence

import rnncc

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H = 4, 3, 3, 4
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("lstm", "LSTM", {}),
    ("lstm", "LSTM", {"bidirectional": True, "num_layers": 2}),
    ("mingru", "minGRU", {"bidirectional": True}),
    ("slstm", "sLSTM", {"num_heads": 2}),
]


def make(file: str = "lstm", name: str = "LSTM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), name)(IN, H, **DOUBLE, **options)


def tangent_of(tensor: Tensor) -> Any:
    return forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]


def tangents(function: Callable[..., Any], primals: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> list[Tensor]:
    """What dual tensors give for each result."""
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(p, d) for p, d in zip(primals, directions, strict=True)]  # type: ignore[no-untyped-call]
        results = torch.utils._pytree.tree_leaves(function(*duals))
        found = [tangent_of(result) for result in results]
    assert all(tangent is not None for tangent in found)
    return found


def by_reverse_mode(
    function: Callable[..., Any], primals: tuple[Tensor, ...], directions: tuple[Tensor, ...]
) -> list[Tensor]:
    """The same from gradients of kernels: the derivative by u of the gradient that u gives."""
    leaves = [primal.detach().clone().requires_grad_() for primal in primals]
    results = torch.utils._pytree.tree_leaves(function(*leaves))
    flowing = [torch.zeros_like(result, requires_grad=True) for result in results]
    gradients = torch.autograd.grad(results, leaves, flowing, create_graph=True)
    return list(torch.autograd.grad(gradients, flowing, directions))


def assert_tangents(function: Callable[..., Any], *primals: Tensor) -> None:
    directions = tuple(torch.randn_like(primal) for primal in primals)
    found = tangents(function, primals, directions)
    expected = by_reverse_mode(function, primals, directions)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("steps", [T, 1])
@pytest.mark.parametrize(("file", "name", "options"), OPTIONS)
def test_inputs_and_parameters(file: str, name: str, options: dict[str, Any], steps: int, grad: bool) -> None:
    layer = make(file, name, **options)
    layer.requires_grad_(grad)
    names = [key for key, _ in layer.named_parameters()]
    lengths = torch.tensor([steps, 0, 1])
    x, reset = torch.randn(steps, B, IN, **DOUBLE), torch.rand(steps, B) > 0.6
    parameters = [parameter.detach() for parameter in layer.parameters()]

    for masks in ({}, {"lengths": lengths, "reset": reset}):

        def run(x: Tensor, *given: Tensor, masks: Any = masks) -> Any:
            return functional_call(layer, dict(zip(names, given, strict=True)), (x,), masks)

        assert_tangents(run, x, *parameters)
        assert_tangents(lambda x, masks=masks: layer(x, **masks), x)


def test_as_torch_s_lstm() -> None:
    """Parameters that carry tangents by themselves, as in the tutorial of forward mode."""
    theirs = torch.nn.LSTM(IN, H, **DOUBLE)
    ours = rnncc.load("lstm").LSTM.from_torch(theirs)
    x = torch.randn(T, B, IN, **DOUBLE)
    found = []
    for layer in (theirs, ours):
        torch.manual_seed(1)
        with torch.no_grad(), forward_ad.dual_level():
            own = {
                name: forward_ad.make_dual(p.detach(), torch.randn_like(p))  # type: ignore[no-untyped-call]
                for name, p in layer.named_parameters()
                if name.startswith("weight")
            }
            output = functional_call(layer, own, (forward_ad.make_dual(x, x.cos()),))[0]  # type: ignore[no-untyped-call]
            found.append(tangent_of(output))
    torch.testing.assert_close(found[1], found[0], atol=1e-12, rtol=1e-12)


def test_no_step_and_no_tangent() -> None:
    layer, x = make(), torch.randn(T, B, IN, **DOUBLE)
    h, c = torch.randn(2, 1, B, H, **DOUBLE)
    found = tangents(lambda h, c: layer(x[:0], (h, c))[1], (h, c), (h.cos(), c.sin()))
    assert torch.equal(found[0], h.cos()) and torch.equal(found[1], c.sin())
    with forward_ad.dual_level():
        output = layer(x)[0]
        assert tangent_of(output) is None and torch.equal(output, layer(x)[0])


def test_single_steps_packed_sequences_and_the_functional_op() -> None:
    step = rnncc.load("lstm").LSTMCell(IN, H, **DOUBLE)
    assert_tangents(lambda x, h, c: step(x, (h, c)), *(torch.randn(B, n, **DOUBLE) for n in (IN, H, H)))

    layer = make(bidirectional=True)
    packed = pack_padded_sequence(torch.randn(T, B, IN, **DOUBLE), torch.tensor([2, 4, 1]), enforce_sorted=False)

    def of_rows(rows: Tensor) -> Any:
        output, states = layer(packed._replace(data=rows))
        return output.data, states

    assert_tangents(of_rows, packed.data)

    loop = rnncc.load("lstm").lstm
    shapes = ((T, B, 4 * H), (4 * H, H), (B, H), (B, H))
    assert_tangents(lambda x, w, h, c: loop(x, [w], [h, c]), *(torch.randn(shape, **DOUBLE) for shape in shapes))


def test_gradcheck_of_both_modes() -> None:
    layer = make()
    x = torch.randn(2, 2, IN, **DOUBLE, requires_grad=True)
    assert gradcheck(lambda x: layer(x)[0], x, check_forward_ad=True, check_batched_forward_grad=True)
    jacobian: Any = torch.autograd.functional.jacobian
    forward = jacobian(lambda x: layer(x)[0], x, strategy="forward-mode", vectorize=True)
    torch.testing.assert_close(forward, jacobian(lambda x: layer(x)[0], x), atol=1e-12, rtol=1e-12)


def test_reverse_over_forward() -> None:
    layer, x = make(), torch.randn(T, B, IN, **DOUBLE, requires_grad=True)
    v = torch.randn_like(x)
    with forward_ad.dual_level():
        tangent = tangent_of(layer(forward_ad.make_dual(x, v))[0])  # type: ignore[no-untyped-call]
        (found,) = torch.autograd.grad(tangent.sum(), x)
    output = layer(x)[0]
    flowing = torch.ones_like(output, requires_grad=True)
    (first,) = torch.autograd.grad(output, x, flowing, create_graph=True)
    (directional,) = torch.autograd.grad((first * v).sum(), flowing, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(directional.sum(), x)[0], atol=1e-11, rtol=1e-11)


def test_bfloat16_and_autocast() -> None:
    layer, x = make().to(torch.float32), torch.randn(T, B, IN)
    v = torch.randn_like(x)
    (exact,) = tangents(lambda x: layer(x)[0], (x,), (v,))
    with torch.autocast("cpu", torch.bfloat16):
        (cast,) = tangents(lambda x: layer(x)[0], (x,), (v,))
    layer, x, v = layer.bfloat16(), x.bfloat16(), v.bfloat16()
    (rounded,) = tangents(lambda x: layer(x)[0], (x,), (v,))
    for found in (cast, rounded):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), exact, atol=3e-2, rtol=3e-2)


def test_what_was_exported() -> None:
    layer, x = make(), torch.randn(T, B, IN, **DOUBLE)
    with torch.no_grad():
        program = torch.export.export(layer, (x,)).module()
    assert_tangents(program, x)


@pytest.mark.long
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_compiled_code_refuses_tangents(backend: str | None, fullgraph: bool) -> None:
    """torch.compile itself loses them, and says nothing."""
    torch._dynamo.reset()
    layer, x = make(bidirectional=True, backend=backend), torch.randn(T, B, IN, **DOUBLE)
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=fullgraph)
    compiled(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())  # type: ignore[no-untyped-call]
        with pytest.raises((NotImplementedError, torch._dynamo.exc.Unsupported), match="dual tensors"):
            compiled(dual)
        with torch.no_grad(), pytest.raises((NotImplementedError, torch._dynamo.exc.Unsupported), match="dual tensors"):
            compiled(dual)
    torch._dynamo.reset()
