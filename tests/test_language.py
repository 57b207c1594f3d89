"""The language, statement by statement: cells that no file ships, built, against their equations written in torch."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.language.read import from_text
from rnncc.language.source import Source
from tests.compiling import front

from .functional import op_of, streams_of, taken
from .language import (
    cells_gradients,
    cells_heads,
    cells_low_rank,
    cells_matrices,
    cells_names,
    cells_narrow,
    cells_shifts,
    cells_sizes,
    cells_time,
    cells_together,
    cells_vectors,
    cells_widened,
    cells_width,
)
from .language.loop import Case, Setting, compare
from .long import runs_all
from .packages import float64_package, reference_module

MODULES = (
    cells_gradients, cells_heads, cells_low_rank, cells_matrices, cells_names, cells_narrow, cells_shifts, cells_time,
    cells_sizes, cells_together, cells_vectors, cells_widened, cells_width,
)  # fmt: skip
CASES = [(module, case) for module in MODULES for case in module.CASES]
# The cells that have kernels in every run. The others take long to compile: eager torch computes them, but for --all.
COMPILED = (*cells_heads.CASES, *cells_matrices.CASES[::4], *cells_shifts.CASES[::2], *cells_width.CASES[1::6])
# Those that are computed again in every run.
RECOMPUTED = [case for index, (_, case) in enumerate(CASES) if index % 3 == 0 or case in COMPILED]
TOLERANCE = 1e-10


def has_kernels(case: Case) -> bool:
    return runs_all() or any(case is other for other in COMPILED)


@cache
def package(module: Any, with_kernels: bool) -> Any:
    """All cells of a table that have kernels, or all others, in one package."""
    text = "\n".join(case.text.strip() + "\n" for case in module.CASES if has_kernels(case) == with_kernels)
    name = module.__name__.split(".")[-1]
    return float64_package(text, name) if with_kernels else reference_module(from_text(f"<{name}>", text), name)


def built(module: Any, case: Case) -> Any:
    """The package of a case of a table."""
    return package(module, has_kernels(case))


def settings(case: Case) -> list[Setting]:
    """Alone; and with heads, two layers, both directions, given states, lengths (one of them 0) and resets."""
    # What needs I == H cannot stand on both directions of another layer; extra inputs can.
    layers = 1 if case.square else 2
    made = [
        Setting(),
        Setting(heads=case.heads, layers=layers, bidirectional=True, states=True, steps=4),
        Setting(heads=case.heads, bidirectional=True, states=True, lengths=(7, 0, 5), reset=True),
        Setting(lengths=(6, 7, 1), reset=True, layers=layers if runs_all() else 1),
    ]
    # What has no kernels: heads, layers, directions and given states; declared states, lengths and resets.
    return made if has_kernels(case) else made[1::2]


@pytest.mark.parametrize(("module", "case"), CASES, ids=[case.name for _, case in CASES])
def test_a_cell_does_what_its_equations_say(module: Any, case: Case) -> None:
    make = getattr(built(module, case), case.name)
    for seed, setting in enumerate(settings(case)):
        differences = compare(make, case, setting, seed, has_kernels(case))
        # `not <=`: a NaN is no agreement.
        assert not {name: value for name, value in differences.items() if not value <= TOLERANCE}, setting


@pytest.mark.parametrize("name", ["SplitFree", "Repeated"])
def test_verify_reads_heads_as_the_op_does(name: str) -> None:
    text = "\n".join(case.text.strip() + "\n" for case in cells_heads.CASES)
    (cell,) = (cell for cell, _ in front(Source("cells_heads.rnn", text)) if cell.name == name)
    assert any(case.heads == 2 for case in verify.cases_of(cell))
    assert verify.verify(getattr(package(cells_heads, True), name), cell, dtypes=(torch.float64,)).passed


def inputs_of(case: Case) -> dict[str, Tensor]:
    """What a call is given, 7 steps of 3 batch entries."""
    inputs = {"input": torch.randn(7, 3, 6 if case.square else 5, dtype=torch.float64)}
    return inputs | {name: torch.rand(*case.shape(name, 7), dtype=torch.float64) for name in case.extra}


def at(case: Case, inputs: dict[str, Tensor], steps: int | slice) -> dict[str, Tensor]:
    """The inputs at some of the steps."""
    return {name: value if name in case.per_sequence else value[steps] for name, value in inputs.items()}


def as_tuple(states: Any) -> tuple[Tensor, ...]:
    """Final states as a tuple."""
    return (states,) if isinstance(states, Tensor) else tuple(states)


def as_hx(states: tuple[Tensor, ...]) -> Any:
    """States as a layer takes them."""
    return states[0] if len(states) == 1 else states


@pytest.mark.always(dtype=[torch.float64], case=RECOMPUTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("module", "case"), CASES, ids=[case.name for _, case in CASES])
def test_what_is_computed_again_is_the_same(module: Any, case: Case, dtype: torch.dtype) -> None:
    """With recompute=True every gradient is the same to the last bit: directions, heads, delays, lengths, resets."""
    torch.manual_seed(7)
    width = 6 if case.square else 5
    options: dict[str, Any] = {"dtype": dtype, "num_heads": case.heads, "bidirectional": True, **case.arguments}
    layer = getattr(built(module, case), case.name)(width, 6, return_delays=True, **options)
    inputs = {name: value.to(dtype).requires_grad_() for name, value in inputs_of(case).items()}
    hx = [torch.rand_like(state).requires_grad_() for state in as_tuple(layer(**inputs)[1])]
    for mask in ({}, {"lengths": [7, 0, 5], "reset": torch.rand(7, 3) < 0.3}):
        found = []
        for recompute in (False, True):
            layer.recompute = recompute
            output, last = layer(**inputs, hx=as_hx(tuple(hx)), **mask)
            values = [value for value in (output, *as_tuple(last)) if value.requires_grad]
            ones = [torch.ones_like(value) for value in values]
            found.append(
                torch.autograd.grad(values, [*inputs.values(), *hx, *layer.parameters()], ones, allow_unused=True)
            )
        for again, kept in zip(found[1], found[0], strict=True):
            assert (again is None) == (kept is None)
            if kept is not None:
                torch.testing.assert_close(again, kept, atol=0, rtol=0, equal_nan=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", [False, True], ids=["declared", "given"])
@pytest.mark.parametrize(("module", "case"), CASES, ids=[case.name for _, case in CASES])
def test_steps_and_chunks_are_the_whole(module: Any, case: Case, given: bool) -> None:
    """Single steps, and chunks with return_delays, hand on all that the next step reads: outputs, the last states and
    the gradients of the first states."""
    torch.manual_seed(3)
    width = 6 if case.square else 5
    options: dict[str, Any] = {"dtype": torch.float64, "num_heads": case.heads, **case.arguments}
    layer = getattr(built(module, case), case.name)(width, 6, return_delays=True, **options)
    single = getattr(built(module, case), f"{case.name}Cell")(width, 6, **options)
    single.load_state_dict({name.replace("_l0", ""): value for name, value in layer.state_dict().items()})
    inputs = inputs_of(case)
    hx = None
    if given:
        hx = [torch.randn_like(state).requires_grad_() for state in as_tuple(layer(**inputs)[1])]
    output, last = layer(**inputs, hx=hx and as_hx(tuple(hx)))
    whole = [output, *as_tuple(last)]

    pieces, chunk = [], hx and as_hx(tuple(hx))
    for part in (slice(0, 1), slice(1, 1), slice(1, 3), slice(3, 7)):
        piece, chunk = layer(**at(case, inputs, part), hx=chunk)
        pieces.append(piece)
    chunks = [torch.cat(pieces), *as_tuple(chunk)]

    outputs, step = [], hx and as_hx(tuple(state[0] for state in hx))
    for t in range(7):
        made = single(**at(case, inputs, t), hx=step)
        value, step = made if single.spec.output != next(iter(case.states(6))) else (as_tuple(made)[0], made)
        outputs.append(value)
    steps = [torch.stack(outputs), *(state.unsqueeze(0) for state in as_tuple(step))]

    assert len(whole) == len(chunks) == len(steps)
    for one, two, three in zip(whole, chunks, steps, strict=True):
        torch.testing.assert_close(two, one, atol=TOLERANCE, rtol=TOLERANCE)
        torch.testing.assert_close(three, one, atol=TOLERANCE, rtol=TOLERANCE)
    for other in (chunks, steps):
        if hx is None:
            continue
        gradients = [
            torch.autograd.grad(
                [v for v in values if v.requires_grad],
                hx,
                [torch.ones_like(v) for v in values if v.requires_grad],
                retain_graph=True,
                allow_unused=True,
            )
            for values in (whole, other)
        ]
        for one, two in zip(*gradients, strict=True):
            torch.testing.assert_close(two, one, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.one_in(2, "masked")
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("module", "case"), CASES, ids=[case.name for _, case in CASES])
def test_the_functional_op_is_the_loops(module: Any, case: Case, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the streams and weights of a layer's loops, it gives the layer's result; or says why it cannot."""
    torch.manual_seed(5)
    width = 6 if case.square else 5
    options: dict[str, Any] = {"dtype": torch.float64, "num_heads": case.heads, **case.arguments}
    layer = getattr(built(module, case), case.name)(width, 6, return_delays=True, **options)
    spec = layer.spec
    mask = {"lengths": [6, 7, 0], "reset": torch.rand(7, 3) < 0.3} if masked else {}
    inputs = inputs_of(case)
    hx = tuple(torch.randn_like(state) for state in as_tuple(layer(**inputs)[1]))
    streams, (expected, last) = streams_of(layer, monkeypatch, lambda: layer(**inputs, hx=as_hx(hx), **mask))

    function = op_of(layer)
    states = [state[0] for state in hx[: len(hx) - len(spec.value_delays)]]
    sizes = {size.name: layer._sizes[0][size.name] for size in spec.sizes if size.is_keyword}
    given = dict(hidden_size=6, num_heads=case.heads, return_delays=True, constants=layer.constants, **sizes, **mask)
    names = taken(layer)
    if isinstance(names, str):
        outside = [s for segment in spec.segments for s in segment.streams if s.finished and not s.is_sequence]
        assert (outside[0].name if outside else spec.output) in names
        with pytest.raises(NotImplementedError, match=re.escape(names)):
            function([], [], states, **given)
        return
    weights = [getattr(layer, f"{name}_l0") for name in names[1]]
    if masked:
        weights += [getattr(layer, f"{s.name}0_l0") for s in spec.states if s.initial is None and not s.delay_of]
    output, finals = function(
        [streams[name] for name in names[0]] or torch.zeros(7, 3, 1, dtype=torch.float64), weights, states, **given
    )
    torch.testing.assert_close(output.expand_as(expected), expected, atol=TOLERANCE, rtol=TOLERANCE)
    for got, wanted in zip(as_tuple(finals), as_tuple(last), strict=False):
        torch.testing.assert_close(got, wanted[0], atol=TOLERANCE, rtol=TOLERANCE)


def test_delays_follow_lengths_resets_and_directions() -> None:
    """Delays hand on the values before the entry's own end, in the order of the direction."""
    text = "cell Old\nstate h, c = 0.5\nc[t] = 0.5*c[t-3] + W@x[t-1] + b\nh[t] = tanh(c[t-2] + W@x[t-2] + R@h[t-1])\n"
    layer = float64_package(text, "old").Old(2, 2, bidirectional=True, dtype=torch.float64, return_delays=True)
    assert "h[t], c[t]" not in layer.__doc__ and "c[t-1], c[t-2], x[t], x[t-1]" in layer.__doc__
    x = torch.randn(6, 3, 2, dtype=torch.float64)
    reset = torch.zeros(6, 3)
    reset[3, 1] = 1
    _, (h, c, c1, c2, x0, x1) = layer(x, lengths=[6, 4, 0], reset=reset)
    zero = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(x0[0], torch.stack((x[5, 0], x[3, 1], zero))) and torch.equal(
        x0[1], torch.stack((x[0, 0], x[0, 1], zero))
    )
    # In batch entry 1 the reset stands before step 3: nothing is older there.
    assert torch.equal(x1[0], torch.stack((x[4, 0], zero, zero))) and torch.equal(
        x1[1], torch.stack((x[1, 0], x[1, 1], zero))
    )
    half = torch.full_like(zero, 0.5)
    assert torch.equal(c1[0, 1:], torch.stack((half, half))) and torch.equal(c2[:, 2], torch.stack((half, half)))
    assert not torch.equal(c[0, 1], half) and h.shape == c.shape
    wanted = "hx must be a tuple of 6 tensors, for h, c, c[t-1], c[t-2], x[t], x[t-1]; got a tuple of 2 tensors"
    with pytest.raises(TypeError, match=re.escape(wanted)):
        layer(x, (h, c))
    module: Any = float64_package(text, "old")
    with pytest.raises(ValueError, match="return_delays=False would lose them"):
        module.OldCell(2, 2, return_delays=False)
    with pytest.raises(ValueError, match=r"the state x\[t\] would have different widths in different layers: \[3, 2\]"):
        module.Old(3, 2, 2, return_delays=True)
    assert len(module.Old(3, 2, 2, dtype=torch.float64)(x.new_zeros(2, 1, 3))[1]) == 2


SHAPED = """
cell Plain
state h
h[t] = tanh(W@x + R@h[t-1] + b)
cell Shaped
const act = tanh, L = 2, d = 1, gain = 2.0
state h
s[0] = h[t-d]
for l in 1..L:
    s[l] = act(R@s[l-1]*gain + (W@x if l == 1 else b))
h[t] = s[L]
"""


def test_constants_given_to_the_layer_or_to_compile() -> None:
    """Those that shape the program make another one, of this cell alone; a number is passed when the layer runs."""
    module = rnncc.compile(SHAPED, "shaped")
    given: dict[str, Any] = {"act": "sigmoid", "L": 1, "d": 3}
    layers = [
        module.Shaped(2, 3, gain=0.5, dtype=torch.float64, **given),
        rnncc.compile(SHAPED, "shaped", **given).Shaped(2, 3, gain=0.5, dtype=torch.float64),
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(6, 1, 2, dtype=torch.float64)
    parameters = layers[0].gate_parameters()
    assert set(parameters) == {"W_s_1", "R_s_1"}
    past = [torch.zeros(3, dtype=torch.float64)] * 3
    for t in range(6):
        past.append(torch.sigmoid(parameters["R_s_1"][0] @ past[-3] * 0.5 + parameters["W_s_1"] @ x[t, 0]))
    for layer in layers:
        torch.testing.assert_close(layer(x)[0][:, 0], torch.stack(past[3:]))
    assert set(module.Shaped(2, 3).gate_parameters()) == {"W_s_1", "R_s_1", "R_s_2", "b_s_2"}
    with pytest.raises(TypeError, match="gain should be a number, got: str"):
        module.Shaped(2, 3, gain="2")


def test_an_unknown_shaping_constant_is_an_error_of_every_cell() -> None:
    with pytest.raises(rnncc.RnnccError) as raised:
        rnncc.compile(SHAPED, "shaped", depth=3)
    assert [found.code for found in raised.value.diagnostics] == ["RNN235", "RNN235"]


def test_an_input_cannot_have_another_width_in_each_layer() -> None:
    module = rnncc.compile("cell Two\ninput x, y: I\nstate h\nh[t] = tanh(W@(x*y) + R@h[t-1] + b)\n", "two")
    module.Two(5, 5, 2)
    with pytest.raises(ValueError, match=r"the input y would have different widths in different layers: \[5, 6\]"):
        module.Two(5, 6, 2)


@pytest.mark.always(name=["DelayMix"])
@pytest.mark.parametrize("name", ["DelayMix", "EpiOut", "PackSplit", "Kinks"])
def test_what_is_not_finite_stays_in_its_batch_entry(name: str) -> None:
    module, case = next(entry for entry in CASES if entry[1].name == name)
    width = 6 if case.square else 5
    layer = getattr(built(module, case), name)(width, 6, bidirectional=True, dtype=torch.float64)
    x = torch.randn(7, 9, width, dtype=torch.float64)
    spoilt = x.clone()
    spoilt[3, 2], spoilt[4, 5] = float("nan"), float("inf")
    kept = [0, 1, 3, 4, 6, 7, 8]
    results = []
    for given in (x, spoilt):
        given.requires_grad_()
        output, _ = layer(given)
        output.backward(torch.ones_like(output))
        assert given.grad is not None
        results.append((output[:, kept], given.grad[:, kept]))
    for fine, beside in zip(*results, strict=True):
        assert torch.equal(fine, beside)


def test_padding_is_no_argument_of_a_function() -> None:
    """log and division meet zeros in no gradient."""
    text = "cell Logs\ninput x, gap: 1\nstate h\nparam k: scalar\nh[t] = tanh(W@x + R@h[t-1] + k*log(gap))/gap\n"
    layer = float64_package(text, "logs").Logs(2, 3, bidirectional=True, dtype=torch.float64)
    lengths, x = [4, 0, 2], torch.randn(4, 3, 2, dtype=torch.float64)
    gap = torch.rand(4, 3, 1, dtype=torch.float64) + 0.5
    gradients = []
    for pad in (0.0, float("nan"), 0.5):
        layer.zero_grad()
        padded = gap.clone()
        for entry, length in enumerate(lengths):
            padded[length:, entry] = pad
        output, last = layer(x, lengths=lengths, gap=padded)
        torch.autograd.backward((output**2).sum() + last.sum())
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    for zero, nan, half in zip(*gradients, strict=True):
        assert zero.isfinite().all()
        torch.testing.assert_close(zero, half)
        torch.testing.assert_close(nan, half)


def test_a_state_that_no_step_has_made_is_no_argument_of_a_later_loop() -> None:
    """An empty batch entry holds m = -inf, and -inf + inf would be NaN where a later loop or the output reads it."""
    text = (
        "cell Held\nstate h, m = -inf\noutput y\nparam k: vector\n"
        "m[t] = max(m[t-1] - 0.3, W@x + b)\nh[t] = tanh(R@h[t-1] + k*exp(m[t-1] - m[t]))\n"
        "y = elu(k*exp(m[t-1] - m[t])) + h[t]\n"
    )
    layer = float64_package(text, "held").Held(2, 3, bidirectional=True, dtype=torch.float64)
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    gradients = []
    for lengths, given in (([4, 0, 2], x), ([4, 2], x[:, [0, 2]])):
        output, last = layer(given, lengths=lengths)
        (output.square().sum() + last[0].sum()).backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
        layer.zero_grad()
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)
