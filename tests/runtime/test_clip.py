"""`recurrent_gradient_clip`: gradients against loops written here, where hooks on h[t-1] clip what products hand back,
and `.detach()` cuts it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import rnncc
from tests.runtime.test_ops import T, arguments, make

pytestmark = pytest.mark.usefixtures("float64_first")
B, IN, H = 3, 3, 4
Gates = Mapping[str, Tensor]
States = tuple[Tensor, ...]
Read = Callable[[Tensor], Tensor]
MASKS: dict[str, Any] = {
    "lengths": torch.tensor([4, 2, 3]),
    "reset": torch.tensor([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]),
}


def sums(p: Gates, x: Tensor, h: Tensor, gates: str) -> tuple[Tensor, ...]:
    return tuple(x @ p[f"W_{g}"].T + p[f"b_{g}"] + h @ p[f"R_{g}"][0].T for g in gates)


def lstm(p: Gates, x: Tensor, states: States, read: Read) -> States:
    i, f, g, o = sums(p, x, read(states[0]), "ifgo")
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(p: Gates, x: Tensor, states: States, read: Read) -> States:
    (h,) = states
    product = read(h)
    r, z = (value.sigmoid() for value in sums(p, x, product, "rz"))
    n = (x @ p["W_n"].T + p["b_n"] + r * (product @ p["R_n"][0].T + p["bR_n"])).tanh()
    return ((1 - z) * n + z * h,)


def gruv3(p: Gates, x: Tensor, states: States, read: Read) -> States:
    """Two phases; r*h[t-1] serves a product and nothing else."""
    (h,) = states
    product = read(h)
    r, z = (value.sigmoid() for value in sums(p, x, product, "rz"))
    (n,) = sums(p, x, r * product, "n")
    return ((1 - z) * n.tanh() + z * h,)


def cornn(p: Gates, x: Tensor, states: States, read: Read) -> States:
    """Two operands, each clipped for its own."""
    h, z = states
    (product,) = sums(p, x, read(h), "z")
    z = z + 0.1 * ((product + read(z) @ p["M_z"][0].T).tanh() - h - z)
    return h + 0.1 * z, z


def elman(p: Gates, x: Tensor, states: States, read: Read) -> States:
    return (sums(p, x, read(states[0]), "h")[0].tanh(),)


STEPS: dict[str, tuple[str, Callable[..., States]]] = {
    "LSTM": ("lstm", lstm),
    "GRU": ("gru", gru),
    "GRUv3": ("gruv3", gruv3),
    "coRNN": ("cornn", cornn),
    "Elman": ("elman", elman),
}


def reading(clip: float | None) -> Read:
    """What a product reads of h[t-1]."""

    def read(h: Tensor) -> Tensor:
        if clip == 0:
            return h.detach()
        h = h.view_as(h)
        if clip is not None and h.requires_grad:
            h.register_hook(lambda d: d.clamp(-clip, clip))  # type: ignore[no-untyped-call]
        return h

    return read


def loop(
    name: str,
    p: Gates,
    x: Tensor,
    initial: States,
    clip: float | None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, States]:
    """The output and the final states of one direction."""
    states, outputs = initial, [torch.zeros(())] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        before = states
        later = t + 1 if reverse else t
        if reset is not None and later < len(x):
            cut = (reset[later] != 0) & (torch.tensor(True) if lengths is None else later < lengths)
            before = tuple(torch.where(cut[:, None], torch.zeros_like(s), s) for s in states)
        new = STEPS[name][1](p, x[t], before, reading(clip))
        active = torch.ones(x.shape[1], 1, dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
        outputs[t] = torch.where(active, new[0], 0)
        states = tuple(torch.where(active, s, old) for s, old in zip(new, states, strict=True))
    return torch.stack(outputs), states


def layer_of(name: str, **options: Any) -> Any:
    layer = make(STEPS[name][0], name, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            # Gradients that grow, and biases that are not zero.
            parameter.uniform_(-1.5, 1.5)
    return layer


def problem(layer: Any, seed: int = 3) -> tuple[Tensor, States]:
    """An input, and a tensor of initial states a state."""
    torch.manual_seed(seed)
    directions = 2 if layer.bidirectional else 1
    states = [torch.randn(directions, B, H, dtype=torch.float64) for _ in layer.spec.states]
    return torch.randn(T, B, IN, dtype=torch.float64).requires_grad_(), tuple(s.requires_grad_() for s in states)


def flat(output: Tensor, states: Any) -> list[Tensor]:
    return [output, *((states,) if isinstance(states, Tensor) else states)]


def gradients(values: list[Tensor], layer: Any, x: Tensor, states: States, **options: Any) -> tuple[Tensor, ...]:
    """Of a loss over everything, for the input, the initial states and every parameter."""
    loss = torch.stack([(value * torch.arange(1.0, value.numel() + 1).cos().view_as(value)).sum() for value in values])
    return torch.autograd.grad(loss.sum(), [x, *states, *layer.parameters()], **options)


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def expected_values(name: str, layer: Any, x: Tensor, states: States, clip: float | None, **masks: Any) -> list[Tensor]:
    made = []
    for k in range(2 if layer.bidirectional else 1):
        p = layer.gate_parameters(reverse=bool(k))
        made.append(loop(name, p, x, tuple(s[k] for s in states), clip, **masks, reverse=bool(k)))
    finals = [torch.stack([last[i] for _, last in made]) for i in range(len(states))]
    return [torch.cat([output for output, _ in made], -1), *finals]


@pytest.mark.parametrize("clip", [0.1, 0.02, 0.0])
@pytest.mark.parametrize("name", STEPS)
def test_against_a_loop(name: str, clip: float) -> None:
    layer = layer_of(name)
    x, states = problem(layer)
    made = gradients(expected_values(name, layer, x, states, clip), layer, x, states, allow_unused=True)
    # What a cut leaves without a gradient has one of zero here.
    leaves = (x, *states, *layer.parameters())
    expected = tuple(torch.zeros_like(p) if d is None else d for d, p in zip(made, leaves, strict=True))
    plain = gradients(flat(*layer(x, states)), layer, x, states)
    assert not any(torch.allclose(a, b, rtol=1e-3) for a, b in zip(expected, plain, strict=True)), "too wide a bound"
    layer.recurrent_gradient_clip = clip
    for backend, recompute in (("cpu", False), ("cpu", True), ("reference", False)):
        layer.backend, layer.recompute = backend, recompute
        assert_equal(gradients(flat(*layer(x, states)), layer, x, states), expected)


@pytest.mark.parametrize("clip", [0.02, 0.0])
@pytest.mark.parametrize("name", ["LSTM", "GRUv3"])
def test_both_directions_with_lengths_and_resets(name: str, clip: float) -> None:
    layer = layer_of(name, bidirectional=True, recurrent_gradient_clip=clip)
    x, states = problem(layer)
    expected = gradients(expected_values(name, layer, x, states, clip, **MASKS), layer, x, states)
    for backend, recompute in (("cpu", False), ("cpu", True), ("reference", False)):
        layer.backend, layer.recompute = backend, recompute
        assert_equal(gradients(flat(*layer(x, states, **MASKS)), layer, x, states), expected)


def test_functional_op_and_single_step() -> None:
    layer = layer_of("LSTM", recurrent_gradient_clip=0.02)
    x, states = problem(layer)
    expected = gradients(flat(*layer(x, states)), layer, x, states)
    cells = rnncc.load("lstm")
    streams = x @ layer.weight_ih_l0.T + layer.bias_ih_l0
    output, last = cells.lstm(
        streams, layer.weight_hh_l0, [s[0] for s in states], recurrent_gradient_clip=0.02
    )  # fmt: skip
    assert_equal(gradients([output, *(s[None] for s in last)], layer, x, states), expected)
    step = cells.LSTMCell(IN, H, dtype=torch.float64, recurrent_gradient_clip=0.02)
    named = {name.removesuffix("_l0"): value for name, value in layer.named_parameters()}
    current: Any = tuple(s[0] for s in states)
    outputs = []
    for value in x:
        current = torch.func.functional_call(step, named, (value, current))
        outputs.append(current[0])
    assert_equal(gradients([torch.stack(outputs), *(s[None] for s in current)], layer, x, states), expected)


@pytest.mark.parametrize("name", ["LSTM", "GRUv3"])
def test_no_bound_changes_no_bit(name: str) -> None:
    layer = layer_of(name).float()
    x, states = (torch.randn(T, B, IN).requires_grad_(), tuple(s.detach().float() for s in problem(layer)[1]))
    found = []
    for clip in (None, math.inf, 1e30):
        layer.recurrent_gradient_clip = clip
        output, _ = layer(x, states)
        found.append(torch.autograd.grad(output.square().sum(), [x, *layer.parameters()]))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_clip_lets_nan_pass_and_a_cut_does_not(backend: str) -> None:
    layer = layer_of("Elman", backend=backend)
    x, states = problem(layer)
    gradient = torch.ones(T, B, H, dtype=torch.float64)
    gradient[-1, 0, 0] = math.nan
    for clip, reaches in ((1.0, True), (0.0, False)):
        layer.recurrent_gradient_clip = clip
        (d_x,) = torch.autograd.grad(layer(x, *states)[0], x, gradient)
        assert d_x[-1, 0].isnan().all() and d_x[:-1, 0].isnan().all() == reaches
        assert d_x[:, 1:].isfinite().all() and d_x[:-1].isfinite().all() != reaches


@pytest.mark.parametrize("clip", [0.3, 0.0])
def test_second_derivatives(clip: float) -> None:
    layer = layer_of("GRU", recurrent_gradient_clip=clip)
    x, states = problem(layer)

    def second(values: list[Tensor]) -> tuple[Tensor, ...]:
        first = gradients(values, layer, x, states, create_graph=True)
        return torch.autograd.grad(sum(d.square().sum() for d in first), [x, *layer.parameters()])  # type: ignore[arg-type]

    assert_equal(second(flat(*layer(x, states))), second(expected_values("GRU", layer, x, states, clip)))


@pytest.mark.long
def test_transforms_and_compilation() -> None:
    layer = layer_of("LSTM", recurrent_gradient_clip=0.02)
    x, states = problem(layer)
    named = dict(layer.named_parameters())

    def loss(named: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, named, (x[:, None],))[0]
        return output.square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 1))(named, x.detach())
    for b in range(B):
        expected = torch.autograd.grad(layer(x[:, b : b + 1])[0].square().sum(), list(named.values()))
        assert_equal(tuple(d[b] for d in found.values()), expected)
    expected = gradients(flat(*layer(x, states)), layer, x, states)
    for backend in ("cpu", "reference"):
        layer.backend = backend
        torch.compiler.reset()
        compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert_equal(gradients(flat(*compiled(x, states)), layer, x, states), expected)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_forward_mode_is_refused(backend: str | None) -> None:
    layer = layer_of("LSTM", backend=backend, recurrent_gradient_clip=0.02)
    x = problem(layer)[0].detach()
    with pytest.raises(NotImplementedError, match=r"forward-mode .* cannot go through recurrent_gradient_clip"):
        torch.func.jvp(lambda x: layer(x)[0], (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="cannot go through"):
        layer(forward_ad.make_dual(x, x))  # type: ignore[no-untyped-call]


def test_opcheck() -> None:
    op, given = arguments(make("lstm", "LSTM"))
    assert set(torch.library.opcheck(op, (*given[:7], [0.1], *given[8:])).values()) == {"SUCCESS"}
    with pytest.raises(RuntimeError, match="expected 1 constants, got 2"):
        op(*given[:7], [0.1, 0.2], *given[8:])


def test_the_option() -> None:
    cells = rnncc.load("lstm")
    layer = cells.LSTM(IN, H, recurrent_gradient_clip=0.5)
    assert repr(layer) == "LSTM(3, 4, recurrent_gradient_clip=0.5)"
    assert repr(cells.LSTMCell(IN, H, recurrent_gradient_clip=0)) == "LSTMCell(3, 4, recurrent_gradient_clip=0)"
    assert repr(cells.LSTM(IN, H)) == "LSTM(3, 4)"
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.recurrent_gradient_clip == 0.5
    makers: list[Callable[[Any], Any]] = [
        lambda clip: cells.LSTM(IN, H, recurrent_gradient_clip=clip),
        lambda clip: cells.LSTMCell(IN, H, recurrent_gradient_clip=clip),
        lambda clip: cells.lstm(
            torch.zeros(T, B, 4 * H), torch.zeros(4 * H, H), hidden_size=H, recurrent_gradient_clip=clip
        ),
    ]
    for given in makers:
        for clip in (-1, -0.5, math.nan):
            with pytest.raises(
                ValueError, match=r"recurrent_gradient_clip should not be negative, nor NaN, got: (-|nan)"
            ):
                given(clip)
        with pytest.raises(ValueError, match="too large for a float"):
            given(10**400)
        for wrong in ("1", True, torch.ones(1)):
            with pytest.raises(TypeError, match="recurrent_gradient_clip should be a number or None, got: "):
                given(wrong)
    with pytest.raises(ValueError, match="should not be negative"):
        layer.recurrent_gradient_clip = -0.5
    assert "no effect" in rnncc.load("mingru").minGRU(IN, H, recurrent_gradient_clip=1.0).explain()
    assert "no effect" not in layer.explain()
