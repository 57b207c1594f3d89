"""What packed sequences cost on a GPU, beside unpadded steps of the same number, padded ones, and nn.LSTM's.

    python benchmarks/gpu_packed.py [--quick] [--only WORDS] [--shard I/N] [--out FILE]
    python benchmarks/gpu_packed.py --show FILE

Two kinds of lengths: drawn evenly from 1 to T, and one of T among others of T/16. bfloat16, the input product
included; medians, of calls one at a time and of calls back to back.

offsets, packed  the same sequences, given as rows with offsets and as a PackedSequence
rows             as many unpadded steps, [T, total/T]: a loop takes as long as its longest sequence, whoever runs it
padded           [T, B], with lengths
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cpu_packed import lengths_of
from gpu_cases import missing, read_case, row_of
from gpu_run import Results, in_time, parser_of, part, read_or_measure, words_of
from measure import Function, gpu_ms
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnncc

# The class and its file.
FILES = {"LSTM": "lstm", "GRU": "gru", "GRUv3": "gruv3", "minGRU": "mingru", "IndRNN": "indrnn"}
# Class, H, heads, T, B.
SIZES = (
    ("LSTM", 768, 12, 1024, 64), ("LSTM", 768, 1, 1024, 16), ("LSTM", 256, 1, 256, 128), ("GRU", 768, 3, 1024, 32),
    ("GRUv3", 256, 1, 256, 32), ("minGRU", 1024, 1, 1024, 64), ("IndRNN", 1024, 1, 1024, 64),
)  # fmt: skip
LENGTHS = ("even", "one long")


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a layer of a class, hidden size and number of heads; T and B of the padded tensor, and its lengths."""

    cell: str
    H: int
    heads: int
    T: int
    B: int
    lengths: str
    backward: bool

    @property
    def size(self) -> str:
        """`1024x64x768x12`, as T, B, H and heads."""
        return f"{self.T}x{self.B}x{self.H}x{self.heads}"


def runner(layer: Any, x: Tensor | PackedSequence, backward: bool, **keywords: Any) -> Function:
    """Calls of the layer, with the backward of the sum of the output if asked for."""

    def run() -> None:
        output = layer(x, **keywords)[0]
        if backward:
            (output.data if isinstance(output, PackedSequence) else output).sum().backward()

    def inference() -> None:
        with torch.no_grad():
            run()

    return run if backward else inference


def select(words: Sequence[str], quick: bool) -> list[Case]:
    """The cases of the classes in `words`. Raises ValueError for a word that names none."""
    if unknown := sorted({*words} - {*FILES}):
        raise ValueError(f"{', '.join(unknown)}: not one of {', '.join(FILES)}")
    sizes = [size for size in SIZES[: 2 if quick else None] if not words or size[0] in words]
    return [Case(*size, lengths, backward) for size in sizes for lengths in LENGTHS for backward in (False, True)]


def measure(case: Case, quick: bool) -> dict[str, Any]:
    """One row: milliseconds of a call, and of a call among others queued, by what is called."""
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    lengths = lengths_of(case.lengths, case.T, case.B)
    x, total = torch.randn(case.T, case.B, case.H, **like), int(lengths.sum())
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).cuda()
    given = torch.cat([x[:length, b] for b, length in enumerate(lengths.tolist())])
    even = torch.randn(case.T, -(-total // case.T), case.H, **like)
    ours = getattr(rnncc.load(FILES[case.cell]), case.cell)(
        case.H, case.H, num_heads=case.heads, backend="cuda", **like
    )
    functions = {
        "offsets": runner(ours, given, case.backward, offsets=offsets, max_length=case.T),
        "packed": runner(ours, packed, case.backward),
        "rows": runner(ours, even, case.backward),
        "padded": runner(ours, x, case.backward, lengths=lengths.cuda()),
    }
    if case.cell in ("LSTM", "GRU"):
        theirs = getattr(nn, case.cell)(case.H, case.H, **like)
        functions |= {
            "nn_packed": runner(theirs, packed, case.backward),
            "nn_rows": runner(theirs, even, case.backward),
        }
    times = {who: gpu_ms(run, 5 if quick else 15, 5 if quick else 10) for who, run in functions.items()}
    call, queued = ({who: round(pair[i] or 0.0, 3) for who, pair in times.items()} for i in range(2))
    return row_of(case, rows=total, call_ms=call, queued_ms=queued)


def line(row: dict[str, Any]) -> str:
    """A row as a line of text, with the ratios to unpadded steps."""
    case = read_case(Case, row)
    times = row["queued_ms"]
    ratios = ", ".join(f"{who} {times[who] / times['rows']:.2f}" for who in ("offsets", "packed", "padded"))
    what = "forward + backward" if case.backward else "forward"
    figures = ", ".join(f"{who} {ms:.2f}" for who, ms in times.items())
    return f"{case.cell} {case.size}, lengths {case.lengths}, {what}: ms {figures}; x rows: {ratios}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure or read, and print. 1 where nothing can be measured."""
    arguments = parser_of(__doc__, Path("gpu_packed.json")).parse_args(words)

    def measure_cases(results: Results) -> None:
        for case in in_time(missing(cases, results.rows), arguments.minutes):
            results.add(measure(case, arguments.quick))

    try:
        cases = part(select(words_of(arguments), arguments.quick), arguments.shard)
        rows, _ = read_or_measure(arguments, measure_cases)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"gpu_packed: {error}", file=sys.stderr)
        return 1
    print("\n".join(line(row) for row in rows if read_case(Case, row) in set(cases)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
