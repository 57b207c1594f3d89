"""Packed sequences: nn.LSTM's and nn.GRU's own results, and for every kind of loop those of each sequence alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import rnncc
from rnncc.runtime.arguments.packing import Packing, gather, scatter
from rnncc.runtime.modules.packed import read_sequence
from tests.packages import float64_package
from tests.runtime.test_layers import BACKENDS, DOUBLE, IN, H, close, gradients, layer_class, tuple_of
from tests.runtime.test_ops import arguments, make
from tests.runtime.test_permute_rows import permuted

pytestmark = pytest.mark.usefixtures("float64_first")
LENGTHS = (4, 9, 1, 9, 2)
Sequences = list[Tensor]


def sequences(lengths: tuple[int, ...] = LENGTHS, width: int = IN) -> Sequences:
    """One tensor [length, width] a sequence."""
    torch.manual_seed(2)
    return [torch.randn(length, width, **DOUBLE) for length in lengths]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("file", "name", "twin"), [("nn_lstm", "nn_LSTM", nn.LSTM), ("nn_gru", "nn_GRU", nn.GRU)])
def test_as_torch(file: str, name: str, twin: Any, is_sorted: bool, bidirectional: bool, backend: str) -> None:
    torch.manual_seed(0)
    theirs = twin(IN, H, 2, bidirectional=bidirectional, batch_first=True, **DOUBLE)
    ours = layer_class(file, name).from_torch(theirs, backend=backend)
    x = sequences(tuple(sorted(LENGTHS, reverse=True)) if is_sorted else LENGTHS)
    leaves = [value.requires_grad_() for value in x]
    states = [torch.randn(4 if bidirectional else 2, len(x), H, **DOUBLE).requires_grad_() for _ in range(2)]
    hx = tuple(states) if twin is nn.LSTM else states[0]
    found = []
    for layer in (theirs, ours):
        output, last = layer(pack_sequence(leaves, enforce_sorted=is_sorted), hx)
        assert isinstance(output, PackedSequence)
        used = [*leaves, *states[: len(tuple_of(last))]]
        wanted = [*used, *(layer.get_parameter(key) for key, _ in theirs.named_parameters())]
        found.append((output, tuple_of(last), gradients(output.data, tuple_of(last), wanted)))
    (expected, last, d_expected), (output, own_last, d_own) = found
    for index in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        first, second = getattr(expected, index), getattr(output, index)
        assert first is second or torch.equal(first, second)
    for own, value in zip((output.data, *own_last, *d_own), (expected.data, *last, *d_expected), strict=True):
        close(own, value)


def test_dropout_between_layers() -> None:
    theirs = nn.LSTM(IN, H, 2, dropout=0.5, **DOUBLE)
    ours = layer_class("lstm", "LSTM").from_torch(theirs)
    packed = pack_sequence(sequences(), enforce_sorted=False)
    torch.manual_seed(3)
    expected = theirs(packed)[0].data
    torch.manual_seed(3)
    close(ours(packed)[0].data, expected)


LATE = "cell Late\nweights V: matrix\nstate h = learned\nh[t] = tanh(W@x + V@x[t-1] + R@h[t-2] + b) + 0.1*h[t-3]"
OLDER = (
    "cell Older\nweights k: vector, k2: vector, V: matrix\nstate h = learned\nu = W@x + b\n"
    "c = silu(u + k*u[t-1] + k2*u[t-3])\nh[t] = tanh(V@c + R@h[t-1] + b) + 0.1*V_h@u[t-1]"
)
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("lstm", "LSTM", {}),
    ("gruv3", "GRUv3", {"num_heads": 3}),
    ("slstm", "sLSTM", {"recompute": True}),
    ("layernormlstm", "LayerNormLSTM", {}),
    ("mingru", "minGRU", {}),
    ("indrnn", "IndRNN", {}),
    ("tgru", "TGRU", {"return_delays": True}),
    ("scrn", "SCRN", {}),
    ("rwkv4", "RWKV4", {}),
    (LATE, "Late", {"return_delays": True}),
    (OLDER, "Older", {"return_delays": True}),
]


def layer_of(text: str, name: str, *sizes: int, **options: Any) -> Any:
    """A layer of a shipped cell or of a text."""
    module = float64_package(text) if "\n" in text else rnncc.load(text)
    torch.manual_seed(0)
    return getattr(module, name)(*sizes, **options)


def split(rows: Tensor, like: Sequences) -> Sequences:
    """The rows of each sequence."""
    return list(torch.split(rows, [len(value) for value in like]))


def one_by_one(layer: Any, x: Sequences, states: list[Tensor], **keywords: Sequences) -> tuple[Tensor, list[Tensor]]:
    """Outputs one after the other, and the final states, of each sequence in a call of its own."""
    outputs, finals = [], []
    for b, value in enumerate(x):
        hx = [state[:, b : b + 1] for state in states]
        own = {name: values[b].unsqueeze(1) for name, values in keywords.items()}
        output, last = layer(value.unsqueeze(1), hx[0] if len(hx) == 1 else tuple(hx), **own)
        outputs.append(output.squeeze(1))
        finals.append(tuple_of(last))
    return torch.cat(outputs), [torch.cat(group, 1) for group in zip(*finals, strict=True)]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("text", "name", "options"), KINDS, ids=[name for _, name, _ in KINDS])
def test_offsets(text: str, name: str, options: dict[str, Any], backend: str, with_reset: bool) -> None:
    """Empty sequences among them, in both directions, and every gradient."""
    layer = layer_of(text, name, H, H, bidirectional=True, backend=backend, **options, **DOUBLE)
    x = sequences((4, 0, 9, 1, 9, 0, 2), H)
    rows = torch.cat(x).requires_grad_()
    offsets = torch.tensor([0, 4, 4, 13, 14, 23, 23, 25])
    _, last = layer(torch.randn(1, 7, H, **DOUBLE))
    states = [torch.randn_like(state).requires_grad_() for state in tuple_of(last)]
    reset = torch.rand(25) < 0.3
    keywords = {"reset": reset} if with_reset else {}
    output, last = layer(rows, states[0] if len(states) == 1 else tuple(states), offsets=offsets, **keywords)
    apart = {name: split(value, x) for name, value in keywords.items()}
    expected, expected_last = one_by_one(layer, split(rows, x), states, **apart)
    # A reset alone reads a learned initial state where hx is given.
    read = [value for key, value in layer.named_parameters() if with_reset or not key.startswith("h0")]
    wanted = [rows, *states, *read]
    ours = [output, *tuple_of(last), *gradients(output, tuple_of(last), wanted)]
    theirs = [expected, *expected_last, *gradients(expected, tuple(expected_last), wanted)]
    for own, value in zip(ours, theirs, strict=True):
        close(own, value)


def test_extra_inputs() -> None:
    layer = layer_of("timeawarelstm", "TimeAwareLSTM", IN, H, **DOUBLE)
    x, gap = sequences(), [value[:, :1].exp() for value in sequences()]
    packed, packed_gap = (pack_sequence(values, enforce_sorted=False) for values in (x, gap))
    output, _ = layer(packed, gap=packed_gap)
    states = [torch.zeros(1, len(x), H, **DOUBLE)] * 2
    expected, _ = one_by_one(layer, x, states, gap=gap)
    back = pack_sequence(split(expected, x), enforce_sorted=False)
    close(output.data, back.data)
    with pytest.raises(ValueError, match="other lengths"):
        layer(packed, gap=pack_sequence(gap[:-1], enforce_sorted=False))


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("reverse", [False, True])
def test_large(batch: int, reverse: bool) -> None:
    """Several blocks of steps, tiles and threads; the same numbers as with `lengths`, in float32."""
    torch.manual_seed(4)
    layer = layer_of("gru", "GRU", 40, 96, bidirectional=reverse)
    lengths = torch.randint(1, 120, (batch,))
    x = torch.randn(int(lengths.max()), batch, 40, requires_grad=True)
    found = []
    for given, keywords in ((pack_padded_sequence(x, lengths, enforce_sorted=False), {}), (x, {"lengths": lengths})):
        output, last = layer(given, **keywords)
        if isinstance(output, PackedSequence):
            output = nn.utils.rnn.pad_packed_sequence(output)[0]
        found.append([output, last, *gradients(output, (last,), [x, *layer.parameters()])])
    for own, value in zip(*found, strict=True):
        assert (own - value).abs().max() <= 2e-5 * max(1.0, value.abs().max().item())


RACE = """cell Race
state h
h[t] = tanh(W@x + relu(h[t-1] + p))
param p: vector
"""


@pytest.mark.parametrize(
    ("text", "name", "lengths"),
    [
        ("lstm", "LSTM", [100, 100, 100, 50]),
        ("lstm", "LSTM", [400, 400, 400, 350]),
        (RACE, "Race", list(range(399, 0, -5))),
    ],
)
def test_threads_have_batch_entries_of_their_own(text: str, name: str, lengths: list[int]) -> None:
    """More threads than there are batch entries; and a loop whose blocks of steps read each other's last step."""
    layer = layer_of(text, name, IN, 32, **DOUBLE)
    rows, offsets = torch.randn(sum(lengths), IN, **DOUBLE), torch.tensor([0, *lengths]).cumsum(0)

    def found() -> list[Tensor]:
        output, _ = layer(rows, offsets=offsets)
        return [output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = found()
        for count in (2, 8):
            torch.set_num_threads(count)
            for _ in range(5):
                torch.testing.assert_close(found(), expected, rtol=1e-9, atol=1e-9)
    finally:
        torch.set_num_threads(threads)


def test_inputs_that_are_sorted_otherwise() -> None:
    layer = layer_of("cell Gated\ninput x, g: 1\nstate h\nh[t] = g*h[t-1] + W@x", "Gated", IN, H, **DOUBLE)
    x, g = sequences((2, 5, 2)), sequences((2, 5, 2), 1)
    given = pack_sequence(x, enforce_sorted=False)
    # The two of equal lengths the other way round.
    order, back = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    other = PackedSequence(pack_sequence([g[i] for i in order]).data, given.batch_sizes, order, back)
    expected, _ = layer(given, g=pack_sequence(g, enforce_sorted=False))
    torch.testing.assert_close(layer(given, g=other)[0].data, expected.data)
    swapped = pack_sequence([g[1], g[0], g[2]], enforce_sorted=False)
    with pytest.raises(ValueError, match="g is a PackedSequence of other lengths"):
        layer(given, g=swapped)


@pytest.mark.parametrize("by_step", [False, True])
def test_rows_in_either_order(by_step: bool) -> None:
    """Step by step as on the CPU, entry by entry as on a GPU."""
    lengths = (5, 3, 3, 1, 0) if by_step else (3, 0, 5, 1, 3)
    places = [(t, b) for b, length in enumerate(lengths) for t in range(length)]
    places = sorted(places) if by_step else places
    counts = [sum(length > t for length in lengths) for t in range(6)] if by_step else lengths
    packing = Packing(torch.tensor((0, *counts)).cumsum(0), 6, 5, len(places), by_step)
    rows = torch.randn(len(places), 1, 2)
    assert packing.lengths().tolist() == list(lengths)
    assert list(zip(*(place.tolist() for place in packing.places()), strict=True)) == places
    padded = packing.pad(rows)
    assert padded.shape == (6, 5, 2) and torch.equal(packing.pack(padded), rows)
    assert all(torch.equal(padded[place], row[0]) for place, row in zip(places, rows, strict=True))
    reset = torch.rand(len(places), 1) < 0.5
    wanted = torch.zeros(6, 5, dtype=torch.bool)
    for place, value in zip(places, reset, strict=True):
        wanted[place] = value[0]
    assert torch.equal(packing.pad_reset(reset), wanted)  # type: ignore[arg-type]
    before = torch.randn(5, 2)
    for reverse in (False, True):
        delayed, final = packing.delay(rows, before, reverse=reverse)
        for (t, b), row in zip(places, delayed, strict=True):
            other = t + 1 if reverse else t - 1
            assert torch.equal(row[0], padded[other, b] if 0 <= other < lengths[b] else before[b])
        ends = [padded[0 if reverse else n - 1, b] if n else before[b] for b, n in enumerate(lengths)]
        assert torch.equal(final, torch.stack(ends))


@pytest.mark.parametrize("batch_sizes", [(3, 2), (3, 3), (1, 2, 2), (5, 0)])
def test_a_packed_sequence_of_other_rows_is_refused(batch_sizes: tuple[int, ...]) -> None:
    wrong = PackedSequence(torch.randn(5 if batch_sizes != (3, 2) else 6, IN, **DOUBLE), torch.tensor(batch_sizes))
    with pytest.raises(ValueError, match=r"batch_sizes must be positive, not rise, and add up to its \d rows"):
        make("lstm", "LSTM")(wrong)


def test_a_packed_sequence_of_another_batch_is_refused() -> None:
    order = torch.arange(3)
    wrong = PackedSequence(torch.randn(5, IN, **DOUBLE), torch.tensor([2, 2, 1]), order, order)
    with pytest.raises(ValueError, match="a PackedSequence with a batch of 2 has indices of 3"):
        make("lstm", "LSTM")(wrong)


def test_a_permutation_and_its_gradient() -> None:
    rows, source = torch.randn(5, 2, **DOUBLE).requires_grad_(), torch.tensor([3, 0, 4, 2, 1])
    for given in (rows, rows.detach()):
        assert torch.equal(gather(given, source), given[source])
        assert torch.equal(scatter(given, source), given[source.argsort()])
    for permute in (gather, scatter):
        assert torch.autograd.gradcheck(lambda rows, permute=permute: permute(rows, source), (rows,))
        assert torch.autograd.gradgradcheck(lambda rows, permute=permute: permute(rows, source), (rows,))


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("lengths", [(6, 5, 5, 2, 1), (1,), (4, 4, 4), (3, 1, 1)])
def test_rows_of_a_packed_sequence_entry_by_entry(lengths: tuple[int, ...], has_kernels: bool) -> None:
    entries = [torch.randn(length, 2) for length in lengths]
    given = pack_sequence(entries)
    data = SimpleNamespace(is_cuda=True, is_cpu=False, device=given.data.device, shape=given.data.shape)

    class Kernels:
        """In place of those of a GPU."""

        @staticmethod
        def run(name: str, rows: Tensor, *tables: Any) -> Tensor:
            assert name == "permute_rows"
            return permuted(rows, *tables)

    on_gpu: Any = SimpleNamespace(data=data, batch_sizes=given.batch_sizes, sorted_indices=None, unsorted_indices=None)
    kernels: Any = Kernels() if has_kernels else None
    packed = read_sequence(on_gpu, kernels)
    packing = packed.packing
    assert (packing.steps, packing.batch, packing.total, packing.by_step) == (
        max(lengths), len(lengths), sum(lengths), False,
    )  # fmt: skip
    assert packing.lengths().tolist() == list(lengths)
    assert packed.permute is not None
    assert torch.equal(packed.permute(given.data, False), torch.cat(entries))
    assert torch.equal(packed.permute(torch.cat(entries), True), given.data)


def test_opcheck() -> None:
    op, given = arguments(make("lstm", "LSTM"))
    streams = [torch.randn(6, 1, stream.shape[-1], **DOUBLE).requires_grad_() for stream in given[0]]
    offsets = torch.tensor([0, 2, 4, 5, 6])
    assert set(torch.library.opcheck(op, (streams, *given[1:3], offsets, 4, *given[5:])).values()) == {"SUCCESS"}
    for wrong in ([0, 1, 3, 4, 6], [1, 2, 4, 5, 6], [0, 2, 4, 5], [0, 3, 4, 5, 6]):
        with pytest.raises(RuntimeError, match=r"offsets|packed"):
            op(streams, *given[1:3], torch.tensor(wrong), 4, *given[5:])


def test_what_a_gpu_is_said_to_return() -> None:
    """Rows lie entry by entry, and the masked loop runs; the meta device stands for a GPU."""
    op, given = arguments(make("lstm", "LSTM"), lengths=torch.tensor([4, 2]))
    streams, weights, states = ([tensor.detach().to("meta") for tensor in group] for group in given[:3])
    streams = [stream.new_empty(6, 1, stream.shape[-1]) for stream in streams]
    units = states[0].shape[-1]
    states = [state.new_empty(3, units) for state in states]
    offsets = torch.empty(4, dtype=torch.int64, device="meta")
    sequences, finals, saved = op(streams, weights, states, offsets, 4, None, None, *given[7:])
    assert {tuple(tensor.shape) for tensor in (*sequences, *saved)} == {(6, 1, units)} and saved
    assert [tuple(final.shape) for final in finals] == [(3, units)] * 2


def test_twice_differentiable() -> None:
    layer = make("lstm", "LSTM")
    rows = torch.randn(6, 3, **DOUBLE).requires_grad_()

    def run(rows: Tensor) -> Tensor:
        output: Tensor = layer(rows, offsets=torch.tensor([0, 1, 4, 6]))[0]
        return output

    assert torch.autograd.gradgradcheck(run, (rows,))


def test_compiles_whole() -> None:
    layer, op = layer_of("lstm", "LSTM", IN, H), rnncc.load("lstm").lstm
    rows, offsets = torch.randn(14, IN), torch.tensor([0, 4, 13, 14])

    def run(rows: Tensor, offsets: Tensor) -> Tensor:
        output: Tensor = layer(rows, offsets=offsets, max_length=9)[0]
        return output

    def loop(rows: Tensor, offsets: Tensor) -> Tensor:
        options: dict[str, Any] = {"offsets": offsets, "max_length": 9, "hidden_size": H}
        output: Tensor = op(rows @ layer.weight_ih_l0.T, layer.weight_hh_l0, **options)[0]
        return output

    for function in (run, loop):
        compiled: Callable[..., Tensor] = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(rows, offsets), function(rows, offsets))


@pytest.mark.long
def test_a_packed_sequence_compiles_whole() -> None:
    """Whatever its lengths, in two graphs: the first sizes, then any."""
    layer = layer_of("lstm", "LSTM", IN, H, num_layers=2, bidirectional=True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(layer, backend=counter, fullgraph=True)
    for lengths in ((3, 9, 1), (5, 2, 7, 7), (4, 4), (12, 1, 5, 6, 3)):
        packed = pack_sequence([torch.randn(length, IN) for length in lengths], enforce_sorted=False)
        resets = packed._replace(data=torch.rand(sum(lengths)) < 0.3)
        results = []
        for run in (layer, compiled):
            layer.zero_grad()
            output, (h, c) = run(packed, reset=resets)
            (output.data.square().sum() + h.sum() + c.sum()).backward()
            results.append([output.data, h, c, *(parameter.grad for parameter in layer.parameters())])
        torch.testing.assert_close(results[1], results[0])
    assert counter.frame_count == 2


def test_errors() -> None:
    layer = layer_of("lstm", "LSTM", IN, H)
    rows, offsets = torch.randn(14, IN), torch.tensor([0, 4, 13, 14])
    packed = pack_sequence([rows])
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((packed,), {"lengths": [14]}, "lengths= is for padded"),
        ((packed,), {"offsets": offsets}, "own offsets"),
        ((rows,), {"offsets": offsets[:-1]}, "end with the number of rows, 14"),
        ((rows,), {"offsets": offsets.flip(0)}, "not fall"),
        ((rows,), {"offsets": offsets.reshape(2, 2)}, r"\[B \+ 1\]"),
        ((rows,), {"offsets": offsets, "max_length": 8}, "a sequence has 9 steps"),
        ((rows,), {"max_length": 8}, "goes with offsets"),
        ((rows.unsqueeze(0),), {"offsets": offsets}, r"\[total, width\]"),
        ((rows,), {"offsets": offsets, "reset": torch.zeros(13)}, "rows of the input"),
        (
            (rows,),
            {"offsets": offsets, "reset": torch.zeros(14, device="meta")},
            "input's device, cpu, not meta",
        ),
    ]
    for given, keywords, message in cases:
        with pytest.raises(ValueError, match=message):
            layer(*given, **keywords)
    with pytest.raises(TypeError, match="int32 or int64"):
        layer(rows, offsets=offsets.float())
    with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 3, 6\)"):
        layer(rows, (torch.zeros(1, 2, H), torch.zeros(1, 2, H)), offsets=offsets)
