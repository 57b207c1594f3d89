"""Oracles: what a cell computes, said by code that knows nothing of rnncc.

Modules: `torch_nn` (torch.nn's own layers), `torchrecurrent_cells` (the package of that name), `formulas` and those
beside it (a paper's or release's equations, typed again in plain torch). Each names its parameters as
`gate_parameters()` does (`W_i`, `R_i`, `b_i`, `bR_n`, `beta`), so the same tensors go to both sides and gradients come
back under the same names.
"""

from . import (
    formulas,
    formulas_continuous,
    formulas_matrices,
    formulas_matrix_delta,
    formulas_matrix_memory,
    formulas_matrix_states,
    formulas_orthogonal,
    formulas_scan,
    formulas_spiking,
    torch_nn,
    torchrecurrent_cells,
)
from .base import Case, Oracle, Sequences, draw, observed, relative_error, results

ORACLES: tuple[Oracle, ...] = (
    *torch_nn.ORACLES,
    *torchrecurrent_cells.ORACLES,
    *formulas.ORACLES,
    *formulas_scan.ORACLES,
    *formulas_spiking.ORACLES,
    *formulas_matrices.ORACLES,
    *(oracle for oracle in formulas_matrix_states.ORACLES if oracle.cell != "s6"),
    *formulas_matrix_delta.ORACLES,
    *formulas_matrix_memory.ORACLES,
    *formulas_continuous.ORACLES,
    *formulas_orthogonal.ORACLES,
)

__all__ = ["ORACLES", "Case", "Oracle", "Sequences", "draw", "observed", "relative_error", "results"]
