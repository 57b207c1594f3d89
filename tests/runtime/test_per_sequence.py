"""Inputs per sequence, `input c: 5 per sequence`: [B, 5], the same at all steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rnncc
from rnncc.verify import verify
from tests.compiling import cell_of
from tests.long import runs_all
from tests.packages import eager_package, float64_package, text_of

T, B, IN, H, C = 5, 3, 4, 6, 5
# Where a loop reads such a value: as a part of a stream; by itself, elementwise and as one number; with no product, in
# two loops; after the loops; as the output.
TEXT = """
cell Conditional
input c: 5 per sequence
state h
weights V: matrix
r, z = sigmoid(W@x + R@h[t-1] + V@c + b)
n = tanh(V@c + W@x + b + r*(R@h[t-1] + bR))
h[t] = z*h[t-1] + (1 - z)*n

cell Direct
input c: 5 per sequence, g: 1 per sequence, d: H per sequence, ts: 1 = 1
state h, m
weights V: matrix, U: matrix
f, k = sigmoid(V@c + b)
a = tanh(R@h[t-1] + W@x[t-1] + U@tanh(d))
m[t] = f*m[t-1] + exp(-g*ts)*k*a
h[t] = m[t]*sigmoid(d) + d*x0
x0 = W@x

cell Decay
input c: 5 per sequence, p: num_heads per sequence
state h, k
weights V: matrix
param lam: vector = 0.5
a = sigmoid(V@c + lam)
h[t] = a*h[t-1] + p*(W@x)
k[t] = a*k[t-1] + (1 - a)*h[t]

cell Late
input c: 5 per sequence, d: H per sequence
state h
weights V: matrix, Q: matrix
output y
h[t] = tanh(W@x + R@h[t-1] + concat(half, half))
local half: H//2
half = V@c
y = Q@(h[t]*d) + elu(V@c) + d

cell Constant
input c: 5 per sequence
state h
weights V: matrix
output y
h[t] = tanh(W@x + R@h[t-1]*y + b)
y = V@c
"""
# Outputs of parameters alone, and of numbers that a call may leave out.
FIXED = """
cell Fixed
input c: H per sequence = 0.5, ts: H = 2
state h
param p: vector
output y
h[t] = tanh(W@x + R@h[t-1])
y = p

cell Number
input c: H per sequence = 0.5, ts: H = 2
state h
weights V: matrix
output y
h[t] = tanh(W@x + R@h[t-1])*y
y = V@ts + c
"""
CELLS = ("Conditional", "Direct", "Decay", "Late", "Constant")
WIDTHS = {"c": C, "g": 1, "d": H, "p": 1}
LENGTHS = torch.tensor([5, 2, 0])
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "layers, both ways": ({"num_layers": 2, "bidirectional": True, "batch_first": True}, {}),
    "lengths": ({"bidirectional": True}, {"lengths": LENGTHS, "reset": torch.eye(T, B)}),
    "recompute": ({"recompute": True}, {"reset": torch.eye(T, B)}),
    "rows": ({"bidirectional": True}, {"offsets": torch.tensor([0, 2, 2, 5]), "max_length": 3}),
    "rows, recompute": ({"recompute": True}, {"offsets": torch.tensor([0, 1, 5]), "max_length": 4}),
    "torch's operators": ({"backend": "reference"}, {"lengths": LENGTHS}),
}


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what torch's operators make, by its memory, where that has values of all steps."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.large: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and value.untyped_storage().nbytes() >= 1000 * 2 * 64 * 2:
                self.large[value.untyped_storage().data_ptr()] = value
        return made


class Positional(torch.nn.Module):
    """torch.export matches shapes to arguments that have names."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, c: Tensor, g: Tensor, d: Tensor) -> Any:
        return self.layer(x, c=c, g=g, d=d)


def cells() -> Any:
    return float64_package(TEXT, "once")


def twins() -> Any:
    """The same cells, whose inputs are given at every step: by torch's operators, but for --all."""
    return (float64_package if runs_all() else eager_package)(TEXT.replace(" per sequence", ""), "stepwise")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def given(layer: Any, batch: int = B, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    names = [item.name for item in layer.spec.inputs if item.name in WIDTHS]
    widths = {**WIDTHS, "p": layer.num_heads}
    return {name: draw(batch, widths[name]).to(dtype).requires_grad_() for name in names}


def results(layer: Any, x: Any, extra: Mapping[str, Any], leaves: Mapping[str, Tensor], **masks: Any) -> list[Tensor]:
    """The output, the final states and all gradients."""
    output, finals = layer(x, **extra, **masks)
    output = output.data if isinstance(output, PackedSequence) else output
    values = [output, *(finals if isinstance(finals, tuple) else (finals,))]
    loss = torch.stack([(value.double() * (1 + torch.arange(value.numel()).view_as(value))).sum() for value in values])
    return [*values, *torch.autograd.grad(loss.sum(), [*leaves.values(), *layer.parameters()])]


def flat(made: Any) -> list[Tensor]:
    """The tensors that a call returns."""
    return [made] if isinstance(made, Tensor) else [tensor for part in made for tensor in flat(part)]


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    """A layer and its twin, of the same parameters."""
    torch.manual_seed(0)
    one = getattr(cells(), name)(IN, H, **{"dtype": torch.float64, **options})
    other = getattr(twins(), name)(IN, H, **{"dtype": torch.float64, **options})
    other.load_state_dict(one.state_dict())
    return one, other


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", CELLS)
def test_it_is_what_the_same_value_at_every_step_is(name: str, kind: str) -> None:
    options, masks = LAYOUTS[kind]
    one, other = pair(name, **options)
    batch = len(masks["offsets"]) - 1 if "offsets" in masks else B
    leaves = given(one, batch)
    if "offsets" in masks:
        x = draw(int(masks["offsets"][-1]), IN)
        entries = torch.arange(batch).repeat_interleave(masks["offsets"].diff())
        repeated = {name: value[entries] for name, value in leaves.items()}
    else:
        axis = int(options.get("batch_first", False))
        x = draw(T, B, IN).transpose(0, axis)
        repeated = {name: value.unsqueeze(axis).expand(*x.shape[:2], -1) for name, value in leaves.items()}
    close(results(one, x, leaves, leaves, **masks), results(other, x, repeated, leaves, **masks))


@pytest.mark.parametrize("name", ["Conditional", "Direct", "Decay"])
@pytest.mark.parametrize("steps, batch", [(1, 1), (1, 4), (4, 1), (0, 2), (2, 0)])
def test_short_sequences_and_small_batches(name: str, steps: int, batch: int) -> None:
    one, other = pair(name, num_heads=2)
    leaves, x = given(one, batch), draw(steps, batch, IN)
    repeated = {name: value.expand(steps, *value.shape) for name, value in leaves.items()}
    close(results(one, x, leaves, leaves), results(other, x, repeated, leaves))


@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_packed_sequences_keep_the_order_of_the_batch(name: str, sorts: bool) -> None:
    one, other = pair(name, bidirectional=True, num_layers=2)
    leaves, lengths = given(one), [5, 3, 1] if sorts else [2, 5, 3]
    rows = [draw(n, IN) for n in lengths]
    x = pack_sequence(rows, enforce_sorted=sorts)
    repeated = {
        name: pack_sequence([value[b].expand(n, -1) for b, n in enumerate(lengths)], enforce_sorted=sorts)
        for name, value in leaves.items()
    }
    found = results(one, x, leaves, leaves)
    close(found, results(other, x, repeated, leaves))
    # Each sequence by itself.
    for b, row in enumerate(rows):
        alone, _ = one(row, **{name: value[b] for name, value in leaves.items()})
        padded, _ = pad_packed_sequence(one(x, **leaves)[0])
        torch.testing.assert_close(padded[: lengths[b], b], alone, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["Fixed", "Number"])
def test_packed_sequences_of_what_all_have_in_common(name: str) -> None:
    torch.manual_seed(0)
    layer = getattr(float64_package(FIXED, "fixed"), name)(IN, H, dtype=torch.float64)
    rows = [draw(n, IN) for n in (2, 4, 1)]
    padded, _ = pad_packed_sequence(layer(pack_sequence(rows, enforce_sorted=False))[0])
    for b, row in enumerate(rows):
        torch.testing.assert_close(padded[: len(row), b], layer(row)[0])


def test_a_conditional_gru_written_out() -> None:
    torch.manual_seed(0)
    layer = cells().Conditional(IN, H, dtype=torch.float64)
    x, c = draw(T, B, IN).requires_grad_(), draw(B, C).requires_grad_()
    p = {name: value.detach().clone().requires_grad_() for name, value in layer.gate_parameters().items()}
    h, outputs = torch.zeros(B, H, dtype=torch.float64), []
    for step in x:
        r, z = (step @ p[f"W_{g}"].mT + h @ p[f"R_{g}"][0].mT + c @ p[f"V_{g}"].mT + p[f"b_{g}"] for g in "rz")
        r, z = r.sigmoid(), z.sigmoid()
        inner = h @ p["R_n"][0].mT + p["bR_n"]
        n = torch.tanh(step @ p["W_n"].mT + c @ p["V_n"].mT + p["b_n"] + r * inner)
        h = z * h + (1 - z) * n
        outputs.append(h)
    expected = torch.stack(outputs)
    output, _ = layer(x, c=c)
    torch.testing.assert_close(output, expected, atol=1e-13, rtol=0)
    weights = draw(T, B, H)
    gradients = torch.autograd.grad((expected * weights).sum(), [x, c, *p.values()])
    (output * weights).sum().backward()
    ours = [x.grad, c.grad, *layer.gate_parameters(grad=True).values()]
    for found, wanted in zip(ours, gradients, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", CELLS)
def test_single_steps_chunks_and_one_sequence(name: str) -> None:
    torch.manual_seed(0)
    layer = getattr(cells(), name)(IN, H, dtype=torch.float64, return_delays=True)
    step = getattr(cells(), f"{name}Cell")(IN, H, dtype=torch.float64)
    step.load_state_dict({key.removesuffix("_l0"): value for key, value in layer.state_dict().items()})
    x, extra = draw(T, B, IN), given(layer)
    expected, last = layer(x, **extra)
    hx, outputs = None, []
    for now in x:
        made = step(now, hx, **extra)
        is_state = layer.spec.output == layer.spec.visible_states()[0].name
        output, hx = (made, made) if is_state else made
        outputs.append(output[0] if is_state and isinstance(output, tuple) else output)
    torch.testing.assert_close(torch.stack(outputs), expected)
    first, hx = layer(x[:2], **extra)
    second, again = layer(x[2:], hx, **extra)
    torch.testing.assert_close(torch.cat((first, second)), expected)
    torch.testing.assert_close(again, last)
    alone, _ = layer(x[:, 1], **{name: value[1] for name, value in extra.items()})
    torch.testing.assert_close(alone, expected[:, 1])
    pairs = zip(flat(step(x[0, 1], **{n: v[1] for n, v in extra.items()})), flat(step(x[0], **extra)), strict=True)
    for one, many in pairs:
        torch.testing.assert_close(one, many[1])


@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_verified_in_other_dtypes(name: str) -> None:
    text = text_of(name, TEXT)
    report = verify(getattr(rnncc.compile(text, "once"), name), cell_of(text), dtypes=(torch.float32, torch.bfloat16))
    assert report.passed, [row for row in report.rows if not row.passed]


def test_under_autocast() -> None:
    text = text_of("Decay", TEXT)
    layer = rnncc.compile(text, "once").Decay(IN, H)
    other = rnncc.compile(text.replace(" per sequence", ""), "stepwise").Decay(IN, H)
    other.load_state_dict(layer.state_dict())
    x, extra = draw(T, B, IN).float(), given(layer, dtype=torch.float32)
    repeated = {name: value.expand(T, *value.shape) for name, value in extra.items()}
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, **extra)
        torch.testing.assert_close(output, other(x, **repeated)[0])
    assert output.dtype == torch.bfloat16


def test_higher_derivatives_and_maps() -> None:
    layer, other = pair("Direct")
    x, leaves = draw(T, B, IN), given(layer)
    names = list(leaves)

    def run(*values: Tensor) -> Tensor:
        output: Tensor = layer(x, **dict(zip(names, values, strict=True)))[0]
        return output

    assert torch.autograd.gradgradcheck(run, tuple(leaves.values()))
    tangents = tuple(torch.ones_like(value) for value in leaves.values())
    ours = torch.func.jvp(run, tuple(v.detach() for v in leaves.values()), tangents)
    repeated = tuple(v.detach().expand(T, *v.shape).clone() for v in leaves.values())
    theirs = torch.func.jvp(
        lambda *v: other(x, **dict(zip(names, v, strict=True)))[0], repeated, tuple(map(torch.ones_like, repeated))
    )
    torch.testing.assert_close(ours[1], theirs[1])
    each = torch.func.vmap(lambda row, *v: layer(row, **dict(zip(names, v, strict=True)))[0], (1, 0, 0, 0), 1)
    torch.testing.assert_close(each(x, *leaves.values()), run(*leaves.values()))


@pytest.mark.long
def test_exported_and_compiled() -> None:
    torch.manual_seed(0)
    layer = cells().Direct(IN, H)
    x, extra = draw(T, B, IN).float(), {name: v.detach() for name, v in given(layer, dtype=torch.float32).items()}
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, *({0: auto} for _ in extra))
    program = torch.export.export(Positional(layer), (x, *extra.values()), dynamic_shapes=shapes).module()
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for steps, batch in ((T, B), (2, 2)):
        part = {name: value[:batch] for name, value in extra.items()}
        expected, _ = layer(x[:steps, :batch], **part)
        torch.testing.assert_close(program(x[:steps, :batch], *part.values())[0], expected)
        torch.testing.assert_close(compiled(x[:steps, :batch], **part)[0], expected)


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("left_out", [False, True])
def test_a_loop_reads_it_where_it_lies(left_out: bool, cast: bool) -> None:
    """Of values at all steps, torch makes the stream W@x and the output alone."""
    text = "cell Kept\ninput c: H per sequence = 0.5, ts: H = 1\nstate h\nh[t] = sigmoid(c)*h[t-1]*ts + c*(W@x)\n"
    layer = rnncc.compile(text, "kept").Kept(1, 64)
    x, c = torch.randn(1000, 2, 1), torch.randn(2, 64)
    with Seen() as seen, torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        output, _ = layer(x, **({} if left_out else {"c": c}))
    assert output.dtype == (torch.bfloat16 if cast else torch.float32)
    assert len(seen.large) == 2


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"c": (B, C + 1)}, ValueError, r"c is given per sequence: expected \[3, 5\], got \[3, 6\]"),
        ({"c": (T, B, C)}, ValueError, r"c is given per sequence: expected \[3, 5\], got \[5, 3, 5\]"),
        ({"c": (B + 1, C)}, ValueError, r"expected \[3, 5\], got \[4, 5\]"),
        ({}, TypeError, r"needs the input c=, one tensor for all steps, \[3, 5\]"),
    ],
)
def test_wrong_calls(wrong: dict[str, tuple[int, ...]], error: type[Exception], message: str) -> None:
    layer, step = cells().Conditional(IN, H), cells().ConditionalCell(IN, H)
    extra = {name: torch.ones(shape) for name, shape in wrong.items()}
    x = torch.ones(T, B, IN)
    packed = pack_padded_sequence(x, [5, 4, 2])
    calls: list[Callable[[], Any]] = [
        lambda: layer(x, **extra),
        lambda: step(x[0], **extra),
        lambda: layer(packed, **extra),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()


def test_wrong_kinds() -> None:
    layer = cells().Conditional(IN, H)
    with pytest.raises(TypeError, match="c should be a tensor, got: PackedSequence"):
        layer(pack_sequence([torch.ones(T, IN)]), c=pack_sequence([torch.ones(T, C)]))
    with pytest.raises(ValueError, match=r"expected \[5\], got \[1, 5\]"):
        layer(torch.ones(T, IN), c=torch.ones(1, C))


def test_it_says_what_it_takes() -> None:
    layer = cells().Direct(IN, H)
    assert "c= [B, width], g= [B, width], d= [B, width], ts= [T, B, width] (1 where left out)" in str(layer.__doc__)
    assert "f [T, B, 6], the same at all steps" in layer.explain()


def test_the_functional_op_takes_it_expanded() -> None:
    text = "cell Kept\ninput c: H per sequence\nstate h\nh[t] = c*h[t-1] + W@x\n"
    package = float64_package(text, "kept_op")
    layer = package.Kept(IN, H, dtype=torch.float64)
    x, c = draw(T, B, IN), draw(B, H)
    streams = {"c": c.expand(T, B, H), "h__W": x @ layer.weight_ih_l0.T}
    order = [stream.name for stream in layer.spec.segments[0].streams]
    output, _ = package.kept([streams[name] for name in order], [], hidden_size=H)
    torch.testing.assert_close(output, layer(x, c=c)[0])
