"""Cells with matrix states on a CPU, at sizes and lengths that divide nothing: training keeps their states at borders,
every 32 steps, and steps again between these. Against the oracles' loops, in float64: values and every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.oracles import ORACLES, Case, Oracle, draw, relative_error
from tests.packages import float64_cell, float64_package

TOLERANCE = 1e-9
# Of each cell heads, H and K: a key of one number, keys longer and shorter than values, widths that are no multiples
# of what a vector register holds.
SHAPES = {
    "gateddeltanet": ((1, 7, 1), (2, 6, 10), (3, 9, 3)),
    "mlstm": ((1, 5, 9), (2, 10, 2), (3, 6, 12)),
    "ttt_linear": ((1, 9, 0), (2, 10, 0), (3, 15, 0)),
    "plasticity": ((1, 9, 0), (2, 6, 0), (3, 3, 0)),
    "masslstm": ((1, 5, 0), (3, 6, 0)),
    "ntm": ((1, 6, 0), (2, 6, 0)),
}
# Those that run always.
USUAL = ("gateddeltanet", "plasticity", "masslstm")
# Into how many parts the calls are cut, one for each of a cell's shapes; NTM's loop is long.
PARTS = {cell: len(shapes) for cell, shapes in SHAPES.items()} | {"ntm": 5}
LENGTHS = (1, 31, 32, 33, 65, 100)
BATCH = 3


@dataclass(frozen=True, slots=True)
class Call:
    """How a layer is called. `packed`: it is given a PackedSequence of the lengths."""

    steps: int
    states: bool = False
    backwards: bool = False
    both: bool = False
    lengths: tuple[int, ...] = ()
    reset: bool = False
    packed: bool = False
    recompute: bool = False


CALLS = (
    *(Call(steps, states=steps % 2 == 1) for steps in LENGTHS),
    *(Call(steps, states=steps % 2 == 0, backwards=True) for steps in LENGTHS[2:]),
    Call(65, states=True, both=True, lengths=(65, 0, 33)),
    Call(66, lengths=(0, 64, 32), reset=True),
    Call(100, states=True, lengths=(97, 32, 0), reset=True, backwards=True),
    Call(70, states=True, both=True, reset=True),
    Call(66, states=True, lengths=(33, 66, 1), packed=True),
    Call(40, both=True, lengths=(40, 32, 7), packed=True),
    Call(67, states=True, recompute=True, lengths=(67, 33, 2)),
)
NAMED = [(cell, number) for cell, shapes in SHAPES.items() for number in range(len(shapes))]


def oracle_of(cell: str, heads: int, hidden: int, keys: int) -> Oracle:
    """The cell's oracle, at these sizes."""
    (found,) = (oracle for oracle in ORACLES if oracle.cell == cell and oracle.source == "paper")
    sizes = {**found.sizes, "H": hidden, **({"K": keys} if keys else {})}
    return replace(found, sizes=sizes, num_heads=(heads,))


def tame(oracle: Oracle, case: Case) -> Case:
    """The case with smaller parameters: a hundred steps with large ones magnify every rounding error."""
    with torch.no_grad():
        for name, value in case.parameters.items():
            if name not in oracle.ranges:
                value.mul_(0.5)
    return case


def one_way(
    oracle: Oracle, case: Case, call: Call, heads: int, reset: Tensor | None, backwards: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and the final states by the oracle: entry by entry, from one reset to the next."""
    steps, own = call.steps, replace(case, states=None)
    outputs, finals = [], []
    for entry in range(BATCH):
        length = call.lengths[entry] if call.lengths else steps
        starts = [t for t in range(1, length) if reset is not None and reset[t, entry]]
        pieces = list(zip([0, *starts], [*starts, length], strict=True)) if length else []
        states = {name: value[entry : entry + 1] for name, value in case.states.items()} if case.states else None
        if reset is not None and length and reset[0, entry] and not backwards:
            states = None
        # No step at all makes no change: the states of an empty sequence are those that it starts from.
        x = {name: value[:1, entry : entry + 1] for name, value in case.inputs.items()}
        last = states or oracle._own(replace(own, inputs=x), heads)
        found = torch.zeros(steps, oracle.sizes["H"], dtype=torch.float64)
        rows: dict[int, Tensor] = {}
        for first, end in reversed(pieces) if backwards else pieces:
            part = {name: value[first:end, entry : entry + 1] for name, value in case.inputs.items()}
            if backwards:
                part = {name: value.flip(0) for name, value in part.items()}
            made = oracle.run(Case(case.parameters, part, states), heads)
            rows[first] = (made.output.flip(0) if backwards else made.output)[:, 0]
            last, states = made.finals, None
        if rows:
            found = torch.cat([*(rows[first] for first in sorted(rows)), found[length:]])
        outputs.append(found)
        finals.append({name: value[0] for name, value in last.items()})
    return torch.stack(outputs, 1), {name: torch.stack([each[name] for each in finals]) for name in oracle.states}


def layer_of(oracle: Oracle, cases: list[Case], call: Call, heads: int) -> Any:
    make = next(value for name, value in vars(float64_cell(oracle.cell)).items() if name.lower() == oracle.cell)
    dims = {name: oracle.sizes[name] for name in oracle.dims}
    layer = make(
        oracle.sizes["I"], oracle.sizes["H"], num_heads=heads, bidirectional=call.both, reverse=call.backwards,
        recompute=call.recompute, dtype=torch.float64, **dims, **oracle.constants,
    )  # fmt: skip
    assert "CPU kernels" in layer.explain()
    with torch.no_grad():
        for number, case in enumerate(cases):
            views = layer.gate_parameters(0, reverse=number == 1)
            assert views.keys() == case.parameters.keys()
            for name, view in views.items():
                view.copy_(case.parameters[name].reshape(view.shape))
    return layer


def gradients(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, found, strict=True)]


def compared(oracle: Oracle, call: Call, heads: int) -> dict[str, float]:
    """The relative error of the output, the final states, and the gradients of all that goes in."""
    directions = 2 if call.both else 1
    cases = [
        tame(oracle, draw(oracle, seed=7 + number, steps=call.steps, batch=BATCH, states=call.states, heads=heads))
        for number in range(directions)
    ]
    cases[1:] = [replace(case, inputs=cases[0].inputs) for case in cases[1:]]
    generator = torch.Generator().manual_seed(3)
    reset = torch.rand(call.steps, BATCH, generator=generator) < 0.06 if call.reset else None
    if reset is not None:
        reset[0, 1] = reset[min(32, call.steps - 1), 2] = True
    ways = [
        one_way(oracle, case, call, heads, reset, call.backwards or number == 1) for number, case in enumerate(cases)
    ]
    expected = {"output": torch.cat([way[0] for way in ways], -1)}
    expected |= {name: torch.stack([way[1][name] for way in ways]) for name in oracle.states}

    layer = layer_of(oracle, cases, call, heads)
    inputs = {name: value.detach().clone().requires_grad_() for name, value in cases[0].inputs.items()}
    given = [
        torch.stack([case.states[name] for case in cases if case.states]).detach().requires_grad_()
        for name in (oracle.states if call.states else ())
    ]
    hx = None if not given else given[0] if len(given) == 1 else tuple(given)
    options: dict[str, Any] = {} if reset is None else {"reset": reset}
    extra: dict[str, Any] = {name: value for name, value in inputs.items() if name != "x"}
    if call.packed:
        packed = pack_padded_sequence(inputs["x"], torch.tensor(call.lengths), enforce_sorted=False)
        extra = {
            name: pack_padded_sequence(value, torch.tensor(call.lengths), enforce_sorted=False)
            for name, value in extra.items()
        }
        output, last = layer(packed, hx, **extra)
        assert isinstance(output, PackedSequence)
        output, _ = pad_packed_sequence(output, total_length=call.steps)
    else:
        if call.lengths:
            options["lengths"] = list(call.lengths)
        output, last = layer(inputs["x"], hx, **extra, **options)
    ends = last if isinstance(last, tuple) else (last,)
    found = {"output": output, **dict(zip(oracle.states, ends, strict=True))}

    weights = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in found.items()
    }

    def loss(values: dict[str, Tensor]) -> Tensor:
        # mLSTM's m is -inf before the first step.
        terms = [(torch.where(value.isfinite(), value, 0) * weights[name]).sum() for name, value in values.items()]
        return torch.stack(terms).sum()

    names = [f"d {name}" for name in (*inputs, *(oracle.states if call.states else ()))]
    wanted = [*cases[0].inputs.values(), *(v for case in cases for v in (case.states or {}).values())]
    parameters = [value for case in cases for value in case.parameters.values()]
    made = gradients(loss(expected), [*wanted, *parameters])
    loss(found).backward()  # type: ignore[no-untyped-call]
    ours = [value.grad if value.grad is not None else torch.zeros_like(value) for value in (*inputs.values(), *given)]
    states = len(given)
    of_states = [torch.stack(made[len(inputs) + i : len(wanted) : states]) for i in range(states)]
    theirs = [*made[: len(inputs)], *of_states]
    pairs = {name: (a, b) for name, a, b in zip(names, ours, theirs, strict=True)}
    for number, case in enumerate(cases):
        grads = layer.gate_parameters(0, reverse=number == 1, grad=True)
        for index, name in enumerate(case.parameters):
            value = made[len(wanted) + number * len(case.parameters) + index]
            pairs[f"d {name} of {number}"] = (torch.zeros_like(value) if grads[name] is None else grads[name], value)
    errors = {name: relative_error(a.reshape(b.shape), b) for name, (a, b) in pairs.items()}
    for name, value in expected.items():
        assert torch.equal(value.isfinite(), found[name].isfinite()), name
        finite = value.isfinite()
        errors[name] = relative_error(found[name][finite], value[finite])
    return errors


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Threads cost more than they give on values of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.always(number=(1,), cell=("gateddeltanet", "masslstm"))
@pytest.mark.parametrize(("cell", "number"), NAMED, ids=str)
def test_training_equals_the_loop(cell: str, number: int) -> None:
    heads, hidden, keys = SHAPES[cell][number]
    oracle = oracle_of(cell, heads, hidden, keys)
    for call in CALLS[number :: PARTS[cell]]:
        errors = compared(oracle, call, heads)
        # `not <=`: a NaN is no agreement.
        assert not {name: error for name, error in errors.items() if not error <= TOLERANCE}, call


PER_SEQUENCE = """
cell Given
dim K = 8
input u: 1 per sequence, g: H per sequence
state S: matrix(H, K)
output y
local k: K
k = tanh(W@x + b)
v = tanh(W@x + g)
S[t] = sigmoid(u)*S[t-1] + v@T(k)
y = S[t]@k
"""


def test_inputs_per_sequence_have_their_gradient_from_all_steps_between_borders() -> None:
    """Their streams lie in memory once, so that no stretch of steps starts further on in them."""
    layer = float64_package(PER_SEQUENCE).Given(5, 6).double()
    x, r = torch.randn(70, BATCH, 5).double(), torch.randn(70, BATCH, 6).double()
    u, g = (torch.randn(BATCH, width).double().requires_grad_() for width in (1, 6))
    leaves = [u, g, *layer.parameters()]
    output, last = layer(x, u=u, g=g)
    found = torch.autograd.grad((output * r).sum() + last.sin().sum(), leaves)

    k, v = (x @ layer.weight_ih_l0.T).split((8, 6), -1)
    k, v = torch.tanh(k + layer.bias_ih_l0), torch.tanh(v + g)
    state, steps = x.new_zeros(BATCH, 6, 8), []
    for k_t, v_t in zip(k, v, strict=True):
        state = torch.sigmoid(u)[..., None] * state + v_t[..., :, None] * k_t[..., None, :]
        steps.append((state @ k_t[..., None]).squeeze(-1))
    expected = torch.autograd.grad((torch.stack(steps) * r).sum() + state.sin().sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
