"""Single steps that one op computes, however many loops and products a layer has: as the long way computes them."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import rnncc
from rnncc import verify
from rnncc.stages.single import single
from tests.runtime.test_whole import LongWay, called, flat
from tests.shipped import STEMS, cells

# Three loops, functions of parameters, x itself, constants and sizes as numbers, an output that is no state, work after
# the loops, a matrix that changes.
TEXT = """
cell Many
const slope = 0.3
dim K = H
input x: H
state h, c = -1, S: matrix(H, K)
output y
param lam: vector, g: vector(num_heads)
local k: K
i, f = sigmoid(W@x + b)
c[t] = f*c[t-1] + slope*i*x
h[t] = exp(-exp(lam))*h[t-1] + layernorm(R@h[t-1] + c[t])
k = normalize(W@x)
S[t] = exp(-softplus(g))*S[t-1] + h[t]@T(k)
y = (S[t]@k)/sqrt(H) + softmax(c[t])*x
"""
# What each has beside others: a matrix state and gates of every kind; a learned start; three loops with stabilisers;
# sixteen loops and x itself; norms of products; states of several widths; older values, which heads share.
SHIPPED = ("gateddeltanet", "ttt_linear", "mlstm", "s6", "layernormlstm", "lru", "mesanet", "mamba3")
ALWAYS = ("Many", "lru")


# Cells of the tests below, which say what they are for.
SMALL = """
cell Low
state h
local low: 8
weights V: matrix
low = W@x
h[t] = sigmoid(V@low)*h[t-1] + tanh(W@x)

cell Four
state h
local v: 4
v = softmax(W@x)
h[t] = tanh(sum(v)*h[t-1] + W@x)

cell Joined
state h: H + I
u = W@x
h[t] = tanh(concat(u, x) + R@h[t-1])

cell JoinedTwice
state h: 2*H
u = W@x
h[t] = tanh(concat(u, x) + R@h[t-1])

cell Eye
state S: matrix(H, H) = 2*eye
output y
k = W@x
S[t] = S[t-1] + k@T(k)
y = S[t]@k

cell Other
state h, c
output c
i = sigmoid(W@x + R@h[t-1])
c[t] = i*c[t-1] + W@x
h[t] = tanh(c[t])

cell Further
input x: I, dt: 1, u: 3, gain: H per sequence = 1
param A: matrix(H, 3)
state h
h[t] = exp(-dt)*h[t-1] + tanh(W@x + A@u + gain*(R@h[t-1]))

cell Function
param A: matrix(H, H)
param g: vector
state h
h[t] = tanh(W@x + expm(A - T(A))@h[t-1] + exp(g)*h[t-1])
"""


@cache
def small() -> Any:
    """All of them in one package, with those of OUTPUTS."""
    return rnncc.compile(SMALL + cells_of_outputs())


def cell_class(name: str) -> Any:
    if name == "Many":
        return rnncc.compile(TEXT).ManyCell
    module = rnncc.load(name)
    (found,) = (each for each in dir(module) if each.lower() == f"{name}cell")
    return getattr(module, found)


def states_of(step: Any, batch: int) -> Any:
    made = tuple(torch.randn(batch, *state.shape(step._sizes[0])) for state in step.spec.states)
    return made if len(made) > 1 else made[0]


def reached(step: Any, batch: int) -> Any:
    """States after some steps: mesanet solves equations that random ones need not have."""
    hx: Any = None
    with torch.no_grad(), LongWay():
        for _ in range(3):
            made = step(torch.randn(batch, 12), hx)
            hx = made if step.spec.output == step.spec.states[0].name else made[1]
    return hx


def assert_same(found: Any, expected: Any, bound: float) -> None:
    assert [each.shape for each in flat(found)] == [each.shape for each in flat(expected)]
    assert isinstance(found, Tensor) == isinstance(expected, Tensor)
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.dtype == other.dtype and verify.relative_error(one, other) <= bound


@pytest.mark.always(name=ALWAYS)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", ["Many", *SHIPPED])
def test_one_op_computes_what_the_long_way_does(name: str, heads: int) -> None:
    """As exactly, too: what mesanet solves makes rounding errors larger, by either way."""
    torch.manual_seed(heads)
    step = cell_class(name)(12, 12, num_heads=heads)
    exact = copy.deepcopy(step).double()
    for batch in (1, 5):
        x, hx = torch.randn(batch, 12), reached(step, batch)
        wide = torch.randn(batch, 20)[:, 4:16]
        with torch.no_grad():
            assert called(partial(step, x, hx))[-1:] == [f"{name.lower()}_single_whole_forward"]
            for given in ((x, hx), (x,), (wide, hx)):
                doubled = tuple(_double(each) for each in given)
                with LongWay():
                    expected, truth = step(*given), exact(*doubled)
                assert_same(exact(*doubled), truth, 1e-11)
                found = step(*given)
                assert [(each.shape, each.dtype) for each in flat(found)] == [
                    (each.shape, each.dtype) for each in flat(expected)
                ]
                for one, other, true in zip(flat(found), flat(expected), flat(truth), strict=True):
                    allowed = 3 * verify.relative_error(other, true) + 1e-6
                    assert verify.relative_error(one, true) <= allowed


def _double(given: Any) -> Any:
    return given.double() if isinstance(given, Tensor) else tuple(each.double() for each in given)


def test_it_runs_on_with_its_own_states() -> None:
    """As a layer does, which runs another program."""
    module = rnncc.compile(TEXT)
    layer, step = module.Many(12, 12, num_heads=3), module.ManyCell(12, 12, num_heads=3)
    step.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(40, 3, 12)
    hx: Any = None
    with torch.no_grad():
        whole, last = layer(x)
        for t in range(40):
            y, hx = step(x[t], hx)
            assert verify.relative_error(y, whole[t]) < 1e-5
        for one, other in zip(hx, last, strict=True):
            assert verify.relative_error(one, other[0]) < 1e-5


def test_what_autograd_records_goes_the_long_way() -> None:
    step = cell_class("gla")(8, 8)
    x, hx = torch.randn(3, 8, requires_grad=True), states_of(step, 3)
    y, new = step(x, hx)
    (y.sum() + new.square().sum()).backward()
    assert x.grad is not None and all(each.grad is not None for each in step.parameters())
    with torch.no_grad():
        plain = step(x, hx)
    assert_same(plain, (y.detach(), new.detach()), 2e-6)


def test_frozen_weights_are_read_packed() -> None:
    step = cell_class("Many")(12, 12).eval()
    x, hx = torch.randn(2, 12), states_of(step, 2)
    with torch.no_grad():
        expected = step(x, hx)
        step.freeze()
        assert_same(step(x, hx), expected, 2e-6)
        step.weight_ih.mul_(2)
        with LongWay():
            doubled = step(x, hx)
        assert_same(step(x, hx), doubled, 2e-6)


def test_what_does_not_fit_is_told_as_by_the_long_way() -> None:
    step = cell_class("gla")(8, 8, num_heads=2)
    x, hx = torch.randn(3, 8), states_of(step, 3)
    with torch.no_grad():
        for given in (
            (x[:, :7], hx), (x, hx[:, :1]), (x, hx.flatten(1)), (x, hx[:2]), (x, hx.double()), (x.double(), hx),
            (x, (hx, hx)),
        ):  # fmt: skip
            with pytest.raises((TypeError, ValueError, RuntimeError)) as found:
                step(*given)
            with LongWay(), pytest.raises(found.type) as told:
                step(*given)
            assert str(found.value) == str(told.value)
        # One entry without the axis of the batch, and none.
        assert_same(step(x[0], hx[0]), tuple(each[0] for each in step(x[:1], hx[:1])), 2e-6)
        assert step(x[:0], hx[:0])[1].shape == (0, 2, 4, 2)


def test_heads_that_divide_no_width_go_the_long_way() -> None:
    """`low` has 8 numbers, whatever the heads, and a product reads it: three of them do not divide it."""
    x = torch.randn(2, 12)
    with torch.no_grad():
        for heads in (2, 3):
            step = small().LowCell(12, 12, num_heads=heads)
            assert ("low_single_whole_forward" in called(partial(step, x))) == (heads == 2)


def test_values_of_constant_width_are_not_cut_by_heads() -> None:
    for heads in (1, 2):
        step, x = small().FourCell(6, 6, num_heads=heads), torch.randn(2, 6)
        with torch.no_grad():
            found = step(x)
            with LongWay():
                assert_same(found, step(x), 2e-6)


@pytest.mark.parametrize("name", ["Joined", "JoinedTwice"])
def test_joined_widths_are_not_cut_by_heads(name: str) -> None:
    """concat(u, x) is all of u and then all of x, whatever the heads."""
    for heads in (1, 2, 3):
        step, x = getattr(small(), f"{name}Cell")(6, 6, num_heads=heads), torch.randn(2, 6)
        with torch.no_grad():
            found = step(x)
            with LongWay():
                assert_same(found, step(x), 2e-6)


def test_without_a_bias() -> None:
    step = cell_class("Many")(12, 12, bias=False)
    x = torch.randn(2, 12)
    with torch.no_grad():
        found = step(x)
        with LongWay():
            assert_same(found, step(x), 2e-6)


def test_a_start_that_is_no_number_is_given() -> None:
    step, x = small().EyeCell(4, 6, num_heads=2), torch.randn(3, 4)
    with torch.no_grad():
        found = step(x)
        with LongWay():
            assert_same(found, step(x), 2e-6)
            start = (2 * torch.eye(3)).expand(3, 2, 3, 3)
            assert_same(step(x), step(x, start), 2e-6)
        assert_same(step(x, start), found, 2e-6)


def test_an_output_that_is_another_state_stands_before_the_states() -> None:
    """One loop after one product, which the op of a whole layer runs: forward here, and the long way with gradients."""
    step, x = small().OtherCell(4, 6), torch.randn(3, 4)
    hx = torch.randn(3, 6), torch.randn(3, 6)
    with torch.no_grad():
        assert called(partial(step, x, hx))[-1:] == ["other_0_whole_forward"]
        found = step(x, hx)
        with LongWay():
            assert_same(found, step(x, hx), 2e-6)
    assert torch.equal(found[0], found[1][1]) and len(found[1]) == 2
    recorded = step(x, hx)
    recorded[0].sum().backward()
    assert_same(recorded, found, 2e-6)


# The first is made by torch, before any loop; no state reads another.
OUTPUTS = ("mean(heads(tanh(p)))", "W@x", "W@x + b", "x", "h[t-1]", "p", "1.5*x", "0.5")


def cells_of_outputs() -> str:
    """A cell for each."""
    lines: list[str] = []
    for number, output in enumerate(OUTPUTS):
        width = "num_heads" if "heads" in output else "H"
        lines += [f"cell Output{number}", "input x: H", "state h", "output y", "param p: vector(H)"]
        lines += [f"local y: {width}", "h[t] = tanh(W@x + R@h[t-1] + p)", f"y = {output}", ""]
    return "\n".join(["", *lines])


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("number", range(len(OUTPUTS)), ids=OUTPUTS.__getitem__)
def test_an_output_that_no_state_reads(number: int, heads: int) -> None:
    step = getattr(small(), f"Output{number}Cell")(6, 6, num_heads=heads)
    layer = getattr(small(), f"Output{number}")(6, 6, num_heads=heads)
    layer.load_state_dict({f"{name}_l0": value for name, value in step.state_dict().items()})
    x, h = torch.randn(3, 6), torch.randn(3, 6)
    with torch.no_grad():
        found, of_a_layer = step(x, h), layer(x[None], h[None])
        with LongWay():
            expected = step(x, h)
    assert_same(found, expected, 2e-6)
    assert_same((of_a_layer[0][0], of_a_layer[1][0]), expected, 2e-6)


def test_further_inputs_are_read_where_they_lie() -> None:
    step = small().FurtherCell(5, 6)
    x, hx, gain = torch.randn(2, 5), torch.randn(2, 6), torch.randn(2, 6)
    given = {"dt": torch.rand(2, 1), "u": torch.randn(2, 8)[:, 2:5], "gain": gain}
    with torch.no_grad():
        for further in (given, {"gain": given["gain"], "u": given["u"], "dt": given["dt"]}):
            assert called(partial(step, x, hx, **further))[-1:] == ["further_single_whole_forward"]
            found = step(x, hx, **further)
            with LongWay():
                assert_same(found, step(x, hx, **further), 2e-6)
        # One that is left out, or of another shape, is a matter of the long way.
        assert_same(step(x, hx, dt=given["dt"], u=given["u"]), step(x, hx, **given | {"gain": torch.ones(2, 6)}), 2e-6)
        with pytest.raises(RuntimeError, match=r"u\.size\(-1\) must be 3, got 4"):
            step(x, hx, **given | {"u": torch.randn(2, 4)})
        with pytest.raises(TypeError, match="needs the input dt"):
            step(x, hx, u=given["u"])
        with pytest.raises(TypeError):
            step(x, hx, **given, other=x)


def test_functions_of_matrices_are_made_before_it() -> None:
    step = small().FunctionCell(5, 6, num_heads=2).eval()
    x, hx = torch.randn(2, 5), torch.randn(2, 6)

    def both() -> None:
        assert called(partial(step, x, hx))[-1:] == ["function_single_whole_forward"]
        found = step(x, hx)
        with LongWay():
            assert_same(found, step(x, hx), 2e-6)

    with torch.no_grad():
        both()
        step.freeze()
        both()
        step.A.mul_(2)
        both()
    # With gradients, autograd records the functions.
    step(x, hx).sum().backward()
    assert step.A.grad is not None and step.A.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["leakyesn", "cfc", "retnet"])
def test_buffers_further_inputs_and_numbers_of_heads(name: str) -> None:
    step = cell_class(name)(4, 6)
    x, further = (
        torch.randn(2, 4),
        {each.name: torch.rand(2, each.width(step._sizes[0])) for each in step.spec.inputs[1:]},
    )
    with torch.no_grad():
        assert called(partial(step, x, **further))[-1:] == [f"{name}_single_whole_forward"]
        found = step(x, **further)
        with LongWay():
            assert_same(found, step(x, **further), 2e-6)


@pytest.mark.long
def test_which_shipped_cells_have_such_a_step() -> None:
    """Those have none whose operators are no loop's."""
    without = {stem for stem in STEMS for cell in cells(stem) if single(cell) is None}
    assert without == {"ltc_pairs", "mogrifierlstm", "ternarylstm"}


@pytest.mark.parametrize("batch", [1, 5, 16, 40])
def test_threads_do_not_change_results(batch: int) -> None:
    """Threads divide rows and columns of a product that is taken once, and entries and units of the step."""
    step, x = rnncc.load("lstm").LSTMCell(70, 256), torch.randn(batch, 70, requires_grad=True)
    frozen = copy.deepcopy(step).eval().freeze()
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3, 8):
            torch.set_num_threads(count)
            states = step(x)
            gradients = torch.autograd.grad(sum(states).sum(), [x, *step.parameters()])
            with torch.no_grad():
                found.append([*states, *gradients, *frozen(x)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
