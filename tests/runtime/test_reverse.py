"""`reverse=True`: one direction that begins at the last step, which is the second direction of torch.nn's layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnncc
import rnncc.compat.nn
from tests.packages import float64_package

pytestmark = pytest.mark.usefixtures("float64_first")
T, B, IN, H = 7, 3, 4, 6
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
BACKENDS = ("cpu", "reference")
EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


def both(kind: str, backend: str = "cpu", **options: Any) -> tuple[Any, nn.RNNBase]:
    """Our layer, and torch's of both directions, whose second one it is."""
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(IN, H, bidirectional=True, **DOUBLE)
    ours = getattr(rnncc.load(f"nn_{kind.lower()}"), f"nn_{kind}")(
        IN, H, reverse=True, backend=backend, **options, **DOUBLE
    )
    state = theirs.state_dict()
    ours.load_state_dict({name: state[f"{name}_reverse"] for name in ours.state_dict()})
    return ours, theirs


def states(count: int, number: int = 1) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(count, B, H, generator=generator, **DOUBLE) for _ in range(number))


def second(value: Tensor) -> Tensor:
    """The share of torch's second direction in an output."""
    return value[..., H:]


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_torch_s_second_direction(backend: str, kind: str, with_states: bool) -> None:
    """The output, the final state, which is that of the first step, and all gradients."""
    ours, theirs = both(kind, backend)
    x, other = (torch.randn(T, B, IN, generator=torch.Generator().manual_seed(1), **DOUBLE) for _ in range(2))
    given = states(1, 2 if kind == "LSTM" else 1)
    wide: Any = tuple(torch.cat((torch.zeros_like(state), state)) for state in given)
    leaves = [x.requires_grad_(), *(state.requires_grad_() for state in given)]
    others = [other.requires_grad_(), *(state.requires_grad_() for state in wide)]
    hx: Any = given if kind == "LSTM" else given[0]
    output, last = ours(x, hx if with_states else None)
    expected, ends = theirs(other, (wide if kind == "LSTM" else wide[0]) if with_states else None)
    finals = [last] if isinstance(last, Tensor) else list(last)
    wanted = [end[1:] for end in ([ends] if isinstance(ends, Tensor) else ends)]
    for found, value in zip((output, *finals), (second(expected), *wanted), strict=True):
        torch.testing.assert_close(found, value, **EXACT)
    cotangents = [torch.randn_like(value) for value in (output, *finals)]
    torch.autograd.backward([output, *finals], cotangents)
    torch.autograd.backward([second(expected), *wanted], cotangents)
    torch.testing.assert_close(leaves[0].grad, others[0].grad, **EXACT)
    if with_states:
        for leaf, one in zip(leaves[1:], others[1:], strict=True):
            torch.testing.assert_close(leaf.grad, one.grad[1:], **EXACT)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, getattr(theirs, f"{name}_reverse").grad, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_of_different_lengths(backend: str) -> None:
    """Each begins at its own last step."""
    ours, theirs = both("LSTM", backend)
    x, lengths = torch.randn(T, B, IN, **DOUBLE), torch.tensor([7, 2, 5])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    expected, (h, c) = theirs(packed)
    found, last = ours(packed)
    assert isinstance(found, PackedSequence)
    torch.testing.assert_close(found.data, second(expected.data), **EXACT)
    padded, ends = ours(x, lengths=lengths)
    rows, offsets = torch.cat([x[:n, b] for b, n in enumerate(lengths)]), torch.tensor([0, 7, 9, 14])
    flat, finals = ours(rows, offsets=offsets)
    torch.testing.assert_close(flat, torch.cat([padded[:n, b] for b, n in enumerate(lengths)]), **EXACT)
    for own in (last, ends, finals):
        torch.testing.assert_close(own[0], h[1:], **EXACT)
        torch.testing.assert_close(own[1], c[1:], **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_go_from_the_last_to_the_first(backend: str) -> None:
    late = float64_package("cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-2] + b)").Late(
        IN, H, reverse=True, return_delays=True, backend=backend, **DOUBLE
    )
    x = torch.randn(T, B, IN, **DOUBLE)
    whole, end = late(x)
    behind, carried = late(x[4:])
    before, last = late(x[:4], carried)
    torch.testing.assert_close(torch.cat((before, behind)), whole, **EXACT)
    for found, expected in zip(last, end, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)
    # It is the flipped sequence, forward.
    forward = float64_package("cell Late\nstate h\nh[t] = tanh(W@x + R@h[t-2] + b)").Late(IN, H, **DOUBLE)
    forward.load_state_dict(late.state_dict())
    torch.testing.assert_close(forward(x.flip(0))[0].flip(0), whole, **EXACT)


def test_layers_resets_and_sequences() -> None:
    """Every layer of a stack runs backwards."""
    ours = rnncc.load("lstm").LSTM(IN, H, 2, reverse=True, batch_first=True, return_sequences_of=("c",), **DOUBLE)
    forward = rnncc.load("lstm").LSTM(IN, H, 2, batch_first=True, return_sequences_of=("c",), **DOUBLE)
    forward.load_state_dict(ours.state_dict())
    x = torch.randn(B, T, IN, **DOUBLE)
    for found, expected in ((ours(x)[0], forward(x.flip(1))[0]), (ours(x)[2]["c"], forward(x.flip(1))[2]["c"])):
        torch.testing.assert_close(found, expected.flip(1), **EXACT)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 3] = True  # nothing passes between the steps 2 and 3
    output, (h, _), _ = ours(x, reset=reset)
    torch.testing.assert_close(output[:, :3], ours(x[:, :3])[0], **EXACT)
    torch.testing.assert_close(h, ours(x[:, :3])[1][0], **EXACT)
    torch.testing.assert_close(output[:, 3:], ours(x[:, 3:])[0], **EXACT)


def test_other_ways_to_run_it() -> None:
    ours, theirs = both("LSTM")
    x = torch.randn(T, B, IN, **DOUBLE)
    expected = second(theirs(x)[0])
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], expected, **EXACT)
        torch.testing.assert_close(ours.eval().freeze()(x)[0], expected, **EXACT)
        torch.testing.assert_close(ours(x[:, 0])[0], expected[:, 0], **EXACT)
    torch.testing.assert_close(copy.deepcopy(ours)(x)[0], expected, **EXACT)
    compiled: Any = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], expected, **EXACT)
    torch.testing.assert_close(torch.export.export(ours, (x,)).module()(x)[0], expected, **EXACT)
    again, _ = both("LSTM", recompute=True)
    torch.testing.assert_close(again(x)[0], expected, **EXACT)


def test_what_it_does_not_go_with() -> None:
    cells = rnncc.load("lstm")
    with pytest.raises(ValueError, match="reverse=True is for one direction"):
        cells.LSTM(IN, H, bidirectional=True, reverse=True)
    with pytest.raises(TypeError, match=r"LSTMCell got an unexpected keyword argument 'reverse'"):
        cells.LSTMCell(IN, H, reverse=True)
    with pytest.raises(TypeError, match=r"replace\(\) takes no reverse"):
        rnncc.compat.nn.replace(nn.Sequential(nn.LSTM(IN, H)), reverse=True)
    assert repr(cells.LSTM(IN, H, reverse=True)) == f"LSTM({IN}, {H}, reverse=True)"
