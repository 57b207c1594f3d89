"""Random chains of phases by emulated kernels. `python -m tests.emulated.chains --seeds A:B` runs more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated.chains import errors_of, run_of
from tests.generated.chains import chain

# Each family, one and several widths, operands with two matrices, scalars beside a narrow width, running sums, repeated
# values, a number per batch entry, and no product.
SEEDS = (1, 29, 92, 105, 116)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed}: {run_of(seed)}")
def test_a_chain(seed: int, tmp_path: Path) -> None:
    found = errors_of(chain(seed).cell.text, run_of(seed), tmp_path, seed)
    assert found
    assert {name: part for name, part in found.items() if not part <= 1} == {}
