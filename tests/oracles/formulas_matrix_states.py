"""Cells with a matrix state that decays: each paper's equations typed again in plain torch, head by head.

Papers write a head's state S as keys x values; here `hx` is [B, N, values, keys], so states are transposed at both
ends. Vectors are [T, B, N, width] inside.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid, silu, softplus

from .base import ForwardOfHeads, Oracle, Sequences, Tensors

HEADS = (1, 2)


def by_head(v: Tensor, heads: int) -> Tensor:
    """[..., N*width] as [..., N, width]: the layout of a width that is no multiple of another one."""
    return v.reshape(*v.shape[:-1], heads, -1)


def project(p: Tensors, i: Tensors, heads: int, *gates: str) -> tuple[Tensor, ...]:
    """W x, with the gate's bias where it has one, as [T, B, N, width] of each gate."""
    found = (linear(i["x"], p[f"W_{gate}"], p.get(f"b_{gate}")) for gate in gates)
    return tuple(by_head(v, heads) for v in found)


def scan(first: Tensor, length: int, update: Callable[[Tensor, int], Tensor]) -> Tensor:
    """The states [T, ...] after each step."""
    states = []
    for t in range(length):
        first = update(first, t)
        states.append(first)
    return torch.stack(states)


def answer(y: Tensor, **finals: Tensor) -> Sequences:
    """Outputs [T, B, N, V] flattened."""
    return Sequences(y.flatten(-2), finals)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def read(q: Tensor, states: Tensor) -> Tensor:
    """q^T S for states of keys x values."""
    return torch.einsum("tbnk,tbnkv->tbnv", q, states)


def _gla(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Yang et al. 2024, section 4: S_t = (alpha_t^T 1) * S_{t-1} + k_t^T v_t,
    # alpha_t = sigmoid(x_t W1 W2 + b)^(1/16); the scale is fla's
    q, k, v = project(p, i, heads, "q", "k", "v")
    alpha = linear(i["x"], p["U_a"] @ p["W_low"], p["b_a"]).sigmoid().pow(1 / 16)
    alpha = by_head(alpha, heads)[..., None]
    states = scan(s["S"].mT, len(q), lambda S, t: alpha[t] * S + outer(k[t], v[t]))
    return answer(read(q * q.shape[-1] ** -0.5, states), S=states[-1].mT)


def _retnet(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Sun et al. 2023, the recurrent form without the rotation: gamma = 1 - 2^(-5 - arange(0, h))
    q, k, v = project(p, i, heads, "q", "k", "v")
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=v.dtype))
    states = scan(s["S"].mT, len(q), lambda S, t: torch.einsum("n,bnkv->bnkv", gamma, S) + outer(k[t], v[t]))
    return answer(read(q, states) * q.shape[-1] ** -0.5, S=states[-1].mT)


def _mamba2(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Dao, Gu 2024, with the release's A, dt, D: h = exp(dt A) h + dt B x, y = C h + D x; B, C of one group
    (x,) = project(p, i, heads, "v")
    b, c = (linear(i["x"], p[f"W_{gate}"]).unsqueeze(-2).expand(*x.shape[:3], -1) for gate in "BC")
    dt = softplus(linear(i["x"], p["W_dt"], p["b_dt"]))[..., None]
    decay = torch.exp(dt * -p["A"].exp()[:, None])[..., None]
    states = scan(s["S"].mT, len(x), lambda S, t: decay[t] * S + outer(dt[t] * b[t], x[t]))
    return answer(read(c, states) + p["D"][:, None] * x, S=states[-1].mT)


def _hgrn2(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Qin et al. 2024: h_t = diag(f_t) h_{t-1} + (1 - f_t) (x) i_t, y_t = h_t^T o_t
    q, f, v = project(p, i, heads, "q", "f", "v")
    low = by_head(p["lb"], heads)
    f = low + (1 - low) * f.sigmoid()
    states = scan(s["S"].mT, len(q), lambda S, t: torch.diag_embed(f[t]) @ S + outer(1 - f[t], v[t]))
    return answer(read(silu(q), states), S=states[-1].mT)


def _mlstm(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Beck et al. 2024, without the stabiliser: C and n times exp(m) are the paper's own states
    q, k, v, o = project(p, i, heads, "q", "k", "v", "o")
    k = k * k.shape[-1] ** -0.5
    log_f, log_i = (linear(i["x"], p[f"W_{gate}"], p[f"b_{gate}"]) for gate in "fi")
    log_f = logsigmoid(log_f)
    f, g = log_f.exp()[..., None], log_i.exp()[..., None]
    own = s["m"].exp()[..., None]
    c = scan(s["S"].mT * own[..., None], len(q), lambda C, t: f[t][..., None] * C + outer(g[t] * k[t], v[t]))
    n = scan(by_head(s["n"], heads) * own, len(q), lambda u, t: f[t] * u + g[t] * k[t])
    m = scan(s["m"], len(q), lambda u, t: torch.maximum(log_f[t] + u, log_i[t]))
    below = torch.einsum("tbnk,tbnk->tbn", n, q).abs().clamp(min=1)[..., None]
    scale = (-m[-1]).exp()[..., None]
    y = o.sigmoid() * read(q, c) / below
    return answer(y, S=c[-1].mT * scale[..., None], n=(n[-1] * scale).flatten(-2), m=m[-1])


def _gsa(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Zhang et al. 2024: K~_t = diag(a_t) K~_{t-1} + (1 - a_t) (x) k_t, V~ alike (slots x width),
    # o_t = V~_t^T softmax(K~_t q_t); a_t = sigmoid(W x)^(1/8)
    q, k, v = (silu(u) for u in project(p, i, heads, "q", "k", "v"))
    (a,) = project(p, i, heads, "a")
    a = a.sigmoid() ** 0.125
    slots_k = scan(s["P"].mT, len(q), lambda S, t: torch.diag_embed(a[t]) @ S + outer(1 - a[t], k[t]))
    slots_v = scan(s["S"].mT, len(q), lambda S, t: torch.diag_embed(a[t]) @ S + outer(1 - a[t], v[t]))
    scores = torch.einsum("tbnmk,tbnk->tbnm", slots_k, q)
    return answer(read(scores.softmax(-1), slots_v), P=slots_k[-1].mT, S=slots_v[-1].mT)


def _s6(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Gu, Dao 2023, algorithm 2, with mamba_ssm's Euler step for B; channels lie head by head, all share B and C
    x = by_head(i["x"], heads)
    b, c = (linear(i["x"], p[f"W_{gate}"]) for gate in "BC")
    delta = by_head(softplus(linear(linear(i["x"], p["W_low"]), p["U_delta"], p["b_delta"])), heads)
    rate = -p["A"].reshape(heads, -1, b.shape[-1]).exp()
    decay = torch.exp(torch.einsum("tbnh,nhd->tbnhd", delta, rate))
    given = torch.einsum("tbnh,tbd,tbnh->tbnhd", delta, b, x)
    states = scan(s["S"], len(x), lambda S, t: decay[t] * S + given[t])
    y = torch.einsum("tbnhd,tbd->tbnh", states, c) + by_head(p["D"], heads) * x
    return answer(y, S=states[-1])


def _mamba3(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Lahoti et al. 2026 in complex numbers: h_t = alpha h_{t-1} + beta B_{t-1} x_{t-1} + gamma B_t x_t,
    # alpha = exp(dt (A - i theta)), beta = (1 - lambda) dt alpha, gamma = lambda dt; y = Re(conj(h) C) + D x. The cell
    # keeps h times exp(i sum of dt theta), real parts first.
    half = len(p["W_th"])
    (x,) = project(p, i, heads, "v")
    dt, decay = (softplus(linear(i["x"], p[f"W_{gate}"], p.get(f"b_{gate}"))) for gate in ("dt", "a"))
    lam = linear(i["x"], p["W_lam"]).sigmoid()

    def pairs(gate: str) -> Tensor:
        # the bias lies in two parts, the real and the imaginary one, each head by head
        bias = p[f"b{gate}"].reshape(2, heads, half).transpose(0, 1).flatten(1)
        normed = torch.nn.functional.rms_norm(linear(i["x"], p[f"W_{gate}"]), (2 * half,), p[f"n{gate}"])
        v = normed.unsqueeze(-2) + bias
        return torch.complex(v[..., :half], v[..., half:])

    b, c = pairs("B"), pairs("C")
    turn = dt[..., None] * torch.pi * linear(i["x"], p["W_th"]).tanh().unsqueeze(-2)
    alpha = torch.exp(torch.complex((-dt * decay)[..., None].expand_as(turn), -turn))
    now = outer(x, b) * (lam * dt)[..., None, None]
    kept = torch.cat([torch.zeros_like(now[:1]), outer(x, b)[:-1]]) * ((1 - lam) * dt)[..., None, None]
    start = by_head(s["ang"], heads)
    unit = torch.polar(torch.ones_like(start), -start)[..., None, :]
    first = torch.complex(s["S"][..., :half], s["S"][..., half:]) * unit
    h = scan(first, len(x), lambda S, t: alpha[t][..., None, :] * (S + kept[t]) + now[t])
    y = torch.einsum("tbnvk,tbnk->tbnv", h.conj(), c).real + p["D"][:, None] * x
    angle = start + turn.sum(0)
    last = h[-1] * torch.polar(torch.ones_like(angle), angle)[..., None, :]
    return answer(y, S=torch.cat([last.real, last.imag], -1), ang=angle.flatten(-2))


_S = {"S": "H,K"}
_SIZES = {"I": 5, "H": 6, "K": 4}


def oracle(
    cell: str, source: str, forward: ForwardOfHeads, parameters: str, states: dict[str, str] | None = None
) -> Oracle:
    """An oracle of keys in K, values in H."""
    return Oracle(cell, source, forward, parameters, states or _S, HEADS, sizes=_SIZES, dims=("K",))


ORACLES: tuple[Oracle, ...] = (
    Oracle(
        "gla",
        "paper",
        _gla,
        "W[K,I]:q,k W:v W[R,I]:low U[K,R]:a b[K]:a",
        _S,
        HEADS,
        sizes={**_SIZES, "R": 3, "rank": 3},
        dims=("K", "rank"),
    ),
    oracle("retnet", "paper", _retnet, "W[K,I]:q,k W:v"),
    Oracle(
        "mamba2",
        "paper",
        _mamba2,
        "W:v W[N,I]:B,C W[num_heads,I]:dt b[num_heads]:dt A[num_heads] D[num_heads]",
        {"S": "H,N*num_heads"},
        HEADS,
        sizes={"I": 5, "H": 6, "N": 4},
        dims=("N",),
    ),
    Oracle(
        "hgrn2",
        "paper",
        _hgrn2,
        "W[K,I]:q,f W:v lb[K]",
        _S,
        HEADS,
        sizes=_SIZES,
        dims=("K",),
        ranges={"lb": (0.0, 0.9)},
    ),
    Oracle(
        "mlstm",
        "paper",
        _mlstm,
        "W[K,I]:q,k W:v,o b:o W[num_heads,I]:i,f b[num_heads]:i,f",
        {"S": "H,K", "n": "K", "m": "num_heads"},
        HEADS,
        defaults={"m": -torch.inf},
        sizes=_SIZES,
        dims=("K",),
    ),
    Oracle(
        "gsa",
        "paper",
        _gsa,
        "W[K,I]:q,k W:v W[M*num_heads,I]:a",
        {"P": "K,M*num_heads", "S": "H,M*num_heads"},
        HEADS,
        sizes={**_SIZES, "M": 3},
        dims=("K", "M"),
    ),
    Oracle(
        "s6",
        "mamba_ssm",
        _s6,
        "W[R,I]:low W[N,I]:B,C U[H,R]:delta b:delta A[num_heads,H/num_heads,N] D",
        {"S": "H,N*num_heads"},
        HEADS,
        sizes={"I": 6, "H": 6, "R": 3, "rank": 3, "N": 16},
        dims=("rank", "N"),
    ),
    Oracle(
        "mamba3",
        "paper",
        _mamba3,
        "W:v W[2*P,I]:B,C W[P,I]:th W[num_heads,I]:dt,a,lam b[num_heads]:dt "
        "nB[2*P] nC[2*P] bB[2*P*num_heads] bC[2*P*num_heads] D[num_heads]",
        {"S": "H,2*P*num_heads", "ang": "P*num_heads"},
        HEADS,
        sizes={"I": 5, "H": 6, "P": 2},
        dims=("P",),
    ),
)
