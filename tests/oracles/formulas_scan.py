"""Cells without a recurrent matrix: closed forms and steps typed again from their sources.

A recurrence h = a*h + b is evaluated here as a sum over all earlier steps (`unrolled`), never step by step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, linear, silu, softplus

from .base import Oracle, Sequences, Tensors
from .formulas import State, loop


def unrolled(a: Tensor, b: Tensor, first: Tensor) -> Tensor:
    """h_t = sum over s <= t of (a_{s+1} ... a_t) b_s, plus (a_0 ... a_t) times the initial state; all [T, B, H]."""
    rows = []
    for t in range(len(a)):
        terms = [a[: t + 1].prod(0) * first]
        terms += [a[s + 1 : t + 1].prod(0) * b[s] for s in range(t + 1)]
        rows.append(torch.stack(terms).sum(0))
    return torch.stack(rows)


def _last(sequence: Tensor, state: str = "h", output: Tensor | None = None) -> Sequences:
    return Sequences(sequence if output is None else output, {state: sequence[-1]})


def _g(v: Tensor) -> Tensor:
    # Feng et al. 2024, appendix B: exp of log_g(v) = log(relu(v) + 0.5) where v >= 0, else -softplus(-v)
    return torch.where(v >= 0, v.relu() + 0.5, torch.exp(-softplus(-v)))


def _mingru(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    z = linear(i["x"], p["W_z"], p["b_z"]).sigmoid()
    return _last(unrolled(1 - z, z * linear(i["x"], p["W_n"], p["b_n"]), s["h"]))


def _mingru_log(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # lucidrains/minGRU-pytorch: log coefficients -softplus(k), log values -softplus(-k) + log_g
    k = linear(i["x"], p["W_z"], p["b_z"])
    values = torch.exp(-softplus(-k)) * _g(linear(i["x"], p["W_v"], p["b_v"]))
    return _last(unrolled(torch.exp(-softplus(k)), values, s["h"]))


def _minlstm(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    f, z = (linear(i["x"], p[f"W_{gate}"], p[f"b_{gate}"]).sigmoid() for gate in "fi")
    share = f / (f + z)
    return _last(unrolled(share, (1 - share) * linear(i["x"], p["W_n"], p["b_n"]), s["h"]))


def _minlstm_log(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # lucidrains/minGRU-pytorch, minLSTM: d = softplus(-f) - softplus(-i); log f' = -softplus(d), log i' = -softplus(-d)
    f, z = (linear(i["x"], p[f"W_{gate}"], p[f"b_{gate}"]) for gate in "fi")
    diff = softplus(-f) - softplus(-z)
    values = torch.exp(-softplus(-diff)) * _g(linear(i["x"], p["W_v"], p["b_v"]))
    return _last(unrolled(torch.exp(-softplus(diff)), values, s["h"]))


def _hgrn(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # fla, ops/hgrn/naive.py behind layers/hgrn.py: x = swiglu(i, 1 - f)
    f = p["lb"] + (1 - p["lb"]) * linear(i["x"], p["W_f"]).sigmoid()
    return _last(unrolled(f, silu(linear(i["x"], p["W_i"])) * (1 - f), s["h"]))


def _rglru(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # recurrentgemma, layers.py RGLRU with BlockDiagonalLinear
    def gate(name: str) -> Tensor:
        blocks = i["x"].reshape(*i["x"].shape[:2], p[f"W_{name}"].shape[0], -1)
        mixed = torch.einsum("tbni,noi->tbno", blocks, p[f"W_{name}"]).flatten(-2)
        return torch.sigmoid(mixed + p[f"b_{name}"])

    log_a = -8.0 * gate("r") * softplus(p["lam"])
    normalised = i["x"] * gate("i") * torch.sqrt(1 - torch.exp(2 * log_a))
    return _last(unrolled(log_a.exp(), normalised, s["h"]))


def _griffin_block(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # recurrentgemma, griffin.py RecurrentBlock: linear_y and GeLU; linear_x, Conv1D of width 4, RGLRU; linear_out
    branch = torch.nn.functional.gelu(linear(i["x"], p["W_g"], p["b_g"]))
    u = linear(i["x"], p["W_u"], p["b_u"]).permute(1, 2, 0)
    kernel = torch.stack([p[f"w{step}"] for step in (3, 2, 1, 0)], -1)[:, None]
    padded = torch.nn.functional.pad(u, (3, 0))
    c = conv1d(padded, kernel, p["b_c"], groups=len(kernel)).permute(2, 0, 1)
    h = _rglru({**p, "W_r": p["A_r"], "W_i": p["A_i"]}, {"x": c}, s).output
    return _last(h, output=linear(branch * h, p["O"], p["b_y"]))


def _lru(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # Orvieto et al. 2023, appendix A: x_k = Lambda x_{k-1} + exp(gamma) B u_k, y = Re(C x) + D u, in complex numbers
    eigenvalue = torch.exp(torch.complex(-p["nu"].exp(), p["th"].exp()))
    b = i["x"].to(eigenvalue.dtype) @ torch.complex(p["W_u"], p["W_w"]).t() * p["gam"].exp()
    x = unrolled(eigenvalue.expand_as(b), b, torch.complex(s["p"], s["q"]))
    y = (x @ torch.complex(p["C1"], p["C2"]).t()).real + p["D"] * i["x"]
    return Sequences(y, {"p": x[-1].real, "q": x[-1].imag})


def _rwkv4(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # Peng et al. 2023, eq. 14 without the running maximum: sums of exp(k) v and exp(k), decaying by exp(-exp(w))
    k, v = linear(i["x"], p["W_k"]), linear(i["x"], p["W_v"])
    decay = torch.exp(-p["w"].exp()).expand_as(k)
    scale = s["p"].exp()
    above = torch.cat([(s["a"] * scale)[None], unrolled(decay, k.exp() * v, s["a"] * scale)])
    below = torch.cat([(s["s"] * scale)[None], unrolled(decay, k.exp(), s["s"] * scale)])
    bonus = torch.exp(p["u"] + k)
    output = (above[:-1] + bonus * v) / (below[:-1] + bonus)
    top = s["p"]
    for step in k:
        top = torch.maximum(top - p["w"].exp(), step)
    return Sequences(output, {"a": above[-1] * (-top).exp(), "s": below[-1] * (-top).exp(), "p": top})


def _qrnn(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # Bradbury et al. 2017, eq. 1 and fo-pooling: a causal convolution of width 2 over time
    padded = torch.cat([torch.zeros_like(i["x"][:1]), i["x"]]).permute(1, 2, 0)

    def masked(gate: str) -> Tensor:
        kernel = torch.stack([p[f"V_{gate}"], p[f"W_{gate}"]], -1)
        return conv1d(padded, kernel, p[f"b_{gate}"]).permute(2, 0, 1)

    f = masked("f").sigmoid()
    c = unrolled(f, (1 - f) * masked("z").tanh(), s["c"])
    return _last(c, "c", masked("o").sigmoid() * c)


def _sru(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # asappresearch/sru, ops.py: the gates see the old c
    u0, u1, u2 = (linear(i["x"], p[f"W_{gate}"]) for gate in "ufr")
    forget = (u1 + s["c"] * p["v_f"] + p["b_f"]).sigmoid()
    reset = (u2 + s["c"] * p["v_r"] + p["b_r"]).sigmoid()
    c = u0 + (s["c"] - u0) * forget
    highway = i["x"] * 0.5
    return highway + (c - highway) * reset, {"c": c}


def _paragru(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # apple/ml-pararnn, gru_diag
    z, r = (torch.sigmoid(linear(i["x"], p[f"W_{g}"], p[f"b_{g}"]) + p[f"u_{g}"] * s["h"]) for g in "zr")
    candidate = torch.tanh(linear(i["x"], p["W_n"], p["b_n"]) + p["u_n"] * (s["h"] * r))
    h = torch.lerp(s["h"], candidate, z)
    return h, {"h": h}


def _paralstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # apple/ml-pararnn, lstm_cifg_diag
    f, n, o = (linear(i["x"], p[f"W_{g}"], p[f"b_{g}"]) + p[f"u_{g}"] * s["h"] for g in "fno")
    c = torch.lerp(n.tanh(), s["c"], torch.sigmoid(f + p["p_f"] * s["c"]))
    h = torch.sigmoid(o + p["p_o"] * c) * c.tanh()
    return h, {"h": h, "c": c}


_N = 16


def _s6(p: Tensors, i: Tensors, s: Tensors) -> Sequences:
    # Gu & Dao 2023, algorithm 2 and eq. 4, with mamba_ssm's Euler step for B: states [T, B, H, N] in one tensor
    def stacked(tensors: Tensors, name: str) -> Tensor:
        return torch.stack([tensors[f"{name}{n}"] for n in range(1, _N + 1)], -1)

    delta = softplus(linear(linear(i["x"], p["W_low"]), p["U_delta"], p["b_delta"]))
    decay = torch.exp(torch.einsum("tbh,hn->tbhn", delta, -stacked(p, "a").exp()))
    given = torch.einsum("tbh,tbn,tbh->tbhn", delta, linear(i["x"], p["W_B"]), i["x"])
    states = unrolled(decay, given, stacked(s, "s"))
    y = torch.einsum("tbhn,tbn->tbh", states, linear(i["x"], p["W_C"])) + p["D"] * i["x"]
    return Sequences(y, {f"s{n}": states[-1, ..., n - 1] for n in range(1, _N + 1)})


_H = {"h": "H"}
_SQUARE = {"I": 6, "H": 6}

ORACLES = (
    Oracle("mingru", "paper", _mingru, "W:z,n b:z,n", _H),
    Oracle("mingru_log", "lucidrains", _mingru_log, "W:z,v b:z,v", _H),
    Oracle("minlstm", "paper", _minlstm, "W:f,i,n b:f,i,n", _H),
    Oracle("minlstm_log", "lucidrains", _minlstm_log, "W:f,i,v b:f,i,v", _H),
    Oracle("hgrn", "fla", _hgrn, "W:f,i lb", _H, ranges={"lb": (0.0, 0.9)}),
    Oracle(
        "rglru",
        "recurrentgemma",
        _rglru,
        "W[N,H,I]:r,i b:r,i lam",
        _H,
        sizes={**_SQUARE, "N": 1},
    ),
    Oracle(
        "rglru",
        "recurrentgemma(blocks=2)",
        _rglru,
        "W[N,D,D]:r,i b:r,i lam",
        _H,
        sizes={**_SQUARE, "N": 2, "D": 3},
        shaping={"blocks": 2},
    ),
    *(
        Oracle(
            "griffinblock",
            source,
            _griffin_block,
            "W:u,g A[N,D,D]:r,i w0 w1 w2 w3 lam O[I,H] b:u,g,c,r,i b[I]:y",
            _H,
            sizes={"I": 4, "H": 6, "N": blocks, "D": 6 // blocks},
            shaping={"blocks": blocks},
        )
        for source, blocks in (("recurrentgemma", 1), ("recurrentgemma(blocks=2)", 2))
    ),
    Oracle(
        "lru",
        "paper",
        _lru,
        "W:u,w nu th gam C1[H,H] C2[H,H] D",
        {"p": "H", "q": "H"},
        sizes=_SQUARE,
        ranges={"nu": (-3.0, 0.0)},
    ),
    Oracle(
        "rwkv4",
        "paper",
        _rwkv4,
        "W:k,v u w",
        {"a": "H", "s": "H", "p": "H"},
        defaults={"p": -torch.inf},
        ranges={"s": (0.5, 2.0)},
    ),
    Oracle("qrnn", "paper", _qrnn, "W:z,f,o V[H,I]:z,f,o b:z,f,o", {"c": "H"}),
    Oracle(
        "sru",
        "asappresearch/sru",
        loop(_sru),
        "W:u,f,r v:f,r b:f,r",
        {"c": "H"},
        sizes=_SQUARE,
        constants={"scale": 0.5},
    ),
    Oracle("paragru", "ml-pararnn", loop(_paragru), "W:z,r,n u:z,r,n b:z,r,n", _H),
    Oracle("paralstm", "ml-pararnn", loop(_paralstm), "W:f,n,o u:f,n,o p:f,o b:f,n,o", {"h": "H", "c": "H"}),
    Oracle(
        "s6",
        "mamba_ssm",
        _s6,
        f"W[K,I]:low W[{_N},I]:B,C U[H,K]:delta b:delta {' '.join(f'a{n}' for n in range(1, _N + 1))} D",
        {f"s{n}": "H" for n in range(1, _N + 1)},
        sizes={**_SQUARE, "K": 3, "rank": 3},
        dims=("rank",),
    ),
)
