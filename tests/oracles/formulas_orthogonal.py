"""Cells with an orthogonal recurrent matrix, typed again from their papers in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from .base import Oracle, Tensors
from .formulas import State, loop


def _modrelu(v: Tensor, bias: Tensor) -> Tensor:
    # Arjovsky, Shah, Bengio 2016, eq. 8, for real numbers
    return torch.where(v.abs() + bias >= 0, (v.abs() + bias) * v / v.abs(), 0)


def _exprnn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Lezcano-Casado & Martinez-Rubio 2019, eq. 4: exp of a skew-symmetric S, by the eigenvalues of the Hermitian 1j*S
    values, vectors = torch.linalg.eigh(1j * (p["A"] - p["A"].t()))
    matrix = ((vectors * torch.exp(-1j * values)) @ vectors.mH).real
    h = _modrelu(linear(i["x"], p["W_v"]) + linear(s["h"], matrix), p["b_h"])
    return h, {"h": h}


def _scornn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Helfrich et al. 2018, section 3: W = (I + S)^-1 (I - S) D; a fraction rho of D is -1
    skew, unit = p["A"] - p["A"].t(), torch.eye(len(p["A"]), dtype=p["A"].dtype)
    signs = torch.where(p["u"] < 0.4, -1.0, 1.0)
    h = _modrelu(
        linear(i["x"], p["W_v"]) + linear(s["h"] * signs, torch.linalg.solve(unit + skew, unit - skew)), p["b_h"]
    )
    return h, {"h": h}


_H = {"h": "H"}

ORACLES = (
    Oracle("exprnn", "paper", loop(_exprnn), "A[H,H] W:v b:h", _H),
    Oracle(
        "scornn",
        "paper",
        loop(_scornn),
        "A[H,H] u W:v b:h",
        _H,
        constants={"rho": 0.4},
        buffers=("u",),
        ranges={"u": (0.0, 1.0)},
    ),
)
