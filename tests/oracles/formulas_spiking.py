"""Spiking cells: steps typed again from their papers, with the surrogate derivative beside the spike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .base import Oracle, Tensors
from .formulas import State, loop


class _Spike(torch.autograd.Function):
    """heaviside forward; backward the gradient times a factor computed by the caller."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return torch.heaviside(v, torch.zeros_like(v))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradient * factor, None


def _spike(v: Tensor, factor: Tensor) -> Tensor:
    value: Tensor = _Spike.apply(v, factor)  # type: ignore[no-untyped-call]
    return value


def _lif(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Neftci et al. 2019, eq. 2 with reset to zero; Zenke & Ganguli 2018: 1 / (1 + 10 |v|)^2
    current = linear(i["x"], p["W_v"], p["b_v"]) + linear(s["s"], p["R_v"])
    v = (0.75 - 0.75 * s["s"]) * s["v"] + current
    over = v - 0.5
    spikes = _spike(over, (1 + 10 * over.detach().abs()) ** -2)
    return spikes, {"s": spikes, "v": v}


def _egru(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Subramoney et al. 2023, eq. 3-6; the surrogate of KhaleelKhan/EvNN: 0.7 max(0, 1 - |v|)
    joined = torch.cat([i["x"], s["y"]], -1)
    u, r = (torch.sigmoid(linear(joined, torch.cat([p[f"W_{g}"], p[f"R_{g}"]], -1), p[f"b_{g}"])) for g in "ur")
    z = torch.tanh(linear(i["x"], p["W_z"], p["b_z"]) + linear(r * s["y"], p["R_z"]))
    c = torch.lerp(s["c"], z, u)
    over = c - p["theta"]
    event = _spike(over, 0.7 * (1 - over.detach().abs()).clamp(min=0))
    y = event * c
    return y, {"y": y, "c": c - event * p["theta"]}


def _alif(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Bellec et al. 2020, eq. 6-9: A = v_th + beta a; the pseudo-derivative 0.3 / v_th max(0, 1 - |v - A| / v_th)
    a = 0.875 * s["a"] + s["z"]
    v = 0.75 * s["v"] + linear(i["x"], p["W_v"], p["b_v"]) + linear(s["z"], p["R_v"]) - 0.5 * s["z"]
    over = v - (0.5 + p["beta"] * a)
    z = _spike(over, 0.3 / 0.5 * (1 - over.detach().abs() / 0.5).relu())
    return z, {"z": z, "v": v, "a": a}


def _plif(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Fang et al. 2021, eq. 4, 5 and 9: k(a) = 1 / (1 + exp(-a)); hard reset, which passes no gradient to the spike;
    # spikingjelly's ATan of width 2
    h = torch.lerp(s["v"] - 0.25, linear(i["x"], p["W_charged"], p["b_charged"]), 1 / (1 + torch.exp(-p["a"]))) + 0.25
    over = h - 0.5
    spikes = _spike(over, 1 / (1 + (torch.pi * over.detach()) ** 2))
    return spikes, {"v": torch.where(spikes > 0, torch.full_like(h, 0.25), h)}


def _izhikevich(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Izhikevich 2003, the program of the network: reset of what has fired, currents, two half steps of v, one of u
    v, u = s["v"] + s["s"] * (-65 - s["v"]), s["u"] + 8 * s["s"]
    current = linear(torch.cat([i["x"], s["s"]], -1), torch.cat([p["W_current"], p["R_current"]], -1), p["b_current"])
    for _ in range(2):
        v = v + 0.5 * (0.04 * v**2 + 5 * v + 140 - u + current)
    u = u + 0.02 * (0.2 * v - u)
    spikes = _spike(v - 30, (1 + 0.1 * (v - 30).detach().abs()) ** -2)
    return spikes, {"s": spikes, "v": v, "u": u}


ORACLES = (
    Oracle(
        "lif",
        "paper",
        loop(_lif),
        "W:v R:v b:v",
        {"s": "H", "v": "H"},
        constants={"beta": 0.75, "theta": 0.5},
    ),
    Oracle(
        "egru",
        "paper",
        loop(_egru),
        "W:u,r,z R:u,r,z b:u,r,z theta",
        {"y": "H", "c": "H"},
        ranges={"theta": (0.0, 0.5)},
    ),
    Oracle(
        "alif",
        "paper",
        loop(_alif),
        "W:v R:v b:v beta",
        {"z": "H", "v": "H", "a": "H"},
        constants={"alpha": 0.75, "rho": 0.875, "theta": 0.5},
    ),
    Oracle(
        "plif",
        "paper",
        loop(_plif),
        "W:charged b:charged a[1]",
        {"v": "H"},
        constants={"theta": 0.5, "v_reset": 0.25},
    ),
    Oracle(
        "izhikevich",
        "paper",
        loop(_izhikevich),
        "W:current R:current b:current",
        {"s": "H", "v": "H", "u": "H"},
        defaults={"v": -65.0, "u": -13.0},
        ranges={"x": (0.0, 40.0), "v": (-70.0, -30.0), "u": (-15.0, -5.0)},
    ),
)
