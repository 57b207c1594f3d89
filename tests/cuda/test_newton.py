"""Newton's iterations on a GPU (`parallel_newton`): against float64 and against the walk, whether they settle or not,
and when they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc.verify import BOUNDS, relative_error
from tests import shipped
from tests.cuda import harness
from tests.cuda.harness import Call, launches_of
from tests.cuda.scans import ELEMENTWISE, Fill, assert_as, assert_true, draw_scan, loops_alone, package
from tests.cuda.test_calls import assert_same, in_a_graph, on_side_stream
from tests.cuda.test_scan import edges, in_chunks, saturated

pytestmark = [pytest.mark.gpu, pytest.mark.hopper]

CELLS = (*ELEMENTWISE, "rwkv4")
# Their steps take a few cycles: clusters of sixteen blocks or none.
QUICK = ("indrnn", "rwkv4")
# With which of them iterate: all, those of steps that are not quick, none.
SIZES = [
    (1, 2, 40, "none"), (7, 2, 40, "none"), (257, 1, 8, "others"), (1021, 2, 72, "others"), (1500, 1, 500, "all"),
    (1500, 1, 1000, "others"),
]  # fmt: skip
# Stays in [0, 1]; two carries that differ in their last bit are strangers some 30 steps later.
LOGISTIC = """cell Logistic
state h
weights u: vector
h[t] = u*(h[t-1]*(1 - h[t-1])) + W@x
"""
# Grows past what float32 holds.
GROWING = """cell Growing
state h
weights u: vector
h[t] = u*h[t-1] + tanh(h[t-1]) + W@x
"""


@cache
def newton(name: str) -> tuple[Any, Any]:
    """A cell's layer and op, with kernels that iterate."""
    cell = shipped.cells(name)[0].name
    module = rnncc.load(name, parallel_newton=True)
    return getattr(module, cell), loops_alone(getattr(module, cell))


def iterating(call: Call, name: str) -> Call:
    """A drawn call, "steps first", by the op that iterates."""
    return replace(call, op=newton(name)[1])


def walked(call: Call, name: str) -> Call:
    """The same by the op that walks."""
    return replace(call, op=package(name)[1])


def draw(
    name: str, steps: int, batch: int, hidden: int, *, gain: float = 1.0, dtype: torch.dtype = torch.float32, **kw: Any
) -> Call:
    """A call by the op that iterates, its weights `gain` times as large as they are initialised."""
    call = iterating(draw_scan(name, steps, batch, hidden, dtype, **kw), name)
    return replace(call, weights=tuple(gain * weight for weight in call.weights))


def forward_of(run: Callable[[], object]) -> list[str]:
    """Which forward kernels a call runs: their form."""
    with torch.no_grad():
        run()  # what runs once a process
        return [name.rsplit("_", 1)[1] for name in launches_of(run) if "_forward_" in name]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("steps", "batch", "hidden", "iterate"), SIZES)
def test_sizes(cell: str, steps: int, batch: int, hidden: int, iterate: str) -> None:
    call = draw(cell, steps, batch, hidden)
    assert ("newton" in forward_of(call.values)) == (iterate in (("all",) if cell in QUICK else ("all", "others")))
    assert_true(call, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
# Of indrnn and rwkv4 a backward may turn over by rounding (test_scan.py).
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in QUICK])
def test_16_bits(cell: str, dtype: torch.dtype) -> None:
    call = draw(cell, 521, 2, 72, dtype=dtype)
    assert "newton" in forward_of(call.values)
    assert_true(call, dtype)


# Rounding grows on and on in unicornn's oscillators: see test_where_rounding_grows.
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "unicornn"])
def test_many_steps(cell: str) -> None:
    """As the walk has them: the same steps, each from carries that differ by rounding."""
    call = draw(cell, 65_536, 1, 64)
    assert "newton" in forward_of(call.values)
    with torch.no_grad():
        assert_as(call.values(), walked(call, cell).values(), BOUNDS[torch.float32])


@pytest.mark.parametrize(
    ("cell", "gain"),
    [("unicornn", 1.0), *((cell, gain) for cell in ("brc", "paragru", "paralstm", "sru") for gain in (4.0, 20.0))],
)
def test_where_rounding_grows(cell: str, gain: float) -> None:
    """Whether tiles settle or are run in turns. Where the loop amplifies rounding, float64 is as far from the walk."""
    call = draw(cell, 5000, 1, 64, gain=gain)
    with torch.no_grad():
        found, expected, exact = call.values(), walked(call, cell).values(), call.exact().values()
    for name, value in expected.items():
        bound = max(BOUNDS[torch.float32], 4 * relative_error(value, exact[name]))
        assert relative_error(found[name], value) <= bound, name


@pytest.mark.parametrize("cell", CELLS)
def test_saturated_gates(cell: str) -> None:
    assert_true(draw(cell, 1100, 2, 72, fill=saturated), torch.float32)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", CELLS)
def test_resets_and_lengths(cell: str, reverse: bool) -> None:
    steps, batch = 1225, 6  # a tile of sixteen blocks with masks is 1024 steps
    lengths = torch.tensor([1225, 1024, 1025, 0, 1, 1224], device=harness.DEVICE)
    masks: tuple[dict[str, Any], ...] = ({"reset": edges(steps, batch)}, {"lengths": lengths})
    for mask in masks:
        call = draw(cell, steps, batch, 40, reverse=reverse, **mask)
        assert "newton" in forward_of(call.values)
        assert_true(call, torch.float32)


@pytest.mark.parametrize("cell", CELLS)
def test_chunks_are_one_call(cell: str) -> None:
    call = draw(cell, 1500, 2, 40)
    one, many = call.run(), in_chunks(call, 1, 300, 557, 1499, 1500)
    assert_as(many, {name: one[name] for name in many}, BOUNDS[torch.float32])


@pytest.mark.parametrize("cell", ["paralstm", "sru"])
def test_ways_of_calling(cell: str) -> None:
    """Twice, on another stream, in a CUDA graph: the same bits."""
    call = draw(cell, 5000, 1, 64)
    expected = call.run()
    assert_same(call.run(), expected)
    assert_same(on_side_stream(call.run), expected)
    assert_same(in_a_graph(call.run), expected)


def poisoned(value: float) -> Fill:
    def fill(values: Tensor) -> Tensor:
        values[300, 0, 3] = value
        values[900, 1, 5] = value
        return values

    return fill


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("cell", ["paragru", "paralstm", "sru", "unicornn"])
def test_what_is_not_finite_is_where_the_walk_has_it(cell: str, value: float) -> None:
    """Also behind a reset."""
    reset = torch.zeros(1300, 2, dtype=torch.bool, device=harness.DEVICE)
    reset[1000] = True
    call = draw(cell, 1300, 2, 40, fill=poisoned(value), reset=reset)
    with torch.no_grad():
        assert_as(call.values(), walked(call, cell).values(), BOUNDS[torch.float32])


def compiled(text: str, **keywords: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The output of a text's loop of one state, of pre-activations, `u` and the initial state."""
    op = getattr(rnncc.compile(text, **keywords), text.split()[1].lower())

    def run(x: Tensor, u: Tensor, h: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = op((x,), (u,), (h,))[0]
        return y

    return run


def chaotic(steps: int, hidden: int, u: float) -> tuple[Tensor, Tensor, Tensor]:
    """Small pre-activations, weights and initial states in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    x, h = torch.rand(steps, 1, hidden, generator=generator), torch.rand(1, hidden, generator=generator)
    return 1e-4 * x.to(harness.DEVICE), torch.full((hidden,), u, device=harness.DEVICE), h.to(harness.DEVICE)


def test_chaos_is_the_loop_itself() -> None:
    """No tile of the logistic map settles; run in turns it is the walk's, bit by bit. One that were taken for settled
    would go other ways."""
    given = chaotic(6000, 64, 3.9)
    walk, newton = (compiled(LOGISTIC, parallel_newton=wanted) for wanted in (False, True))
    assert forward_of(lambda: newton(*given)) == ["newton"]
    assert forward_of(lambda: walk(*given)) == ["tall"]
    expected = walk(*given)
    assert expected.isfinite().all() and expected[-100:].std() > 0.1
    assert torch.equal(newton(*given), expected)


def test_a_calm_channel_beside_a_chaotic_one() -> None:
    """Calm and chaotic channels of the same lanes, and the calm ones alone: both are the walk's."""
    x, u, h = chaotic(6000, 64, 3.9)
    u[::2] = 1.5
    walk, newton = (compiled(LOGISTIC, parallel_newton=wanted) for wanted in (False, True))
    assert torch.equal(newton(x, u, h), walk(x, u, h))
    u[:] = 1.5
    torch.testing.assert_close(newton(x, u, h), walk(x, u, h), atol=1e-6, rtol=1e-5)


def test_a_loop_that_overflows() -> None:
    given = chaotic(3000, 64, 1.2)
    walk, newton = (compiled(GROWING, parallel_newton=wanted) for wanted in (False, True))
    found, expected = newton(*given), walk(*given)
    finite = expected.isfinite()
    assert finite.any() and not finite.all()
    assert torch.equal(found.isfinite(), finite)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3, equal_nan=True)


def test_when_they_run() -> None:
    """Where enough blocks share the steps: not for few steps, many channels, or rows that begin anywhere."""
    for cell, steps, batch, hidden, dtype, form in (
        ("sru", 4096, 1, 64, torch.float32, "newton"),
        ("sru", 4096, 1, 1024, torch.bfloat16, "newton"),
        ("sru", 128, 1, 64, torch.float32, "tall"),
        ("sru", 4096, 1, 60, torch.bfloat16, "narrow"),
        ("sru", 600, 64, 1024, torch.bfloat16, "vectorised"),
        ("indrnn", 4096, 1, 64, torch.float32, "newton"),
        ("indrnn", 1024, 1, 64, torch.float32, "tall"),
        ("indrnn", 4096, 1, 1024, torch.bfloat16, "tall"),
    ):
        call = draw(cell, steps, batch, hidden, dtype=dtype)
        assert forward_of(call.values) == [form], (cell, steps, batch, hidden)


@pytest.mark.parametrize("cell", ["indrnn", "paralstm", "rwkv4"])
def test_both_directions_of_a_layer_are_one_launch(cell: str) -> None:
    layer = newton(cell)[0](40, 40, bidirectional=True).to(harness.DEVICE)
    exact = newton(cell)[0](40, 40, bidirectional=True).to(harness.DEVICE).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1100, 2, 40, device=harness.DEVICE)
    with torch.no_grad():
        forward = [form for form in forward_of(lambda: layer(x)) if form == "newton"]
        assert len(forward) == 1
        assert relative_error(layer(x)[0], exact(x.double())[0]) <= BOUNDS[torch.float32]
    assert "Newton's iterations" in layer.explain()
