"""Cells whose recurrent matrix is fixed, or made of another one: each source's equations typed again in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from .base import Oracle, Tensors
from .formulas import State, Step, loop


def _leaky_esn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Lukosevicius 2012, eq. 2-3, with alpha = 0.75
    update = torch.tanh(torch.cat([i["x"], s["h"]], -1) @ torch.cat([p["V"], p["A"]], -1).t())
    h = torch.lerp(s["h"], update, 0.75)
    return h, {"h": h}


def _dale(weight: str) -> Step:
    # Song et al. 2016, eq. 9-10 and 15, with alpha = 0.5: W_rec = W_plus D, W_plus |W| or [W]_+

    def step(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
        plus = p["M_v"].abs() if weight == "abs" else p["M_v"].clamp(min=0)
        total = torch.einsum("ij,j,bj->bi", plus, p["D"].sign(), s["v"].clamp(min=0))
        v = 0.5 * s["v"] + 0.5 * (total + linear(i["x"], p["W_v"], p["b_v"]))
        return v.clamp(min=0), {"v": v}

    return step


def _ternary(w: Tensor) -> Tensor:
    # Li et al. 2016, eq. 3, 5 and 6; backward as if w itself had been used
    large = w.detach().abs() > 0.7 * w.detach().abs().mean()
    return w + (w.detach()[large].abs().mean() * w.sign() * large - w).detach()


def _ternary_lstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    ig, fg, gg, og = (
        linear(i["x"], _ternary(p[f"W_{gate}"]), p[f"b_{gate}"]) + linear(s["h"], _ternary(p[f"R_{gate}"]))
        for gate in "ifgo"
    )
    c = fg.sigmoid() * s["c"] + ig.sigmoid() * gg.tanh()
    h = og.sigmoid() * c.tanh()
    return h, {"h": h, "c": c}


_H = {"h": "H"}

ORACLES = (
    Oracle(
        "leakyesn",
        "paper",
        loop(_leaky_esn),
        "A[H,H] V[H,I]",
        _H,
        constants={"leak": 0.75},
        buffers=("A", "V"),
    ),
    Oracle(
        "dalernn",
        "paper",
        loop(_dale("abs")),
        "W:v M[H,H]:v b:v D",
        {"v": "H"},
        constants={"alpha": 0.5},
        buffers=("D",),
    ),
    Oracle(
        "dalernn",
        "paper(relu)",
        loop(_dale("relu")),
        "W:v M[H,H]:v b:v D",
        {"v": "H"},
        constants={"alpha": 0.5},
        shaping={"positive": "relu"},
        buffers=("D",),
    ),
    Oracle("ternarylstm", "paper", loop(_ternary_lstm), "W:i,f,g,o R:i,f,g,o b:i,f,g,o", {"h": "H", "c": "H"}),
)
