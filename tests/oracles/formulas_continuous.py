"""Cells of differential equations: the solvers of papers and releases, typed again in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from .base import Oracle, Tensors
from .formulas import State, Step, loop, pack


def _cfc(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # ncps, torch/cfc_cell.py, mode "default": one Linear of [x, h], LeCun's tanh, four heads
    joined = torch.cat([i["x"], s["h"]], 1)
    backbone = linear(joined, torch.cat([p["W_z"], p["R_z"]], 1), p["b_z"])
    x = 1.7159 * torch.tanh(backbone * 0.666)
    ff1, ff2, time_a, time_b = linear(x, pack(p, "M", "f g a c"), pack(p, "b", "f g a c")).chunk(4, -1)
    t_interp = torch.sigmoid(time_a * i["ts"] + time_b)
    h = ff1.tanh() * (1.0 - t_interp) + t_interp * ff2.tanh()
    return h, {"h": h}


def _ltc(unfolds: int) -> Step:
    # Hasani et al. 2021, algorithm 1, with f = sigmoid of a dense layer on [x, v]
    def step(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
        weights, delta, v = torch.cat([p["W_drive"], p["M"]], 1), i["ts"] / unfolds, s["v"]
        for _ in range(unfolds):
            f = linear(torch.cat([i["x"], v], 1), weights, p["b_drive"]).sigmoid()
            v = torch.addcmul(v, delta * f, p["A"]) / (1 + delta * (p["tau"].reciprocal() + f))
        return v, {"v": v}

    return step


def _gru_ode(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # edebrouwer/gru_ode_bayes, models.py FullGRUODECell, with solver "euler"
    xr, xz, xh = linear(i["x"], pack(p, "W", "r z n"), pack(p, "b", "r z n")).chunk(3, 1)
    r, z = torch.sigmoid(xr + linear(s["h"], p["R_r"])), torch.sigmoid(xz + linear(s["h"], p["R_z"]))
    u = torch.tanh(xh + linear(r * s["h"], p["R_n"]))
    h = torch.addcmul(s["h"], i["ts"], (1 - z) * (u - s["h"]))
    return h, {"h": h}


def _lipschitz(beta: float, gamma: float, eps: float) -> Step:
    # Erichson et al. 2021: the unit, and the explicit midpoint rule. The symmetric and the skew part of a matrix M are
    # (M + M')/2 and (M - M')/2
    def mixed(m: Tensor) -> Tensor:
        symmetric, skew = (m + m.t()) / 2, (m - m.t()) / 2
        return torch.lerp(2 * symmetric, 2 * skew, beta) - torch.diag(m.new_full((len(m),), gamma))

    def step(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
        a, v = mixed(p["M_A"]), mixed(p["M_V"])

        def slope(h: Tensor) -> Tensor:
            return linear(h, a) + linear(torch.cat([h, i["x"]], 1), torch.cat([v, p["W_z"]], 1), p["b_z"]).tanh()

        h = s["h"] + eps * slope(s["h"] + 0.5 * eps * slope(s["h"]))
        return h, {"h": h}

    return step


def _low_rank(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Dubreuil et al. 2022, eq. 1 with the connectivity m n' / N, here m = N R__u and n' = R__v
    connectivity = p["R__u_v"] @ p["R__v_v"]
    v = torch.lerp(s["v"], linear(s["v"].tanh(), connectivity) + linear(i["x"], p["W_v"]), 0.25)
    return v.tanh(), {"v": v}


_H = {"h": "H"}
_V = {"v": "H"}
_STEPS = {"ts": (0.1, 2.0)}

ORACLES = (
    Oracle(
        "cfc",
        "ncps",
        loop(_cfc),
        "W[N,I]:z R[N,H]:z b[N]:z M[H,N]:f,g,a,c b:f,g,a,c",
        _H,
        sizes={"I": 4, "H": 6, "N": 5},
        dims=("N",),
        inputs={"ts": "1"},
        ranges=_STEPS,
    ),
    *(
        Oracle(
            "ltc",
            source,
            loop(_ltc(unfolds)),
            "W:drive M[H,H] A tau b:drive",
            _V,
            inputs={"ts": "1"},
            ranges={**_STEPS, "tau": (0.5, 2.0)},
            shaping={"L": unfolds},
        )
        for source, unfolds in (("paper", 6), ("paper(L=2)", 2))
    ),
    Oracle("gruode", "gru_ode_bayes", loop(_gru_ode), "W:r,z,n R:r,z,n b:r,z,n", _H, inputs={"ts": "1"}, ranges=_STEPS),
    *(
        Oracle(
            "lipschitzrnn",
            source,
            loop(_lipschitz(*numbers.values())),
            "M_A[H,H] M_V[H,H] W:z b:z",
            _H,
            constants=numbers,
        )
        for source, numbers in (
            ("paper", {"beta": 0.65, "gamma": 0.001, "eps": 0.01}),
            ("paper(eps=0.5)", {"beta": 0.2, "gamma": 0.3, "eps": 0.5}),
        )
    ),
    Oracle(
        "lowrankrnn",
        "paper",
        loop(_low_rank),
        "W:v R__u[H,K]:v R__v[K,H]:v",
        _V,
        sizes={"I": 4, "H": 6, "K": 2},
        dims=("K",),
        constants={"alpha": 0.25},
    ),
)
