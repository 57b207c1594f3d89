"""Cells whose matrix state corrects itself: delta rules and layers that learn while they run, from their papers.

Where a paper's step is a gradient step on a loss, torch's autograd takes the gradient; where it is a product with
(I - beta k k^T), that matrix is made. States are as in `formulas_matrix_states`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, silu, softplus

from .base import Oracle, Sequences, Tensors
from .formulas_matrix_states import HEADS, answer, by_head, oracle, outer, project, read, scan


def l2norm(v: Tensor) -> Tensor:
    # fla, modules/l2norm.py
    return v * torch.rsqrt(v.square().sum(-1, keepdim=True) + 1e-6)


def keys(p: Tensors, i: Tensors, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of fla's layers without their convolutions."""
    q, k, v = (silu(u) for u in project(p, i, heads, "q", "k", "v"))
    return l2norm(q) * q.shape[-1] ** -0.5, l2norm(k), v


def number(p: Tensors, i: Tensors, gate: str) -> Tensor:
    """One number per head, [T, B, N, 1, 1]."""
    return linear(i["x"], p[f"W_{gate}"], p.get(f"b_{gate}"))[..., None, None]


def mamba_decay(p: Tensors, i: Tensors) -> Tensor:
    """exp(-exp(A) softplus(W x + b)), as in Mamba-2."""
    return torch.exp(-p["lam"].exp()[:, None, None] * softplus(number(p, i, "a")))


def reflection(beta: Tensor, k: Tensor) -> Tensor:
    """I - beta k k^T."""
    return torch.eye(k.shape[-1], dtype=k.dtype) - beta * outer(k, k)


def _deltanet(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Yang et al. 2024 (NeurIPS): S_t = S_{t-1} (I - beta k k^T) + beta v k^T, values x keys
    q, k, v = keys(p, i, heads)
    beta = number(p, i, "be").sigmoid()
    states = scan(s["S"], len(q), lambda S, t: S @ reflection(beta[t], k[t]) + beta[t] * outer(v[t], k[t]))
    return answer(read(q, states.mT), S=states[-1])


def _gated_deltanet(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Yang, Kautz, Hatamizadeh 2025: S_t = S_{t-1} (alpha (I - beta k k^T)) + beta v k^T
    q, k, v = keys(p, i, heads)
    alpha, beta = mamba_decay(p, i), number(p, i, "be").sigmoid()
    states = scan(s["S"], len(q), lambda S, t: S @ (alpha[t] * reflection(beta[t], k[t])) + beta[t] * outer(v[t], k[t]))
    return answer(read(q, states.mT), S=states[-1])


def _kda(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Kimi Team 2025: S_t = (I - beta k k^T) Diag(alpha) S_{t-1} + beta k v^T, keys x values
    q, k, v = keys(p, i, heads)
    beta = number(p, i, "be").sigmoid()
    rate = by_head(linear(linear(i["x"], p["W_low"]), p["U_a"], p["b_a"]), heads)
    alpha = torch.exp(-p["lam"].exp()[:, None] * softplus(rate))

    def update(S: Tensor, t: int) -> Tensor:
        return reflection(beta[t], k[t]) @ torch.diag_embed(alpha[t]) @ S + beta[t] * outer(k[t], v[t])

    states = scan(s["S"].mT, len(q), update)
    return answer(read(q, states), S=states[-1].mT)


def _rwkv7(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Peng et al. 2025, the time mix: wkv_t = wkv_{t-1} (diag(w) - kk^T (a * kk)) + v^T k~, y = wkv r,
    # with w = exp(-e^-0.5 sigmoid(.)), kk = k * xi / |k * xi|, k~ = k * (1 + (a - 1) * alpha)
    r, k, v = project(p, i, heads, "r", "k", "v")
    low = torch.tanh(linear(i["x"], p["W_lw"]))
    w = by_head(torch.exp(-(torch.tensor(-0.5).double().exp()) * linear(low, p["U_w"], p["b_w"]).sigmoid()), heads)
    a = by_head(linear(linear(i["x"], p["W_la"]), p["U_a"], p["b_a"]).sigmoid(), heads)
    kk = torch.nn.functional.normalize(k * by_head(p["xi"], heads), dim=-1)
    replacement = torch.lerp(k, k * a, by_head(p["al"], heads))
    states = scan(
        s["S"],
        len(r),
        lambda S, t: S @ (torch.diag_embed(w[t]) - outer(kk[t], a[t] * kk[t])) + outer(v[t], replacement[t]),
    )
    return answer(read(r, states.mT), S=states[-1])


def _comba(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Hu et al. 2025, with the decay where fla's naive_recurrent_comba has it: S_t = alpha S_{t-1} (I - beta p k^T)
    # + beta v k^T, p = b k, o_t = S_t (q_t - d k_t)
    q, k, v = keys(p, i, heads)
    alpha, beta = mamba_decay(p, i), number(p, i, "be").sigmoid()
    closed = beta * p["c"].sigmoid()[:, None, None]
    states = scan(
        s["S"],
        len(q),
        lambda S, t: alpha[t] * S @ reflection(closed[t], k[t]) + beta[t] * outer(v[t], k[t]),
    )
    # fla scales q - d k as a whole; `keys` has scaled q
    d = p["d"][:, None] * k.shape[-1] ** -0.5
    return answer(read(q - d * k, states.mT), S=states[-1])


def _deltaproduct(steps: int) -> Callable[..., Sequences]:
    # Siems et al. 2025: S_t = A_t S_{t-1} + B_t, A_t the product of (I - beta_j k_j k_j^T), here times the gate
    # of Gated DeltaProduct; keys x values, beta in (0, 2)

    def forward(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
        turns = []
        for j in range(1, steps + 1):
            k, v = (silu(u) for u in project(p, i, heads, f"k_{j}", f"v_{j}"))
            turns.append((l2norm(k), v, 2 * number(p, i, f"be_{j}").sigmoid()))
        alpha = mamba_decay(p, i)
        (q,) = project(p, i, heads, "q")

        def update(S: Tensor, t: int) -> Tensor:
            product, given = alpha[t] * torch.eye(q.shape[-1], dtype=q.dtype), torch.zeros_like(S)
            for k, v, beta in turns:
                householder = reflection(beta[t], k[t])
                product, given = householder @ product, householder @ given + beta[t] * outer(k[t], v[t])
            return product @ S + given

        states = scan(s["S"].mT, len(q), update)
        return answer(read(l2norm(silu(q)) * q.shape[-1] ** -0.5, states), S=states[-1].mT)

    return forward


def _titans(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
    # Behrouz et al. 2025, section 3.1 with a linear memory: S_t = eta S_{t-1} - theta grad l(M_{t-1}; x_t),
    # M_t = (1 - alpha) M_{t-1} + S_t, l = |M k - v|^2, y = M q
    q, k, v = (silu(u) for u in project(p, i, heads, "q", "k", "v"))
    q, k = (torch.nn.functional.normalize(u, dim=-1) for u in (q, k))
    alpha, eta, theta = (number(p, i, gate).sigmoid() for gate in ("al", "et", "th"))
    memory, surprise, outputs = s["M"], s["S"], []
    for t in range(len(q)):

        def loss(m: Tensor, t: int = t) -> Tensor:
            return (torch.einsum("bnvk,bnk->bnv", m, k[t]) - v[t]).square().sum()

        surprise = eta[t] * surprise - theta[t] * gradient(loss, memory)[0]
        memory = (1 - alpha[t]) * memory + surprise
        outputs.append(torch.einsum("bnvk,bnk->bnv", memory, q[t]))
    return answer(torch.stack(outputs), M=memory, S=surprise)


def gradient(loss: Callable[..., Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
    """The loss's gradient, itself differentiable in everything the loss is made of."""
    with torch.enable_grad():
        given = [weight if weight.requires_grad else weight.detach().requires_grad_() for weight in weights]
        return torch.autograd.grad(loss(*given), given, create_graph=True)


def _ttt_linear(rate: float) -> Callable[..., Sequences]:
    # Sun et al. 2024, section 2: f(u; W, b) = u + LN(W u + b), loss |f(k) - v|^2 / 2, a gradient step at every token
    # with eta = rate sigmoid(.) / width, z = f(q); LN's eps is the release's

    def forward(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
        q, k, v = project(p, i, heads, "q", "k", "v")
        width = q.shape[-1]
        gain, shift = by_head(p["gain"], heads), by_head(p["shift"], heads)
        eta = rate * number(p, i, "be").sigmoid() / width

        def f(u: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return u + gain * layer_norm(torch.einsum("bnij,bnj->bni", w, u) + b, (width,), eps=1e-6) + shift

        w, b, outputs = s["S"], by_head(s["c"], heads), []
        for t in range(len(q)):

            def loss(w: Tensor, b: Tensor, t: int = t) -> Tensor:
                return 0.5 * (f(k[t], w, b) - v[t]).square().sum()

            dw, db = gradient(loss, w, b)
            w, b = w - eta[t] * dw, b - eta[t][..., 0] * db
            outputs.append(f(q[t], w, b))
        return answer(torch.stack(outputs), S=w, c=b.flatten(-2))

    return forward


def _mesanet(turns: int) -> Callable[..., Sequences]:
    # von Oswald et al. 2025: H_kk = gamma H_kk + beta k k^T, H_kv alike, o = H_kv (H_kk + Lambda)^-1 q by
    # conjugate gradients from q / (diag H_kk + Lambda), as fla's decoding step has it

    def forward(p: Tensors, i: Tensors, s: Tensors, *, heads: int) -> Sequences:
        q, k, v = project(p, i, heads, "q", "k", "v")
        q, k = l2norm(silu(q)), l2norm(silu(k))
        gamma, beta = (number(p, i, gate).sigmoid() for gate in ("a", "be"))
        ridge = torch.diag_embed(by_head(softplus(p["lam"]) + 0.25, heads))
        pairs = scan(s["G"], len(q), lambda S, t: gamma[t] * S + beta[t] * outer(k[t], k[t]))
        values = scan(s["S"], len(q), lambda S, t: gamma[t] * S + beta[t] * outer(v[t], k[t]))
        system = pairs + ridge

        def dot(a: Tensor, b: Tensor) -> Tensor:
            return torch.einsum("tbnk,tbnk->tbn", a, b)[..., None]

        x = q / system.diagonal(dim1=-2, dim2=-1)
        r = q - (system @ x[..., None])[..., 0]
        d = r
        for _ in range(turns):
            image = (system @ d[..., None])[..., 0]
            step = dot(r, r) / (dot(d, image) + 1e-5)
            x, old, r = x + step * d, dot(r, r), r - step * image
            d = r + dot(r, r) / (old + 1e-5) * d
        return answer(read(x, values.mT), G=pairs[-1], S=values[-1])

    return forward


_GATED = "W[K,I]:q,k W:v W[num_heads,I]:a,be b[num_heads]:a lam[num_heads]"
_LOW = {"I": 5, "H": 6, "K": 4, "R": 3, "rank": 3}

ORACLES: tuple[Oracle, ...] = (
    oracle("deltanet", "paper", _deltanet, "W[K,I]:q,k W:v W[num_heads,I]:be"),
    oracle("gateddeltanet", "paper", _gated_deltanet, _GATED),
    Oracle(
        "kda",
        "paper",
        _kda,
        "W[K,I]:q,k W:v W[R,I]:low U[K,R]:a b[K]:a W[num_heads,I]:be lam[num_heads]",
        {"S": "H,K"},
        HEADS,
        sizes=_LOW,
        dims=("K", "rank"),
    ),
    Oracle(
        "rwkv7",
        "paper",
        _rwkv7,
        "W[K,I]:r,k W:v W[R,I]:lw,la U[K,R]:w,a b[K]:w,a xi[K] al[K]",
        {"S": "H,K"},
        HEADS,
        sizes=_LOW,
        dims=("K", "rank"),
    ),
    oracle("comba", "paper", _comba, f"{_GATED} c[num_heads] d[num_heads]"),
    *(
        Oracle(
            "deltaproduct",
            source,
            _deltaproduct(steps),
            " ".join(f"W[K,I]:k_{j} W:v_{j} W[num_heads,I]:be_{j}" for j in range(1, steps + 1))
            + " W[K,I]:q W[num_heads,I]:a b[num_heads]:a lam[num_heads]",
            {"S": "H,K"},
            HEADS,
            sizes={"I": 5, "H": 6, "K": 4},
            dims=("K",),
            shaping={"n": steps},
        )
        for source, steps in (("paper", 2), ("paper(n=3)", 3))
    ),
    oracle(
        "titans",
        "paper",
        _titans,
        "W[K,I]:q,k W:v W[num_heads,I]:al,et,th b[num_heads]:al,et,th",
        {"M": "H,K", "S": "H,K"},
    ),
    Oracle(
        "ttt_linear",
        "paper",
        _ttt_linear(0.5),
        "W:q,k,v W[num_heads,I]:be b[num_heads]:be gain shift S0[num_heads,H/num_heads,H/num_heads] c0[H]",
        {"S": "H,H", "c": "H"},
        HEADS,
        learned=("S", "c"),
        sizes={"I": 5, "H": 6},
        constants={"rate": 0.5},
    ),
    Oracle(
        "mesanet",
        "paper",
        _mesanet(4),
        "W[K,I]:q,k W:v W[num_heads,I]:a,be b[num_heads]:a,be lam[K]",
        {"G": "K,K", "S": "H,K"},
        HEADS,
        sizes={"I": 5, "H": 6, "K": 4},
        dims=("K",),
        shaping={"L": 4},
        ranges={"G": (-0.1, 0.1)},
    ),
)
