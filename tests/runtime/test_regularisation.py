"""Zoneout, recurrent dropout and weight dropout against loops written out in torch, and the sequences of states."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.packages import float64_package
from tests.runtime.test_layers import BACKENDS, DOUBLE, IN, B, H, T, close, gradients, layer_class, tuple_of
from tests.runtime.test_packed import one_by_one, sequences

pytestmark = pytest.mark.usefixtures("float64_first")
ZONEOUT = {"h": 0.3, "c": 0.2}
Step = Callable[[dict[str, Tensor], Tensor, dict[str, Tensor], Callable[[str, Tensor], Tensor]], dict[str, Tensor]]


def lstm(p: dict[str, Tensor], x: Tensor, s: dict[str, Tensor], dropped: Callable[[str, Tensor], Tensor]) -> Any:
    """One step of the LSTM; its h is made of the new c."""
    gates = x @ p["weight_ih_l0"].T + dropped("h", s["h"]) @ p["weight_hh_l0"].T + p["bias_ih_l0"]
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * s["c"] + i.sigmoid() * g.tanh()
    return {"h": o.sigmoid() * c.tanh(), "c": c}


def gruv3(p: dict[str, Tensor], x: Tensor, s: dict[str, Tensor], dropped: Callable[[str, Tensor], Tensor]) -> Any:
    """One step of GRUv3, whose third product reads r*h[t-1]."""
    h, (w_r, w_z, w_n) = s["h"], (x @ p["weight_ih_l0"].T + p["bias_ih_l0"]).chunk(3, -1)
    r_r, r_z, r_n = p["weight_hh_l0"].chunk(3)
    r, z = (w_r + dropped("h", h) @ r_r.T).sigmoid(), (w_z + dropped("h", h) @ r_z.T).sigmoid()
    n = (w_n + (r * dropped("h", h)) @ r_n.T).tanh()
    return {"h": (1 - z) * n + z * h}


def written_out(step: Step, layer: Any, x: Tensor, states: dict[str, Tensor], masks: Mapping[str, Tensor]) -> Any:
    """The output and the final states of a loop in torch with these masks."""
    wide = {name: mask.expand(*x.shape[:2], H) for name, mask in masks.items()}
    parameters, outputs = dict(layer.named_parameters()), []
    for t, value in enumerate(x):

        def dropped(name: str, state: Tensor, t: int = t) -> Tensor:
            mask = wide.get(f"recurrent_dropout__{name}")
            return state if mask is None else state * mask[t]

        new = step(parameters, value, states, dropped)
        for name in new:
            if (mask := wide.get(f"zoneout__{name}")) is not None:
                new[name] = torch.where(mask[t] == 1, states[name], new[name]) if layer.training else (
                    mask[t] * states[name] + (1 - mask[t]) * new[name]
                )  # fmt: skip
        states = new
        outputs.append(states["h"])
    return torch.stack(outputs), tuple(states.values())


@pytest.mark.one_in(24)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("file", "name", "step", "zoneout", "dropout"),
    [
        ("lstm", "LSTM", lstm, ZONEOUT, 0.25),
        ("lstm", "LSTM", lstm, {"c": 0.5}, 0.0),
        ("gruv3", "GRUv3", gruv3, None, 0.5),
    ],
)
def test_against_torch(
    file: str, name: str, step: Step, zoneout: dict[str, float] | None, dropout: float, backend: str, training: bool
) -> None:
    options = {"zoneout": zoneout, "recurrent_dropout": dropout, "backend": backend, **DOUBLE}
    torch.manual_seed(0)
    layer = layer_class(file, name)(IN, H, **options).train(training)
    x = torch.randn(T, B, IN, **DOUBLE).requires_grad_()
    names = [state.name for state in layer.spec.visible_states()]
    given = {name: torch.randn(1, B, H, **DOUBLE).requires_grad_() for name in names}
    torch.manual_seed(5)
    output, last = layer(x, tuple(given.values()) if len(given) > 1 else given["h"])
    torch.manual_seed(5)
    masks = layer._draw_masks(layer._sizes[0], x)
    drawn = {name for name, value in (("zoneout", zoneout), ("recurrent_dropout", dropout)) if value}
    assert {mask.drawn for mask in layer.spec.masks} == drawn
    starts = {name: value[0] for name, value in given.items()}
    expected, expected_last = written_out(step, layer, x, starts, masks)
    wanted = [x, *given.values(), *layer.parameters()]
    finals = tuple(value[0] for value in tuple_of(last))
    ours = [output, *finals, *gradients(output, finals, wanted)]
    theirs = [expected, *expected_last, *gradients(expected, expected_last, wanted)]
    for own, value in zip(ours, theirs, strict=True):
        close(own, value)


def test_what_is_drawn() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, zoneout=ZONEOUT, recurrent_dropout=0.25)
    x = torch.zeros(400, 50, IN)
    torch.manual_seed(0)
    masks = layer._draw_masks(layer._sizes[0], x)
    # 120 000 draws: a deviation of six standard errors.
    for name, p in ZONEOUT.items():
        assert abs(masks[f"zoneout__{name}"].mean() - p) < 6 * (p * (1 - p) / 120_000) ** 0.5
        assert set(masks[f"zoneout__{name}"].flatten().tolist()) == {0, 1}
    kept = masks["recurrent_dropout__h"]
    assert kept.shape == (1, 50, H) and torch.isin(kept, torch.tensor([0, 4 / 3])).all()
    every = layer._draw_masks(layer._sizes[0], torch.zeros(1, 20_000, IN))["recurrent_dropout__h"]
    assert abs(every.mean() - 1) < 6 * (1 / 3 / 120_000) ** 0.5


def test_the_rest_reads_the_new_value() -> None:
    """With zoneout 1 the state stays where it was, and what follows the loop still sees what each step made."""
    text = "cell Read\nstate h\noutput y\nparam M: matrix\nh[t] = tanh(W@x + R@h[t-1] + b)\ny = M@h[t]"
    layer = float64_package(text).Read(IN, H, zoneout={"h": 1.0}, **DOUBLE)
    x = torch.randn(T, B, IN, **DOUBLE)
    output, last = layer(x)
    assert torch.equal(last, torch.zeros(1, B, H, **DOUBLE))
    close(output, (x @ layer.weight_ih_l0.T + layer.bias_ih_l0).tanh() @ layer.M_l0.T)


def test_a_state_that_starts_at_minus_infinity() -> None:
    """It is chosen, not mixed: 0 times infinity is no number. A number has no mean with an infinite start."""
    text = "cell Most\nstate m = -inf\noutput y\nm[t] = max(m[t-1] - 0.25, W@x)\ny = tanh(m[t])"
    layer = float64_package(text).Most(IN, H, zoneout=0.4, **DOUBLE)
    x = torch.randn(T, B, IN, **DOUBLE).requires_grad_()
    for training, p in ((True, 0.4), (False, 0.4), (True, 0.0), (False, 0.0), (False, 1.0)):
        layer.train(training).zoneout = p
        torch.manual_seed(5)
        output, last = layer(x)
        torch.manual_seed(5)
        masks = layer._draw_masks(layer._sizes[0], x)["zoneout__m"].expand(T, B, H)
        m, outputs = x.new_full((B, H), -torch.inf), []
        for value, mask in zip(x, masks, strict=True):
            new = torch.maximum(m - 0.25, value @ layer.weight_ih_l0.T)
            outputs.append(new.tanh())
            started = torch.where(m.isinf(), 0, m)
            m = torch.where(mask == 1, m, torch.where(m.isinf(), new, mask * started + (1 - mask) * new))
        assert torch.equal(last[0].isinf(), m.isinf()) and m.isinf().all() == (p == 1)
        weights, seen = torch.randn(T, B, H, **DOUBLE), torch.where(m.isinf(), 0, m)
        ours = [output, torch.where(last[0].isinf(), 0, last[0])]
        theirs = [torch.stack(outputs), seen]
        for values in (ours, theirs):
            loss = (values[0] * weights).sum() + values[1].square().sum()
            values += list(torch.autograd.grad(loss, [x, *layer.parameters()]))
        for own, value in zip(ours, theirs, strict=True):
            close(own, value)


def test_seeds_checkpoints_directions() -> None:
    layer = layer_class("lstm", "LSTM")(
        IN, H, 2, bidirectional=True, zoneout=ZONEOUT, recurrent_dropout=0.5, weight_dropout=0.5, dropout=0.2
    )
    x = torch.randn(T, B, IN, requires_grad=True)
    results = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.manual_seed(0)
        output, _ = run(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_lengths_and_packed() -> None:
    """Without training, whatever the form; in training, each sequence of a batch has a mask of its own."""
    layer = layer_class("lstm", "LSTM")(IN, H, bidirectional=True, zoneout=ZONEOUT, recurrent_dropout=0.5, **DOUBLE)
    values = sequences((4, 0, 9, 1))
    rows, offsets = torch.cat(values), torch.tensor([0, 4, 4, 13, 14])
    states = [torch.randn(2, 4, H, **DOUBLE) for _ in range(2)]
    layer.eval()
    output, last = layer(rows, tuple(states), offsets=offsets)
    expected, expected_last = one_by_one(layer, values, states)
    for own, value in zip((output, *last), (expected, *expected_last), strict=True):
        close(own, value)
    padded = nn.utils.rnn.pad_sequence(values)
    _, last = layer(padded, tuple(states), lengths=torch.tensor([4, 0, 9, 1]))
    for own, value in zip(last, expected_last, strict=True):
        close(own, value)
    layer.train()
    same = torch.randn(3, 1, IN, **DOUBLE).repeat(1, 2, 1)
    output, _ = layer(same.transpose(0, 1).reshape(6, IN), offsets=torch.tensor([0, 3, 6]))
    assert not torch.equal(output[:3], output[3:])


def test_compiles_whole() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, zoneout=ZONEOUT, recurrent_dropout=0.5)
    x = torch.randn(T, B, IN)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for run in (compiled, layer):
        torch.manual_seed(0)
        results.append(run(x)[0])
    assert torch.equal(*results)


def test_copies_and_single_steps() -> None:
    layer = layer_class("lstm", "LSTM")(IN, H, zoneout=ZONEOUT).eval()
    x = torch.randn(T, B, IN)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0]) and "zoneout={'h': 0.3, 'c': 0.2}" in repr(other)
    step = layer_class("lstm", "LSTMCell")(IN, H, zoneout=ZONEOUT).eval()
    step.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    states: Any = None
    for value in x:
        states = step(value, states)
    assert torch.allclose(states[0], layer(x)[1][0][0], atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_weight_dropout(training: bool) -> None:
    theirs = nn.LSTM(IN, H, **DOUBLE)
    ours = layer_class("lstm", "LSTM").from_torch(theirs, weight_dropout=0.5).train(training)
    x = torch.randn(T, B, IN, **DOUBLE)
    torch.manual_seed(3)
    output, _ = ours(x)
    torch.manual_seed(3)
    dropped = nn.functional.dropout(theirs.get_parameter("weight_hh_l0"), 0.5, training)
    parameters = dict(theirs.named_parameters()) | {"weight_hh_l0": dropped}
    expected, _ = torch.func.functional_call(theirs, parameters, x)
    close(output, expected)
    (own,) = torch.autograd.grad(output.square().sum(), ours.weight_hh_l0)
    (value,) = torch.autograd.grad(expected.square().sum(), theirs.get_parameter("weight_hh_l0"))
    close(own, value)


def test_errors() -> None:
    LSTM, minGRU = layer_class("lstm", "LSTM"), layer_class("mingru", "minGRU")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (LSTM, {"zoneout": {"q": 0.1}}, "no state 'q'; its states are h, c"),
        (LSTM, {"zoneout": {"h": 1.1}}, r"zoneout\['h'\] should be a number in range"),
        (LSTM, {"recurrent_dropout": -0.1}, "recurrent_dropout should be a number in range"),
        (LSTM, {"recurrent_dropout": None}, "recurrent_dropout should be a number in range"),
        (LSTM, {"weight_dropout": 2}, "weight_dropout should be a number in range"),
        (minGRU, {"weight_dropout": 0.1}, "multiply by no matrix"),
        (minGRU, {"recurrent_dropout": 0.1}, "no matrix product of minGRU reads"),
        (LSTM, {"return_sequences_of": ("q",)}, "sequences of h, c, not of 'q'"),
    ]
    for layer, keywords, message in cases:
        with pytest.raises(ValueError, match=message):
            layer(IN, H, **keywords)
    for keywords in ({"zoneout": "h"}, {"zoneout": ["h"]}, {"return_sequences_of": "c"}):
        with pytest.raises(TypeError, match="should be a"):
            LSTM(IN, H, **keywords)
    for wrong in (1.1, -0.1, True):
        with pytest.raises(ValueError, match="zoneout should be a number in range"):
            LSTM(IN, H, zoneout=wrong)

    class Derived(LSTM):  # type: ignore[misc, valid-type]
        pass

    with pytest.raises(ValueError, match="cannot add them"):
        Derived(IN, H, zoneout=ZONEOUT)


def test_a_number_is_the_zoneout_of_every_state() -> None:
    LSTM, LSTMCell = layer_class("lstm", "LSTM"), layer_class("lstm", "LSTMCell")
    one, both = LSTM(IN, H, zoneout=0.25), LSTM(IN, H, zoneout={"h": 0.25, "c": 0.25})
    assert one.zoneout == both.zoneout == LSTMCell(IN, H, zoneout=0.25).zoneout and type(one) is type(both)
    assert type(LSTM(IN, H, zoneout=0)) is LSTM
    one.load_state_dict(both.state_dict())
    x = torch.randn(T, B, IN)
    outputs = []
    for layer in (one, both):
        torch.manual_seed(0)
        outputs.append(layer(x)[0])
    assert torch.equal(*outputs)
    # Later it is that of every state that has zoneout.
    one.zoneout = 0.5
    assert one.zoneout == {"h": 0.5, "c": 0.5}
    some = LSTM(IN, H, zoneout={"h": 0.1})
    some.zoneout = 0.5
    assert some.zoneout == {"h": 0.5}
    some.zoneout = 0
    assert not any(some.zoneout.values())
    with pytest.raises(ValueError, match="made without zoneout of h, c"):
        LSTM(IN, H).zoneout = 0.5


@pytest.mark.parametrize("training", [True, False])
def test_probabilities_that_are_set_later(training: bool) -> None:
    theirs = nn.LSTM(IN, H, **DOUBLE)
    LSTM, LSTMCell = layer_class("lstm", "LSTM"), layer_class("lstm", "LSTMCell")
    layer = LSTM.from_torch(theirs, zoneout={"h": 0.9}, recurrent_dropout=0.9).train(training)
    x = torch.randn(T, B, IN, **DOUBLE)
    layer.recurrent_dropout = 0
    for nothing in ({}, None, {"h": 0, "c": 0}):
        layer.zoneout = nothing
        close(layer(x)[0], theirs(x)[0])
    assert "recurrent_dropout" not in repr(layer)
    layer.zoneout = {"h": 1.0}
    assert layer.zoneout == {"h": 1.0} and "zoneout={'h': 1.0}" in repr(layer)
    assert not layer(x)[0].any()

    plain, step = LSTM.from_torch(theirs), LSTMCell(IN, H)
    for module in (plain, step):
        given: list[tuple[str, Any]] = [("zoneout", {"h": 0.9}), ("recurrent_dropout", 0.9)]
        for name, value in given:
            with pytest.raises(ValueError, match=f"this {type(module).__name__} was made without {name[:7]}.*another"):
                setattr(module, name, value)
        with pytest.raises(TypeError, match="does not support item assignment"):
            module.zoneout["h"] = 0.9
        assert "zoneout" not in repr(module) and "recurrent_dropout" not in repr(module)
    close(plain(x)[0], theirs(x)[0])
    with pytest.raises(ValueError, match="without zoneout of c"):
        layer.zoneout = {"h": 0.1, "c": 0.1}
    given = [("zoneout", {"h": 2}), ("recurrent_dropout", -1)]
    for name, value in given:
        with pytest.raises(ValueError, match="in range"):
            setattr(layer, name, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_of_states(backend: str) -> None:
    layer = layer_class("lstm", "LSTM")(
        IN, H, 2, bidirectional=True, batch_first=True, return_sequences_of=("c",), backend=backend, **DOUBLE
    )
    x = torch.randn(B, T, IN, **DOUBLE)
    lengths = torch.tensor([T, 1, 4])
    output, (_, c), found = layer(x, lengths=lengths)
    assert list(found) == ["c"] and found["c"].shape == output.shape
    # What each step of the last layer's forward direction left: the final state of a sequence that ends there.
    for t in range(1, 5):
        close(found["c"][2, t - 1, :H], states_at(layer, x, lengths, t)[2])
    assert found["c"][1, 1:].abs().max() == 0
    close(found["c"][torch.arange(B), lengths - 1][:, :H], c[2])
    (gradient,) = torch.autograd.grad(found["c"].square().sum(), layer.weight_hh_l1)
    assert gradient.abs().max() > 0


def states_at(layer: Any, x: Tensor, lengths: Tensor, steps: int) -> Tensor:
    """c of the last layer, forward direction, after `steps` steps; the first layer runs whole."""
    first = layer_class("lstm", "LSTM")(IN, H, bidirectional=True, batch_first=True, **DOUBLE)
    first.load_state_dict({k: v for k, v in layer.state_dict().items() if "_l0" in k})
    last = layer_class("lstm", "LSTM")(2 * H, H, batch_first=True, **DOUBLE)
    names = {k: k.replace("_l1", "_l0") for k in layer.state_dict() if k.endswith("_l1")}
    last.load_state_dict({new: layer.state_dict()[old] for old, new in names.items()})
    hidden, _ = first(x, lengths=lengths)
    c: Tensor = last(hidden[:, :steps], lengths=lengths.clamp(max=steps))[1][1]
    return c[0]


def test_a_single_step_has_no_mask_of_a_sequence() -> None:
    with pytest.raises(TypeError, match="LSTMCell takes no recurrent_dropout"):
        layer_class("lstm", "LSTMCell")(IN, H, recurrent_dropout=0.3)
