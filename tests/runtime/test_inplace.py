"""A single step with inplace=True: it writes the new states into the tensors that it was given, or says why not."""

from __future__ import annotations

import io
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import rnncc
from tests.oracles import ORACLES, draw, relative_error
from tests.packages import float64_cell, float64_package
from tests.runtime.test_whole import called

IN, H, B, T = 3, 6, 4, 5
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
CLASSES = {
    "lstm": "LSTMCell", "gla": "GLACell", "gateddeltanet": "GatedDeltaNetCell", "mlstm": "mLSTMCell",
    "ttt_linear": "TTT_LinearCell",
}  # fmt: skip
# New states are old ones, moved: the eager loop returns the tensors that it was given, or views of them.
MOVED = """
cell Moved
state u, v, S: matrix(H, H)
output y
u[t] = v[t-1]
v[t] = u[t-1]
S[t] = T(S[t-1])
y = W@x + u[t-1]
"""


def make(file: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load(file), CLASSES[file])(IN, H, **DOUBLE, **options)


def states_of(step: Any, batch: int = B, **options: Any) -> tuple[Tensor, ...]:
    options = DOUBLE | options
    return tuple(torch.randn(batch, *state.shape(step._sizes[0]), **options) for state in step.spec.states)


def one(states: tuple[Tensor, ...]) -> Any:
    return states if len(states) > 1 else states[0]


def copied(states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(state.clone() for state in states)


def flat(results: Any) -> list[Tensor]:
    return pytree.tree_leaves(results)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, **DOUBLE)


@torch.no_grad()
def test_a_flag_is_true_or_false() -> None:
    step = rnncc.load("gru").GRUCell(3, 4)
    x, hx = torch.randn(2, 3), torch.zeros(2, 4)
    for flag in ("yes", 1, None):
        with pytest.raises(TypeError, match="inplace should be of type bool"):
            step(x, hx, inplace=flag)
    assert step(x, hx, inplace=np.bool_(False)) is not hx and not hx.any()
    assert step(x, hx, inplace=np.bool_(True)) is hx and hx.any()


@torch.no_grad()
def test_as_torch_s_cell() -> None:
    step, theirs = rnncc.load("nn_lstm").nn_LSTMCell(IN, H, **DOUBLE), nn.LSTMCell(IN, H, **DOUBLE)
    step.load_state_dict(theirs.state_dict())
    h, c = random(B, H), random(B, H)
    expected, places = (h.clone(), c.clone()), (h.data_ptr(), c.data_ptr())
    for x in random(T, B, IN):
        expected = theirs(x, expected)
        found = step(x, (h, c), inplace=True)
        assert found[0] is h and found[1] is c and (h.data_ptr(), c.data_ptr()) == places
        torch.testing.assert_close((h, c), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.always(file=("gla",))
@pytest.mark.parametrize("file", ["gla", "gateddeltanet", "mlstm", "ttt_linear"])
@torch.no_grad()
def test_matrix_states_as_a_loop_in_torch(file: str) -> None:
    (oracle,) = (each for each in ORACLES if each.cell == file and each.source == "paper")
    case = draw(oracle, seed=3, steps=T, batch=B, states=True, heads=1)
    dims = {name: oracle.sizes[name] for name in oracle.dims}
    step = getattr(float64_cell(file), CLASSES[file])(
        oracle.sizes["I"], oracle.sizes["H"], **DOUBLE, **dims, **oracle.constants
    )
    for name, view in step.gate_parameters().items():
        view.copy_(case.parameters[name].reshape(view.shape))
    with torch.enable_grad():  # one takes a gradient at every step
        expected = oracle.run(case, 1)
    assert case.states is not None
    shapes = [state.shape(step._sizes[0]) for state in step.spec.states]
    states = tuple(
        case.states[name].detach().clone().reshape(B, *shape) for name, shape in zip(oracle.states, shapes, strict=True)
    )
    for t in range(T):
        output, last = step(case.inputs["x"][t].detach(), one(states), inplace=True)
        assert all(a is b for a, b in zip(flat(last), states, strict=True))
        assert relative_error(output, expected.output[t]) < 1e-10
    for name, state in zip(oracle.states, states, strict=True):
        assert relative_error(state.reshape(expected.finals[name].shape), expected.finals[name]) < 1e-10


@pytest.mark.parametrize("file", ["lstm", "gla"])
@torch.no_grad()
def test_every_form_of_call(file: str) -> None:
    """Unbatched, an empty batch, by the eager loop, with a list, with state_dtype, frozen: as without inplace."""
    plain, wide = make(file), make(file, state_dtype=torch.float64)
    for step in (plain, wide, make(file, backend="reference"), make(file).eval().freeze()):
        for batch in (B, 1, 0, None):
            x, states = random(batch or 1, IN), states_of(step, 1 if batch is None else batch)
            if batch is None:
                x, states = x[0], tuple(state[0] for state in states)
            elif batch == 0:
                x = x[:0]
            expected = step(x, one(copied(states)))
            found = step(x, one(states), inplace=True)
            torch.testing.assert_close(found, expected, atol=0, rtol=0)
            assert type(found) is type(expected) and all(state in map(id, flat(found)) for state in map(id, states))
    x, states = random(B, IN), states_of(plain)
    expected = plain(x, copied(states))
    found = plain(x, list(states), inplace=True)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    bfloat = make(file, state_dtype=torch.float32).bfloat16()
    x, states = random(B, IN).bfloat16(), states_of(bfloat, dtype=torch.float32)
    expected = bfloat(x, one(copied(states)))
    torch.testing.assert_close(bfloat(x, one(states), inplace=True), expected, atol=0, rtol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", [None, "reference"])
@torch.no_grad()
def test_old_states_that_move(backend: str | None) -> None:
    step = float64_package(MOVED).MovedCell(IN, H, num_heads=2, backend=backend, **DOUBLE)
    a, b, s = states_of(step)
    old = copied((a, b, s))
    assert calls(step, random(B, IN), (a, b, s)) == (backend is None)
    assert torch.equal(a, old[1]) and torch.equal(b, old[0]) and torch.equal(s, old[2].mT)
    compiled: Any = torch.compile(step, fullgraph=True, backend="aot_eager")
    compiled(random(B, IN), (a, b, s), inplace=True)
    assert torch.equal(a, old[0]) and torch.equal(b, old[1]) and torch.equal(s, old[2])
    torch._dynamo.reset()


def test_where_autograd_records() -> None:
    step, x = make("gla"), random(B, IN)
    (state,) = states_of(step)
    old = state.clone()
    with pytest.raises(RuntimeError, match=r"GLA: with inplace=True the old states are lost.*torch\.no_grad"):
        step(x, state, inplace=True)
    step.requires_grad_(False)
    for given in ((x.clone().requires_grad_(), state), (x, state.clone().requires_grad_())):
        with pytest.raises(RuntimeError, match="old states are lost"):
            step(*given, inplace=True)
    assert torch.equal(state, old)
    # Without anything to differentiate, grad mode does not matter.
    expected = step(x, state)
    torch.testing.assert_close(step(x, state, inplace=True), expected, atol=0, rtol=0)
    # What an earlier backward would read is known to have changed.
    w = random(*state.shape).requires_grad_()
    loss = (w * state).sum()
    step(x, state, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def test_what_cannot_be_written_to() -> None:
    step, x = make("lstm"), random(B, IN)
    h, c = random(B, H), random(B, H)
    pair = random(B, 2 * H)
    cases: tuple[tuple[Any, type[Exception], str], ...] = (
        (None, ValueError, "hx must be given"),
        ((h, nn.Parameter(c)), TypeError, "plain tensors, got hx of type Parameter"),
        ((h, pair[:, H:]), ValueError, "contiguous"),
        ((h, random(1, H).expand(B, H)), ValueError, "contiguous"),
        ((h, h), ValueError, "share it"),
        ((pair.view(2 * B, H)[:B], pair.view(2 * B, H)[1 : B + 1]), ValueError, "share it"),
        ((h, c.float()), RuntimeError, "not the same dtype"),
        ((h, c[:2]), RuntimeError, r"Expected hidden\[1\] size"),
        (h, TypeError, "hx must be a tuple of 2 tensors"),
        ({"h": h}, TypeError, "got an object of type dict"),
    )
    old = h.clone(), c.clone()
    for hx, kind, message in cases:
        with pytest.raises(kind, match=message):
            step(x, hx, inplace=True)
    half, given = make("lstm").float(), random(B, H).bfloat16()
    with torch.autocast("cpu"), pytest.raises(TypeError, match=r"the state h must have the dtype torch.float32"):
        half(x.float(), (given, given.clone()), inplace=True)
    with pytest.raises(RuntimeError, match=r"a transform of torch\.func takes no inplace=True"):
        torch.func.vmap(lambda x: step(x, (h, c), inplace=True))(random(2, B, IN))
    assert torch.equal(h, old[0]) and torch.equal(c, old[1])
    with pytest.raises(TypeError, match="inplace"):
        rnncc.load("lstm").LSTM(IN, H)(x.float(), inplace=True)
    with pytest.raises(rnncc.RnnccError, match="an argument of every layer's call"):
        rnncc.compile("cell A\ninput x, inplace: H\nstate h\nh[t] = W@x + inplace\n")


class Decoder(nn.Module):
    """A step that keeps its states."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.step = make(file)

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        return self.step(x, one(states), inplace=True)


@pytest.mark.long
@pytest.mark.parametrize("file", ["lstm", "gla"])
@torch.no_grad()
def test_compiled_exported_and_traced(file: str) -> None:
    """All of them change the tensors of their caller."""
    model = Decoder(file)
    states, batch = states_of(model.step), torch.export.Dim.AUTO
    sizes = ({0: batch}, tuple({0: batch} for _ in states))
    torch._dynamo.reset()
    program = torch.export.export(model, (random(B, IN), *copied(states)), dynamic_shapes=sizes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are checked
        # Its check would run the model a second time, on states that the first run changed.
        trace = torch.jit.trace(model, (random(B, IN), *copied(states)), check_trace=False)  # type: ignore[no-untyped-call]
    forms: list[Any] = [
        torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager"), program.module(),
        torch.export.load(buffer).module(), trace,
    ]  # fmt: skip
    for form in forms:
        for size in (B, B + 3):
            x, own = random(size, IN), states_of(model.step, size)
            expected = model.step(x, one(copied(own)))
            found = form(x, *own)
            torch.testing.assert_close(flat(found), flat(expected), atol=1e-12, rtol=1e-12)
            torch.testing.assert_close(list(own), flat(expected)[-len(own) :], atol=1e-12, rtol=1e-12)
    torch._dynamo.reset()


def test_compiled_where_autograd_records() -> None:
    model = Decoder("lstm")
    torch._dynamo.reset()
    given = random(B, IN), random(B, H), random(B, H)
    with pytest.raises(Exception, match="old states are lost"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(*given)
    with pytest.raises(Exception, match="old states are lost"):
        torch.export.export(model, given)
    torch._dynamo.reset()


@torch.no_grad()
def test_fx_keeps_the_keyword() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = make("lstm")

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
            return self.step(x, (h, c), inplace=True)

    model = Model()
    traced, x, (h, c) = torch.fx.symbolic_trace(model), random(B, IN), states_of(model.step)
    expected = model.step(x, (h, c))
    found = traced(x, h, c)
    assert found[0] is h and found[1] is c
    torch.testing.assert_close((h, c), expected, atol=0, rtol=0)


def calls(step: Any, x: Tensor, states: tuple[Tensor, ...]) -> int:
    """How many times a step in place calls the op of a whole step."""
    names = called(partial(step, x, one(states), inplace=True))
    return sum(name.endswith("_whole_forward") for name in names)


@torch.no_grad()
def test_one_op_writes_where_it_may() -> None:
    """It allocates no state. Memory that it shares with something that it reads goes the long way."""
    for file in ("lstm", "gla"):
        step = make(file)
        states, wide = states_of(step), random(B, 2 * IN)
        for x in (random(B, IN), wide[:, IN:]):
            assert calls(step, x, states) == 1
    step = rnncc.load("lstm").LSTMCell(H, H, **DOUBLE)
    memory, c = random(B + 1, H), random(B, H)
    for x, h in ((memory[1:], memory[:B]), (memory[:B], memory[:B])):
        expected = step(x.clone(), (h.clone(), c.clone()))
        # The op declines, and runs again with states of its own.
        assert calls(step, x, (h, c)) == 2
        torch.testing.assert_close((h, c), expected, atol=0, rtol=0)


@torch.no_grad()
def test_tensors_that_torch_guards() -> None:
    """An inference tensor is written to in inference mode alone; what was freed has no memory."""
    step, x = make("gla"), random(B, IN)
    with torch.inference_mode():
        (state,) = states_of(step)
        expected = step(x, state.clone())
        torch.testing.assert_close(step(x, state, inplace=True), expected, atol=0, rtol=0)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        step(x, state, inplace=True)
    (plain,) = states_of(step)
    version = plain._version
    with torch.inference_mode():
        step(x, plain, inplace=True)
    assert plain._version == version + 1
    plain.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage holds 0 bytes"):
        step(x, plain, inplace=True)
