"""The kernel that puts the rows of a PackedSequence in another order: its arithmetic on the CPU, and on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

import rnncc
from tests.cpu.host import build, call
from tests.cuda.harness import launches_of
from tests.cuda.test_gpu import pair
from tests.runtime.test_permute_rows import permuted, tables_of

on_gpu = pytest.mark.gpu
# Falling lengths: one batch entry, one step, many of either, and more batch entries than a look at 32 or at 1024
# places tells apart.
LENGTHS = {
    "one entry": (37,),
    "one step": (1,) * 70,
    "long": (5000, 17, 3),
    "even": (9,) * 33,
    "uneven": (300, 300, 40, 7, 7, *(2,) * 90, *(1,) * 60),
    "many": (3,) * 50 + (1,) * 1500,
}
lengths_given = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
either_way = pytest.mark.parametrize("to_steps", [False, True])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    # Those of NVRTC are unknown here.
    return build("../cuda/permute.cpp", "generic", tmp_path_factory.mktemp("permute"), "-Wno-unknown-pragmas")


def emulated(
    library: ctypes.CDLL, rows: Tensor, tables: tuple[Tensor, Tensor], to_steps: bool, offset: int = 0
) -> tuple[Tensor, int]:
    """What the kernel makes of rows [rows, bytes], to lie `offset` bytes after a multiple of 16, and how many bytes it
    loads at a time. Nothing is written beside them."""
    total, width = rows.shape
    held = np.full(offset + total * width + 48, 77, np.uint8)
    begin = -held.ctypes.data % 16 + offset
    to = held[begin : begin + total * width]
    firsts, starts = (table.numpy() for table in tables)
    bytes_of_load = call(
        library, "permute", rows.numpy(), rows.stride(0), to, width, firsts, starts, len(firsts) - 1, len(starts) - 1,
        total, to_steps, restype=ctypes.c_int,
    )  # fmt: skip
    assert (np.delete(held, np.s_[begin : begin + total * width]) == 77).all()
    return torch.from_numpy(to.reshape(total, width)), bytes_of_load


@either_way
@lengths_given
def test_every_row_finds_its_place(library: ctypes.CDLL, lengths: tuple[int, ...], to_steps: bool) -> None:
    rows = torch.randint(0, 255, (sum(lengths), 4), dtype=torch.uint8)
    made, _ = emulated(library, rows, tables_of(lengths), to_steps)
    assert torch.equal(made, permuted(rows, *tables_of(lengths), to_steps))


@pytest.mark.one_in(3)
@either_way
@pytest.mark.parametrize("width", [1, 3, 6, 12, 40, 48, 512, 2032, 2048, 2064, 2047, 4102])
def test_rows_of_every_width(library: ctypes.CDLL, width: int, to_steps: bool) -> None:
    lengths = LENGTHS["even"]
    rows = torch.randint(0, 255, (sum(lengths), width), dtype=torch.uint8)
    made, bytes_of_load = emulated(library, rows, tables_of(lengths), to_steps)
    assert torch.equal(made, permuted(rows, *tables_of(lengths), to_steps))
    assert bytes_of_load <= min(16, width & -width)


@pytest.mark.parametrize(("offset", "stride", "loaded"), [(0, 64, 16), (8, 64, 8), (0, 68, 4), (2, 64, 2), (0, 65, 1)])
def test_rows_that_lie_in_any_way(library: ctypes.CDLL, offset: int, stride: int, loaded: int) -> None:
    lengths = LENGTHS["even"]
    whole = torch.randint(0, 255, (sum(lengths), stride + 16), dtype=torch.uint8).flatten()
    begin = -whole.data_ptr() % 16
    rows = whole[begin : begin + sum(lengths) * stride].view(-1, stride)[:, :64]
    made, bytes_of_load = emulated(library, rows, tables_of(lengths), False, offset)
    assert torch.equal(made, permuted(rows, *tables_of(lengths), False))
    assert bytes_of_load == loaded


WRONG = [(0, 1 << 40, 50), (-7, 20, 900), (30, 10, 50), (1 << 62, -(1 << 62), 9)]


@either_way
@pytest.mark.parametrize("numbers", WRONG)
def test_wrong_tables_read_and_write_rows_that_there_are(
    library: ctypes.CDLL, numbers: tuple[int, ...], to_steps: bool
) -> None:
    rows, wrong = torch.full((50, 16), 5, dtype=torch.uint8), torch.tensor(numbers)
    made, _ = emulated(library, rows, (wrong, wrong), to_steps)
    # Of what goes to rows of the order of steps, some may be written several times, and others never.
    assert set(made.flatten().tolist()) <= ({5, 77} if to_steps else {5})


def op() -> Any:
    """Through the dispatcher."""
    kernels, why = rnncc.load("lstm").LSTM(1, 1)._choose(torch.empty(0, device="cuda"))
    assert kernels is not None, why
    return kernels.ops["permute_rows"]


def on_device(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The tables."""
    firsts, starts = tables_of(lengths)
    return firsts.cuda(), starts.cuda()


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (256,), (1024,), (1, 5), (0,), (2050,)], ids=str)
@lengths_given
def test_bits(lengths: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tables = on_device(lengths)
    numbers = torch.randn(sum(lengths), *shape, device="cuda")
    rows = numbers > 0 if dtype == torch.bool else numbers.to(dtype)
    for to_steps in (False, True):
        made = op()(rows, *tables, to_steps)
        assert torch.equal(made, permuted(rows, *tables, to_steps)) and made.is_contiguous()
        assert torch.equal(op()(made, *tables, not to_steps), rows)


@on_gpu
@either_way
def test_rows_with_gaps(to_steps: bool) -> None:
    lengths = LENGTHS["uneven"]
    tables = on_device(lengths)
    whole = torch.randn(sum(lengths), 24, device="cuda").bfloat16()
    for rows in (whole[:, :8], whole[:, 1:9], whole[:, 3], whole[:, ::2], whole[:1].expand(whole.shape)):
        assert torch.equal(op()(rows, *tables, to_steps), permuted(rows.contiguous(), *tables, to_steps))


@on_gpu
def test_opcheck_and_gradients() -> None:
    tables = on_device((5, 3, 3, 1))
    rows = torch.randn(12, 2, device="cuda", dtype=torch.float64, requires_grad=True)
    for to_steps in (False, True):

        def run(rows: Tensor, to_steps: bool = to_steps) -> Tensor:
            made: Tensor = op()(rows, *tables, to_steps)
            return made

        assert set(torch.library.opcheck(op(), (rows, *tables, to_steps)).values()) == {"SUCCESS"}
        assert torch.autograd.gradcheck(run, (rows,)) and torch.autograd.gradgradcheck(run, (rows,))


@on_gpu
def test_on_another_stream_and_in_a_graph() -> None:
    lengths = LENGTHS["uneven"]
    tables = on_device(lengths)
    rows = torch.randn(sum(lengths), 64, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # What is still to be written when the kernel is launched.
        torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
        doubled = rows * 2
        made = op()(doubled, *tables, False)
    stream.synchronize()
    assert torch.equal(made, permuted(rows * 2, *tables, False))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op()(rows, *tables, True)
    rows.copy_(torch.randn_like(rows))
    graph.replay()
    assert torch.equal(captured, permuted(rows, *tables, True))


@on_gpu
def test_wrong_tables_stay_within_the_rows() -> None:
    rows = torch.randn(50, 16, device="cuda")
    for numbers in WRONG:
        wrong = torch.tensor(numbers, device="cuda")
        for to_steps in (False, True):
            assert op()(rows, wrong, wrong, to_steps).shape == rows.shape
    torch.cuda.synchronize()


@on_gpu
def test_errors() -> None:
    tables, rows = on_device((2, 1)), torch.randn(3, 2, device="cuda")
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((rows.cpu(), *(table.cpu() for table in tables), False), "not on a GPU"),
        ((rows[0, 0], *tables, False), "a number has no rows"),
        ((rows, tables[0].int(), tables[1], False), "firsts must be an int64 tensor"),
        ((rows, tables[0], tables[1].cpu(), False), "starts must be an int64 tensor"),
        ((rows, tables[0], tables[1][:1], False), "2 or more"),
    ]
    for given, message in cases:
        with pytest.raises(RuntimeError, match=message):
            op()(*given)


@on_gpu
@pytest.mark.parametrize("with_reset", [False, True])
def test_launches_of_a_call(with_reset: bool) -> None:
    """A permutation of the rows before the loop and one after it, and as many backwards; no other kernel finds rows."""
    _, layer = pair("LSTM", 16, 32)
    leaves = [torch.randn(n, 16, device="cuda", requires_grad=True) for n in (3, 9, 1)]
    packed = pack_sequence(leaves, enforce_sorted=False)
    keywords = {"reset": torch.rand(13, device="cuda") < 0.3} if with_reset else {}

    def run() -> None:
        layer(packed, **keywords)[0].data.square().sum().backward(retain_graph=True)

    run()
    names = launches_of(run)
    assert names.count("permute_rows") == 4 + with_reset
    assert not [name for name in names if "searchsorted" in name or "arange" in name]


@on_gpu
@pytest.mark.parametrize("options", [{"dtype": torch.float64}, {"backend": "reference"}])
def test_without_kernels_rows_stay_where_they_are(options: dict[str, Any]) -> None:
    layer = rnncc.load("tgru").TGRU(4, 6, bidirectional=True, **options)
    packed: Any = pack_sequence([torch.randn(n, 4) for n in (3, 9, 1, 9)], enforce_sorted=False)
    packed, results = packed.to(next(layer.parameters())), []
    for device in ("cpu", "cuda"):
        layer.to(device).zero_grad()
        given = packed.to(device)

        def run(given: Any = given) -> tuple[Any, Tensor]:
            output, last = layer(given)
            (output.data.square().sum() + last.square().sum()).backward()
            return output, last

        if device == "cuda":
            assert not any("permute_rows" in name for name in launches_of(run))
            layer.zero_grad()
        output, last = run()
        results.append([output.data, last, *(parameter.grad for parameter in layer.parameters())])
    for own, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(own.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
