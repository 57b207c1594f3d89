"""Networks with a matrix beside a vector, or a matrix made at every step: plasticity, memories, stores, synapses.

States and blocks are as in `formulas_matrix_states`; these step over time with vectors [B, N, width].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, layer_norm, linear, softplus

from .base import ForwardOfHeads, Oracle, Sequences, Tensors
from .formulas_matrix_states import HEADS, by_head, outer

State = dict[str, Tensor]
Step = Callable[[Tensors, State, State, int], tuple[Tensor, State]]


def loop(step: Step) -> ForwardOfHeads:
    """The step over all times."""

    def forward(parameters: Tensors, inputs: Tensors, states: Tensors, /, *, heads: int) -> Sequences:
        current, outputs = dict(states), []
        for t in range(len(inputs["x"])):
            output, current = step(parameters, {name: value[t] for name, value in inputs.items()}, current, heads)
            outputs.append(output)
        return Sequences(torch.stack(outputs), current)

    return forward


def blocks(matrix: Tensor, v: Tensor, heads: int) -> Tensor:
    """A block-diagonal matrix times v [B, width], as [B, N, rows of a head]."""
    return torch.einsum("nij,bnj->bni", matrix.reshape(heads, -1, v.shape[-1] // heads), by_head(v, heads))


def _plasticity(p: Tensors, i: State, s: State, heads: int) -> tuple[Tensor, State]:
    # Miconi et al. 2018, eq. 1-2: x_j = tanh(sum over i of (w_ij + alpha_ij Hebb_ij) x_i + input), then
    # Hebb_ij = eta x_i(t-1) x_j(t) + (1 - eta) Hebb_ij; here the receiving unit j counts the rows
    old = by_head(s["h"], heads)
    plastic = torch.einsum("nji,bnji,bni->bnj", p["A"].reshape(heads, *s["P"].shape[-2:]), s["P"], old)
    h = (linear(i["x"], p["W_h"], p["b_h"]) + (blocks(p["R_h"], s["h"], heads) + plastic).flatten(1)).tanh()
    trace = torch.lerp(s["P"], outer(by_head(h, heads), old), p["eta"])
    return h, {"h": h, "P": trace}


def _fast_weights(turns: int, decay: float, eta: float) -> Step:
    # Ba et al. 2016, eq. 1-2 and section 3.2: A(t) = lambda A(t-1) + eta h(t) h(t)^T,
    # h_{s+1}(t+1) = f(LN(W h(t) + C x(t) + A(t) h_s(t+1))), f = relu

    def step(p: Tensors, i: State, s: State, heads: int) -> tuple[Tensor, State]:
        slow = by_head(linear(i["x"], p["W_z"], p["b_z"]), heads) + blocks(p["R_z"], s["h"], heads)
        old = by_head(s["h"], heads)
        fast = decay * s["A"] + eta * outer(old, old)
        h = slow.relu()
        for _ in range(turns):
            normed = layer_norm(slow + (fast @ h[..., None])[..., 0], h.shape[-1:])
            h = (by_head(p["gain"], heads) * normed + by_head(p["shift"], heads)).relu()
        return h.flatten(1), {"h": h.flatten(1), "A": fast}

    return step


def _ntm(p: Tensors, i: State, s: State, heads: int) -> tuple[Tensor, State]:
    # Graves et al. 2014, eq. 2-9; both heads address the old memory, the read head reads the new one
    memory = s["mem"]
    mixed = linear(i["x"], p["W_h"], p["b_h"]) + blocks(p["R_h"], s["h"], heads).flatten(1)
    h = torch.tanh(mixed + blocks(p["V_h"], s["r"], heads).flatten(1))

    def emit(gate: str) -> Tensor:
        return blocks(p[f"R_{gate}"], h, heads) + by_head(p[f"b_{gate}"], heads)

    def address(kind: str, old: Tensor) -> Tensor:
        key, strength = emit(f"k{kind}"), softplus(emit(f"b{kind}"))
        content = (strength * cosine_similarity(memory, key[..., None, :], dim=-1)).softmax(-1)
        gated = torch.lerp(old, content, emit(f"g{kind}").sigmoid())
        # three numbers a head lie in three parts: left, stay, right
        raw = blocks(p[f"R_s{kind}"].reshape(3, heads, -1).transpose(0, 1), h, heads)
        shift = (raw + p[f"b_s{kind}"].reshape(3, heads).t()).softmax(-1)
        slots = memory.shape[-2]
        places = torch.arange(slots)
        # w~(i) = sum over j of w(j) s(i - j)
        circulant = torch.stack(
            [shift[..., 1 + d, None, None] * (((places[:, None] - places) % slots) == d % slots) for d in (-1, 0, 1)]
        ).sum(0)
        sharp = (circulant @ gated[..., None])[..., 0] ** (1 + softplus(emit(f"y{kind}")))
        return sharp / sharp.sum(-1, keepdim=True)

    reading, writing = (address(kind, by_head(s[name], heads)) for kind, name in (("r", "rd"), ("w", "wr")))
    memory = memory * (1 - outer(writing, emit("er").sigmoid())) + outer(writing, emit("ad"))
    r = torch.einsum("bnl,bnlm->bnm", reading, memory)
    return h, {"h": h, "mem": memory, "rd": reading.flatten(1), "wr": writing.flatten(1), "r": r.flatten(1)}


def _mass_lstm(p: Tensors, i: State, s: State, heads: int) -> tuple[Tensor, State]:
    # Hoedt et al. 2021: m_tot = R c + i x, R and i of softmax, c = (1 - o) m_tot, h = o m_tot; the gates see
    # auxiliary inputs and c / |c|_1
    c = by_head(s["c"], heads)
    total = c.sum(-1, keepdim=True)
    n = (c / torch.where(total == 0, torch.ones_like(total), total)).flatten(1)
    width = c.shape[-1]

    def gate(name: str) -> Tensor:
        return by_head(linear(i["x"], p[f"W_{name}"], p[f"b_{name}"]), heads) + blocks(p[f"R_{name}"], n, heads)

    # a store j gives its mass away to all stores i: R[i, j] sums to 1 over i
    share = gate("Q").reshape(-1, heads, width, width).softmax(-2)
    mass = torch.einsum("bnij,bnj->bni", share, c) + gate("i").softmax(-1) * i["mass"][..., None]
    o = gate("o").sigmoid()
    h = (o * mass).flatten(1)
    return h, {"c": ((1 - o) * mass).flatten(1)}


def _ltc_pairs(unfolds: int) -> Step:
    # Hasani et al. 2021, and its release's cell (ncps, LTCCell): the semi-implicit Euler step of
    # cm dv/dt = gl (vl - v) + sum over j of w_ij sigmoid(sg_ij (v_j - mu_ij)) (E_ij - v), inputs alike

    def step(p: Tensors, i: State, s: State, heads: int) -> tuple[Tensor, State]:
        def synapses(v: Tensor, suffix: str) -> tuple[Tensor, Tensor]:
            drive = p[f"sg{suffix}"] * (v[:, None, :] - p[f"mu{suffix}"])
            g = p[f"w{suffix}"] * torch.sigmoid(drive)
            return torch.einsum("bij,ij->bi", g, p[f"E{suffix}"]), g.sum(-1)

        v, (current, conductance) = s["v"], synapses(i["x"], "x")
        cm = p["cm"] / (i["ts"] / unfolds)
        for _ in range(unfolds):
            inner, total = synapses(v, "")
            v = (cm * v + p["gl"] * p["vl"] + inner + current) / (cm + p["gl"] + total + conductance + 1e-8)
        return v, {"v": v}

    return step


_SQUARE = "num_heads,H/num_heads,H/num_heads"
_TO_KEY = "num_heads,M,H/num_heads"
_TO_ONE = "num_heads,1,H/num_heads"

ORACLES: tuple[Oracle, ...] = (
    Oracle(
        "plasticity",
        "paper",
        loop(_plasticity),
        f"W:h R[{_SQUARE}]:h b:h A[{_SQUARE}] eta[1]",
        {"h": "H", "P": "H,H"},
        HEADS,
        sizes={"I": 5, "H": 6},
        ranges={"eta": (0.1, 0.9)},
    ),
    *(
        Oracle(
            "fastweights",
            source,
            loop(_fast_weights(turns, 0.9, 0.4)),
            f"W:z R[{_SQUARE}]:z b:z gain shift",
            {"h": "H", "A": "H,H"},
            HEADS,
            sizes={"I": 5, "H": 6},
            constants={"decay": 0.9, "eta": 0.4},
            shaping={"S": turns},
        )
        for source, turns in (("paper", 1), ("paper(S=3)", 3))
    ),
    Oracle(
        "ntm",
        "paper",
        loop(_ntm),
        f"W:h R[{_SQUARE}]:h V[num_heads,H/num_heads,M]:h b:h R[{_TO_KEY}]:kr,kw,er,ad b[M*num_heads]:kr,kw,er,ad "
        f"R[{_TO_ONE}]:br,bw,gr,gw,yr,yw b[num_heads]:br,bw,gr,gw,yr,yw "
        "R[3,num_heads,1,H/num_heads]:sr,sw b[3*num_heads]:sr,sw mem0[num_heads,L,M]",
        {"h": "H", "mem": "L*num_heads,M*num_heads", "rd": "L*num_heads", "wr": "L*num_heads", "r": "M*num_heads"},
        HEADS,
        learned=("mem",),
        sizes={"I": 5, "H": 6, "L": 5, "M": 3},
        dims=("L", "M"),
        ranges={"rd": (0.1, 1.0), "wr": (0.1, 1.0)},
    ),
    Oracle(
        "masslstm",
        "paper",
        loop(_mass_lstm),
        f"W:i,o R[{_SQUARE}]:i,o b:i,o W[H*H/num_heads,I]:Q "
        "R[num_heads,H*H/num_heads/num_heads,H/num_heads]:Q b[H*H/num_heads]:Q",
        {"c": "H"},
        HEADS,
        inputs={"mass": "1"},
        sizes={"I": 5, "H": 6},
        ranges={"c": (0.1, 1.0), "mass": (0.0, 1.0)},
    ),
    *(
        Oracle(
            "ltc_pairs",
            source,
            loop(_ltc_pairs(unfolds)),
            "w[H,H] sg[H,H] mu[H,H] E[H,H] wx[H,I] sgx[H,I] mux[H,I] Ex[H,I] gl vl cm",
            {"v": "H"},
            (1,),
            inputs={"ts": "1"},
            sizes={"I": 5, "H": 6},
            shaping={"L": unfolds},
            ranges={"ts": (0.1, 2.0), "w": (0.1, 1.0), "wx": (0.1, 1.0), "gl": (0.1, 1.0), "cm": (0.3, 0.6)},
        )
        for source, unfolds in (("paper", 6), ("paper(L=2)", 2))
    ),
)
