"""FlashRNN's function: the oracle is its formulas (README of FlashRNN; arXiv:2412.07752, section 2) as a loop in
float64, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rnncc.compat import FlashRNNConfig, flashrnn

B, T, N, D = 3, 5, 2, 4
# Gates of Wx, R and b, and states.
COUNTS = {"lstm": (4, 4, 4, 2), "slstm": (4, 4, 4, 4), "gru": (3, 3, 4, 1), "elman": (1, 1, 1, 1)}
Arguments = tuple[Tensor, Tensor, Tensor, Tensor]
Step = Callable[[Tensor, Tensor, Tensor, list[Tensor]], list[Tensor]]


def lstm(x: Tensor, r: Tensor, b: Tensor, states: list[Tensor]) -> list[Tensor]:
    i, f, z, o = x + r + b[:, None]
    c = f.sigmoid() * states[1] + i.sigmoid() * z.tanh()
    return [o.sigmoid() * c.tanh(), c]


def slstm(x: Tensor, r: Tensor, b: Tensor, states: list[Tensor]) -> list[Tensor]:
    i, f, z, o = x + r + b[:, None]
    _, c, n, m = states
    lf = logsigmoid(f) + m
    new_m = torch.where(n == 0, i, torch.maximum(i, lf))
    keep, add = (lf - new_m).exp(), (i - new_m).exp()
    new_c, new_n = keep * c + add * z.tanh(), (keep * n + add).clamp(min=1)
    return [o.sigmoid() * new_c / new_n, new_c, new_n, new_m]


def gru(x: Tensor, r: Tensor, b: Tensor, states: list[Tensor]) -> list[Tensor]:
    reset, update = (x[0] + r[1] + b[1]).sigmoid(), (x[1] + r[2] + b[2]).sigmoid()
    new = (x[2] + b[3] + reset * (r[0] + b[0])).tanh()
    return [update * states[0] + (1 - update) * new]


def elman(x: Tensor, r: Tensor, b: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [(x + r + b[:, None])[0].tanh()]


STEPS: dict[str, Step] = {"lstm": lstm, "slstm": slstm, "gru": gru, "elman": elman}


def loop(
    function: str, wx: Tensor, recurrent: Tensor, bias: Tensor, states: Tensor, bound: float | None = None
) -> tuple[Tensor, Tensor]:
    """All states [S, B, T, N, D] and the last. `bound`: on the gradient that R hands back to h[t-1]."""
    current = list(states[:, :, 0])
    all_states = []
    for t in range(wx.shape[1]):
        h = current[0].clone()
        if bound is not None and h.requires_grad:
            h.register_hook(lambda d: d.clamp(-bound, bound))
        product = torch.einsum("gndp,bnp->gbnd", recurrent, h)
        current = STEPS[function](wx[:, t].transpose(0, 1), product, bias, current)
        all_states.append(torch.stack(current))
    return torch.stack(all_states, 2), torch.stack(current).unsqueeze(2)


def tensors(function: str, *, fresh: bool = False, scale: float = 1.0) -> Arguments:
    """Wx, R, b and states in FlashRNN's shapes; `fresh`: states of zeros."""
    generator = torch.Generator().manual_seed(5)
    w, r, b, s = COUNTS[function]

    def drawn(*shape: int) -> Tensor:
        return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()

    states = drawn(s, B, 1, N, D)
    with torch.no_grad():
        # A normaliser is at least 1 after a step.
        states[2:3].abs_().add_(1)
        if fresh:
            states.zero_()
    return drawn(B, T, w, N, D), drawn(r, N, D, D), drawn(b, N, D), states


def same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def compare(function: str, arguments: Arguments, bound: float | None, wanted: Sequence[Tensor], **options: Any) -> None:
    """Both results, and the gradients of a loss that reads every element of both."""
    expected = loop(function, *arguments, bound)
    got = flashrnn(*arguments, function=function, **options)
    generator = torch.Generator().manual_seed(6)
    losses = []
    for a, b in zip(got, expected, strict=True):
        same(a, b)
        weight = torch.randn(a.shape, generator=generator, dtype=a.dtype)
        losses.append([(weight * a).sum(), (weight * b).sum()])
    ours, theirs = (torch.autograd.grad(losses[0][k] + losses[1][k], wanted, allow_unused=True) for k in (0, 1))
    for own, other in zip(ours, theirs, strict=True):
        same(own, torch.zeros_like(own) if other is None else other)


@pytest.mark.one_in(2, "backend")
@pytest.mark.parametrize("backend", ["cuda_fused", "vanilla"])
@pytest.mark.parametrize("function", COUNTS)
def test_states_and_gradients_are_those_of_the_formulas(function: str, backend: str) -> None:
    arguments = tensors(function)
    compare(function, arguments, None, arguments, backend=backend)


def test_fresh_rows_of_a_batch_stand_beside_used_ones() -> None:
    wx, recurrent, bias, states = tensors("slstm")
    with torch.no_grad():
        states[:, 1] = 0
    # What stands beside n = 0 gets no gradient here.
    compare("slstm", (wx, recurrent, bias, states), None, (wx, recurrent, bias))


@pytest.mark.parametrize("function", COUNTS)
def test_without_states_they_are_zero(function: str) -> None:
    arguments = tensors(function, fresh=True)
    compare(function, arguments, None, arguments[:3])
    same(flashrnn(*arguments[:3], function=function)[0], loop(function, *arguments)[0])


@pytest.mark.parametrize(("option", "bound"), [("gradient_recurrent_clipval", 0.02), ("gradient_recurrent_cut", 0.0)])
@pytest.mark.parametrize("function", COUNTS)
def test_the_recurrent_gradient_is_clipped_and_cut(function: str, option: str, bound: float) -> None:
    arguments = tensors(function)
    plain = torch.autograd.grad(flashrnn(*arguments, function=function)[0].sum(), arguments[0])[0]
    options: dict[str, Any] = {option: bound or True}
    config = FlashRNNConfig(function=function, **options)
    bounded = torch.autograd.grad(flashrnn(*arguments, config=config)[0].sum(), arguments[0])[0]
    assert (plain - bounded).abs().max() > 1e-3
    # R's own gradient does not pass the bound.
    compare(function, arguments, bound, arguments, config=config)


def test_chunks_go_on_where_the_last_one_stopped() -> None:
    wx, recurrent, bias, states = tensors("slstm")
    whole, last = flashrnn(wx, recurrent, bias, states, "slstm")
    first, middle = flashrnn(wx[:, :2], recurrent, bias, states, "slstm")
    second, final = flashrnn(wx[:, 2:], recurrent, bias, middle, "slstm")
    same(torch.cat([first, second], 2), whole)
    same(final, last)


def test_every_order_of_axes() -> None:
    wx, recurrent, bias, states = tensors("lstm")
    expected = flashrnn(wx, recurrent, bias, states)
    config = FlashRNNConfig(
        input_shape="TBGHD", recurrent_shape="HPGD", bias_shape="HDG", output_shape="STBHD",
        num_heads=N, head_dim=D, hidden_dim=N * D, batch_size=B,
    )  # fmt: skip
    got = flashrnn(
        wx.transpose(0, 1), recurrent.permute(1, 3, 0, 2), bias.permute(1, 2, 0), states.transpose(1, 2), config=config
    )
    for ours, theirs in zip(got, expected, strict=True):
        same(ours.transpose(1, 2), theirs)


def test_initial_values_by_state() -> None:
    wx, recurrent, bias, _ = tensors("lstm")
    config = FlashRNNConfig(initial_val=(0.5, -1.0))
    states = torch.tensor([0.5, -1.0], dtype=torch.float64).reshape(2, 1, 1, 1, 1).expand(2, B, 1, N, D)
    same(flashrnn(wx, recurrent, bias, config=config)[0], loop("lstm", wx, recurrent, bias, states)[0])
    with pytest.raises(ValueError, match="one for each of 2 states"):
        flashrnn(wx, recurrent, bias, config=FlashRNNConfig(initial_val=(0.5, -1.0, 0.0)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes(dtype: str) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    wx, recurrent, bias, states = (tensor.detach().to(kind) for tensor in tensors("lstm", scale=0.5))
    got, last = flashrnn(wx.double(), recurrent, bias, states, dtype=dtype)
    assert got.dtype == last.dtype == kind
    expected = loop("lstm", wx.double(), recurrent.double(), bias.double(), states.double())[0]
    assert (got.double() - expected).abs().max() <= 8 * torch.finfo(kind).eps


@pytest.mark.long
def test_torch_compile_takes_it_whole() -> None:
    arguments = tensors("gru")
    config = FlashRNNConfig(function="gru")
    compiled = torch.compile(flashrnn, fullgraph=True, backend="aot_eager")
    expected = flashrnn(*arguments, config=config)[0]
    got = compiled(*arguments, config=config)[0]
    same(got, expected)
    pairs = zip(torch.autograd.grad(got.sum(), arguments), torch.autograd.grad(expected.sum(), arguments), strict=True)
    for own, other in pairs:
        same(own, other)


def test_second_derivatives() -> None:
    wx, recurrent, bias, states = tensors("slstm")
    found = []
    for states_of in (flashrnn, lambda *given: loop("slstm", *given[:4])):
        output = states_of(wx, recurrent, bias, states, "slstm")[0]
        (first,) = torch.autograd.grad(output.square().sum(), wx, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), recurrent)[0])
    same(*found)


def test_autocast() -> None:
    wx, recurrent, bias, states = (tensor.detach().float() for tensor in tensors("lstm", scale=0.5))
    with torch.autocast("cpu", torch.bfloat16):
        got, last = flashrnn(wx, recurrent, bias, states)
    assert got.dtype == torch.bfloat16 and last.dtype == torch.float32
    expected = flashrnn(wx, recurrent, bias, states)[0]
    assert (got - expected).abs().max() <= 8 * torch.finfo(torch.bfloat16).eps


MISTAKES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"function": "mlstm"}, "function must be one of .*'slstm'.*, got 'mlstm'"),
    ({"backend": "tpu"}, "backend must be one of"),
    ({"dtype": "int8"}, "dtype must be one of"),
    ({"config": {"input_shape": "BTGH"}}, "an order of the axes BTGHD"),
    ({"config": {"num_heads": 3}}, "num_heads=3, but that of Wx is 2"),
    ({"config": {"gradient_recurrent_clipval": -1.0}}, "recurrent_gradient_clip"),
    ({"function": "gru"}, r"Wx must be \[5, 3, 3, 2, 4\]"),
)


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes(options: dict[str, Any], message: str) -> None:
    wx, recurrent, bias, states = tensors("lstm")
    with pytest.raises(ValueError, match=message):
        if "config" in options:
            options = {"config": FlashRNNConfig(**options["config"])}
        flashrnn(wx, recurrent, bias, states, **options)


@pytest.mark.parametrize("index", range(4))
def test_shapes_are_checked(index: int) -> None:
    arguments: Any = list(tensors("lstm"))
    arguments[index] = arguments[index][..., :3]
    # Of narrower inputs everything else is too wide.
    wrong = ("R", "R", "b", "states")[index]
    with pytest.raises(ValueError, match=rf"flashrnn: {wrong} must be \["):
        flashrnn(*arguments)
    arguments[index] = arguments[index][0]
    with pytest.raises(ValueError, match=rf"flashrnn: {('Wx', 'R', 'b', 'states')[index]} must have"):
        flashrnn(*arguments)
