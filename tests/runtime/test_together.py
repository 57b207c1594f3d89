"""Older values, functions of matrices, buffers, inputs per sequence and inputs that are left out, in one cell."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from rnncc.ir.request import Request
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from rnncc.verify import verify
from tests.language.cells_together import CASES
from tests.packages import float64_package

IN, H, LENGTHS = 5, 6, (4, 7, 1)
TEXT = "\n".join(case.text.strip() + "\n" for case in CASES)
GIVEN_ONCE = [case for case in CASES if case.per_sequence]
PER_SEQUENCE = {case.name: {name: case.extra[name] for name in case.per_sequence} for case in GIVEN_ONCE}
LEFT_OUT = {case.name: case.defaults for case in GIVEN_ONCE}
# Older values of what a call may leave out, alone and beside what it gives.
TIMED = """
cell Timed
input x, ts: H = 2, c: 3 per sequence = 0.5
state h
weights V: matrix, U: matrix
d = U@ts
u = V@ts + W@x + d[t-1]
h[t] = tanh(R@h[t-1] + u[t-2] + V@ts + W@x + sin(ts)*ts[t-1]) + sum(c)*d
"""


@cache
def package() -> Any:
    return float64_package(TEXT, "together")


def layer_of(name: str, **options: Any) -> Any:
    torch.manual_seed(2)
    return getattr(package(), name)(IN, H, **{"dtype": torch.float64, "num_heads": 2, **options})


def drawn(name: str, batch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    widths = {key: width for key, width in PER_SEQUENCE[name].items() if key not in LEFT_OUT[name]}
    return {
        key: torch.rand(batch, width, generator=generator, dtype=torch.float64).requires_grad_()
        for key, width in widths.items()
    }


def flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [tensor for part in results for tensor in flat(part)]


def gradients(values: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad([v for v in values if v.requires_grad], leaves,
                                    [torch.cos(v.detach()) for v in values if v.requires_grad]))  # fmt: skip


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_a_packed_sequence_is_what_it_is_alone(name: str) -> None:
    """Results, what delays hold, and gradients; in both directions, in an order that is not sorted."""
    layer = layer_of(name, bidirectional=True, return_delays=True)
    extra, leaves = drawn(name, len(LENGTHS)), list(layer.parameters())
    x = [torch.randn(length, IN, dtype=torch.float64) for length in LENGTHS]
    output, last = layer(pack_sequence(x, enforce_sorted=False), **extra)
    rows, _ = pad_packed_sequence(output)
    together, apart = flat((rows, last)), []
    for entry, own in enumerate(x):
        made, end = layer(own.unsqueeze(1), **{key: value[[entry]] for key, value in extra.items()})
        apart.append(flat((torch.nn.functional.pad(made, (0, 0, 0, 0, 0, max(LENGTHS) - len(own))), end)))
    expected = [torch.cat(parts, 1) for parts in zip(*apart, strict=True)]
    leaves += extra.values()
    found = [*together, *gradients(together, leaves)]
    for one, other in zip(found, [*expected, *gradients(expected, leaves)], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_what_is_left_out_is_what_the_number_is(name: str, packed: bool) -> None:
    layer = layer_of(name, num_layers=2, bidirectional=True)
    extra = drawn(name, len(LENGTHS))
    per_sequence, at_steps = PER_SEQUENCE[name], {item.name: item for item in layer.spec.inputs}
    written = {}
    for key, number in LEFT_OUT[name].items():
        width = at_steps[key].width(layer._sizes[0])
        shape = (len(LENGTHS), width) if key in per_sequence else (max(LENGTHS), len(LENGTHS), width)
        written[key] = torch.full(shape, number, dtype=torch.float64)
    x = torch.randn(max(LENGTHS), len(LENGTHS), IN, dtype=torch.float64)
    if packed:
        given: Any = pack_sequence([x[:length, b] for b, length in enumerate(LENGTHS)], enforce_sorted=False)
        rows = {
            key: value
            if key in per_sequence
            else pack_sequence([value[:length, b] for b, length in enumerate(LENGTHS)], enforce_sorted=False)
            for key, value in written.items()
        }
        found, expected = layer(given, **extra), layer(given, **extra, **rows)
        torch.testing.assert_close(found[0].data, expected[0].data)
    else:
        found, expected = (layer(x, lengths=list(LENGTHS), **extra, **more) for more in ({}, written))
        torch.testing.assert_close(found[0], expected[0])
    for one, other in zip(flat(found[1]), flat(expected[1]), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("lengths", [None, [7, 2, 0]], ids=str)
def test_older_values_of_what_is_left_out(lengths: list[int] | None) -> None:
    layer = float64_package(TIMED, "timed").Timed(IN, H, bidirectional=True, dtype=torch.float64, return_delays=True)
    x = torch.randn(7, 3, IN, dtype=torch.float64)
    written = {"ts": torch.full((7, 3, H), 2.0, dtype=torch.float64), "c": torch.full((3, 3), 0.5, dtype=torch.float64)}
    found, expected = flat(layer(x, lengths=lengths)), flat(layer(x, lengths=lengths, **written))
    leaves = list(layer.parameters())
    found, expected = ([*values, *gradients(values, leaves)] for values in (found, expected))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.long
@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_verified_in_other_dtypes(name: str) -> None:
    cells = compile_cells(Request(Source("together", TEXT), "together"), "partition").cells
    cell = next(made.cell for made in cells if made.name == name)
    report = verify(getattr(package(), name), cell, dtypes=(torch.float64, torch.float32, torch.bfloat16))
    assert report.passed, [row for row in report.rows if not row.passed]


@pytest.mark.long
@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_compiled_and_differentiated_twice(name: str) -> None:
    layer = layer_of(name, return_delays=True)
    extra, x = drawn(name, 2), torch.randn(4, 2, IN, dtype=torch.float64, requires_grad=True)
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for one, other in zip(flat(compiled(x, **extra)), flat(layer(x, **extra)), strict=True):
        torch.testing.assert_close(one, other)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        output: Tensor = layer(x, **dict(zip(extra, values, strict=True)))[0]
        return output

    assert torch.autograd.gradcheck(run, (x, *extra.values()))
    assert torch.autograd.gradgradcheck(run, (x, *extra.values()))


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_under_autocast(name: str) -> None:
    layer, x = layer_of(name, dtype=torch.float32), torch.randn(5, 2, IN)
    extra = {key: value.detach().float() for key, value in drawn(name, 2).items()}
    exact, _ = layer(x, **extra)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, **extra)
    torch.testing.assert_close(output.float(), exact, atol=0.1, rtol=0.05)
