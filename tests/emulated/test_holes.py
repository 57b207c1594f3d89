"""Sums that do not take every operand, in grid kernels: these neither hold nor multiply what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnncc.ir.family import GRID
from tests.cuda.kernels import Case as Wanted
from tests.emulated.fused import DTYPES, EmulatedCase
from tests.emulated.test_fused import BOUNDS, kernels_of, loops
from tests.numeric.compare import Problem

# Sums of some operands and not of others, in every mixture.
OWN = {
    # Two sums take an operand each that the other one does not take, and both take a third one. A sum of `h` and `d`
    # takes operands that do not follow each other in the text.
    "mixed": """cell Mixed
state h, c, d
weights U: matrix, V: matrix
a = sigmoid(W@x + R@h[t-1] + U@c[t-1] + V@d[t-1])
z = tanh(W@x + U@c[t-1])
e = tanh(R@h[t-1] + W@x)
h[t] = tanh(a*z + e)
c[t] = a*c[t-1] + z
d[t] = tanh(z*d[t-1] - e)
""",
    # One hole in a table of nine.
    "one": """cell One
state h, c, d
weights U: matrix, V: matrix
a, z = sigmoid(W@x + R@h[t-1] + U@c[t-1] + V@d[t-1])
e = tanh(W@x + R@h[t-1] + U@c[t-1])
h[t] = a*h[t-1] + e
c[t] = tanh(z*c[t-1] + e)
d[t] = tanh(e - d[t-1])
""",
}


@pytest.mark.one_in(28)
@pytest.mark.parametrize(
    ("cell", "dtype", "head_dim", "heads", "batch"),
    [
        ("wmclstm", "bf16", 72, 1, 11),
        ("wmclstm", "f32", 64, 2, 3),
        ("wmclstm", "f16", 264, 1, 3),
        ("timeawarelstm", "f16", 64, 2, 9),
        ("timeawarelstm", "f32", 104, 1, 3),
        ("taugru", "bf16", 96, 2, 5),
        ("taugru", "f32", 72, 1, 9),
        ("taugru", "f16", 40, 1, 17),
        ("dsgu", "f32", 64, 1, 3),
        ("mut3", "f32", 40, 2, 3),
        ("mixed", "bf16", 72, 1, 11),
        ("mixed", "f32", 64, 2, 3),
        ("one", "f16", 40, 2, 9),
        ("one", "f32", 264, 1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_matrices_that_are_not_there(
    cell: str, dtype: str, head_dim: int, heads: int, batch: int, masked: bool, tmp_path: Path
) -> None:
    path = cell
    if cell in OWN:
        path = str(tmp_path / f"{cell}.rnn")
        Path(path).write_text(OWN[cell], encoding="utf-8")
    made = kernels_of(Wanted(path, GRID, dtype, "sm_90a"), masked, head_dim, tmp_path)
    assert {each.split("_")[-1] for each in made} == {"forward", "inference", "backward"}
    problem = Problem(5, batch, {"I": 3, "H": head_dim * heads}, heads, DTYPES[dtype], reverse=masked)
    errors = EmulatedCase(loops(path)[masked], problem, made).measured()
    assert {name: error for name, error in errors.items() if not error <= BOUNDS[dtype]} == {}
