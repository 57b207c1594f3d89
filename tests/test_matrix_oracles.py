"""The oracles of cells with matrix states against second forms: sums over the past, systems of equations, invariants.

A head's vectors are [T, B, N, width] here and its states values x keys, as `hx` has them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid, normalize, rms_norm, silu, softplus

from .oracles import Case, Oracle, Sequences, draw, relative_error, results
from .oracles import formulas_matrix_delta as delta
from .oracles import formulas_matrix_memory as memory
from .oracles import formulas_matrix_states as states
from .oracles import formulas_scan as scan
from .oracles.formulas_matrix_states import by_head, outer, project

ORACLES = (*states.ORACLES, *delta.ORACLES, *memory.ORACLES)
TOLERANCE = 1e-12
RUNS = [(oracle, heads) for oracle in ORACLES for heads in oracle.num_heads]
TWO = pytest.mark.parametrize("heads", [1, 2])


def run(cell: str, heads: int, source: str = "paper") -> tuple[Case, Sequences]:
    """The oracle's results, and the case that it was given."""
    oracle = next(oracle for oracle in ORACLES if (oracle.cell, oracle.source) == (cell, source))
    case = draw(oracle, seed=1, steps=7, batch=2, states=True, heads=heads)
    return case, oracle.run(case, heads)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= TOLERANCE


def number(case: Case, gate: str) -> Tensor:
    p = case.parameters
    return linear(case.inputs["x"], p[f"W_{gate}"], p.get(f"b_{gate}"))[..., None]


def survived(d: Tensor) -> Tensor:
    """[t, s]: the product of d[s + 1] … d[t], 1 on the diagonal; 0 where s > t. One row more than d has: s = -1."""
    one = torch.ones_like(d[:1])
    padded = torch.cat([one, d])
    rows = []
    for t in range(1, len(padded)):
        row = [padded[s + 1 : t + 1].prod(0) for s in range(t + 1)]
        rows.append(torch.stack([*row, *[torch.zeros_like(d[0])] * (len(d) - t)]))
    return torch.stack(rows)


def attended(q: Tensor, k: Tensor, v: Tensor, d: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and last state of S = S diag(d) + v k^T, as attention whose scores decay."""
    kept = survived(d.expand_as(k))
    scores = torch.einsum("tbnk,tsbnk,sbnk->tsbn", q, kept[:, 1:], k)
    y = torch.einsum("tsbn,sbnv->tbnv", scores, v) + torch.einsum("tbnk,tbnk,bnvk->tbnv", q, kept[:, 0], first)
    last = torch.einsum("sbnv,sbnk,sbnk->bnvk", v, kept[-1, 1:], k) + first * kept[-1, 0][..., None, :]
    return y.flatten(2), last


def solved(w: Tensor, p: Tensor, c: Tensor, d: Tensor, first: Tensor, *, late: bool) -> Tensor:
    """The rows e of S = S diag(d) + e p^T, e = c + S[t-1] w (late: + S[t-1] diag(d) w), all times at once."""
    kept = survived(d.expand_as(p))
    if not late:
        kept = torch.cat([torch.ones_like(kept[:1]), kept[:-1]])
    scores = torch.einsum("tbnk,tsbnk,sbnk->bnts", w, kept[:, 1:], p).tril(-1)
    right = c + torch.einsum("tbnk,tbnk,bnvk->tbnv", w, kept[:, 0], first)
    e: Tensor = torch.linalg.solve(torch.eye(len(p), dtype=p.dtype) - scores, right.permute(1, 2, 0, 3))
    return e.permute(2, 0, 1, 3)


def unit(v: Tensor) -> Tensor:
    length: Tensor = torch.sqrt(v.square().sum(-1, keepdim=True) + 1e-6)
    return v / length


def deltas(case: Case, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (silu(u) for u in project(case.parameters, case.inputs, heads, "q", "k", "v"))
    return unit(q) / q.shape[-1] ** 0.5, unit(k), v


@pytest.mark.parametrize(("oracle", "heads"), RUNS, ids=lambda value: str(value))
def test_gradients_exist(oracle: Oracle, heads: int) -> None:
    """Every parameter, input and initial state matters, and the shapes are those that are declared."""
    found: set[str] = set()
    for given in (False, True):
        case = draw(oracle, seed=1, steps=7, batch=2, states=given, heads=heads)
        if given:
            assert case.states is not None
            assert {k: v.shape for k, v in oracle.run(case, heads).finals.items()} == {
                k: v.shape for k, v in case.states.items()
            }
        values = results(oracle.run(case, heads), case, seed=2)
        assert all(value.isfinite().all() for value in values.values())
        found |= {name for name, value in values.items() if value.abs().max() > 0}
    assert {f"d {name}" for name in case.leaves()} <= found


@pytest.mark.parametrize("oracle", [oracle for oracle, heads in RUNS if heads == 2], ids=str)
def test_heads_are_apart(oracle: Oracle) -> None:
    """Nothing of one head's matrix reaches the other's."""
    case = draw(oracle, seed=1, steps=3, batch=2, states=True, heads=2)
    assert case.states is not None
    name = next((name for name, width in oracle.states.items() if "," in width), "c")
    first, last = case.states[name], oracle.run(case, 2).finals[name]
    half = last.shape[1] // 2
    (gradient,) = torch.autograd.grad(last[:, half:].sum(), first)
    assert gradient[:, :half].abs().max() == 0 < gradient[:, half:].abs().max()


@TWO
@pytest.mark.parametrize("cell", ["gla", "retnet", "mamba2", "hgrn2"])
def test_known_updates_are_attention(cell: str, heads: int) -> None:
    case, found = run(cell, heads)
    p, x = case.parameters, case.inputs["x"]
    assert case.states is not None
    if cell == "mamba2":
        (v,) = project(p, case.inputs, heads, "v")
        k, q = (linear(x, p[f"W_{gate}"])[:, :, None].expand(-1, -1, heads, -1) for gate in "BC")
        dt = softplus(number(case, "dt"))
        y, last = attended(q, dt * k, v, torch.exp(-dt * p["A"].exp()[:, None]), case.states["S"])
        y = y + (p["D"][:, None] * v).flatten(2)
    elif cell == "hgrn2":
        q, f, v = project(p, case.inputs, heads, "q", "f", "v")
        f = 1 - (1 - by_head(p["lb"], heads)) * (1 - f.sigmoid())
        y, last = attended(silu(q), 1 - f, v, f, case.states["S"])
    else:
        q, k, v = project(p, case.inputs, heads, "q", "k", "v")
        low = linear(linear(x, p["W_low"]), p["U_a"], p["b_a"]) if cell == "gla" else None
        fixed = torch.tensor([[31 / 32], [63 / 64]], dtype=v.dtype)[:heads]
        a = fixed.expand_as(k) if low is None else torch.exp(logsigmoid(by_head(low, heads)) / 16)
        y, last = attended(q / k.shape[-1] ** 0.5, k, v, a, case.states["S"])
    close(found.output, y)
    close(found.finals["S"], last)


@TWO
def test_mlstm_is_its_stabilised_loop(heads: int) -> None:
    case, found = run("mlstm", heads)
    assert case.states is not None
    q, k, v, o = project(case.parameters, case.inputs, heads, "q", "k", "v", "o")
    S, n, m = case.states["S"], by_head(case.states["n"], heads), case.states["m"][..., None]
    outputs = []
    for t in range(len(q)):
        i, f = number(case, "i")[t], logsigmoid(number(case, "f")[t])
        m, old = torch.maximum(f + m, i), m
        fe, ie, ks = torch.exp(f + old - m), torch.exp(i - m), k[t] / k.shape[-1] ** 0.5
        S, n = fe[..., None] * S + ie[..., None] * outer(v[t], ks), fe * n + ie * ks
        below = torch.maximum((n * q[t]).sum(-1, keepdim=True).abs(), torch.exp(-m))
        outputs.append(o[t].sigmoid() * (S @ q[t][..., None])[..., 0] / below)
    close(found.output, torch.stack(outputs).flatten(2))
    for name, value in {"S": S, "n": n.flatten(1), "m": m[..., 0]}.items():
        close(found.finals[name], value)


@TWO
def test_gsa_is_attention_over_slots(heads: int) -> None:
    case, found = run("gsa", heads)
    assert case.states is not None
    q, k, v = (silu(u) for u in project(case.parameters, case.inputs, heads, "q", "k", "v"))
    a = torch.exp(logsigmoid(by_head(number(case, "a")[..., 0], heads)) / 8)
    kept = survived(a)

    def slots(value: Tensor, first: Tensor) -> Tensor:
        given = torch.einsum("tsbnm,sbnm,sbnv->tbnvm", kept[:, 1:], 1 - a, value)
        return given + torch.einsum("tbnm,bnvm->tbnvm", kept[:, 0], first)

    keys, values = slots(k, case.states["P"]), slots(v, case.states["S"])
    share = torch.einsum("tbnkm,tbnk->tbnm", keys, q).softmax(-1)
    close(found.output, torch.einsum("tbnvm,tbnm->tbnv", values, share).flatten(2))
    close(found.finals["P"], keys[-1])


def test_s6_is_the_old_s6() -> None:
    case, found = run("s6", 1, "mamba_ssm")
    assert case.states is not None
    (old,) = (oracle for oracle in scan.ORACLES if oracle.cell == "s6")
    p = {**case.parameters, **{f"a{n + 1}": case.parameters["A"][0, :, n] for n in range(16)}}
    own = {f"s{n + 1}": case.states["S"][:, 0, :, n] for n in range(16)}
    expected = old.run(Case(p, case.inputs, own))
    close(found.output, expected.output)
    close(found.finals["S"][:, 0], torch.stack([expected.finals[f"s{n + 1}"] for n in range(16)], -1))


@TWO
def test_mamba3_turns_keys(heads: int) -> None:
    """The same in real numbers, with keys turned by angles summed up from the start."""
    case, found = run("mamba3", heads)
    assert case.states is not None
    p, x, half = case.parameters, case.inputs["x"], 2
    (v,) = project(p, case.inputs, heads, "v")
    dt, lam = softplus(number(case, "dt")), number(case, "lam").sigmoid()
    a = torch.exp(-dt * softplus(number(case, "a")))
    start = by_head(case.states["ang"], heads)
    step = dt * torch.pi * linear(x, p["W_th"])[:, :, None].tanh()
    angle = torch.cat([start[None], start + step.cumsum(0)])

    def turned(gate: str, angle: Tensor) -> Tensor:
        bias = p[f"b{gate}"].reshape(2, heads, half).permute(1, 0, 2).flatten(1)
        u = rms_norm(linear(x, p[f"W_{gate}"]), (2 * half,), p[f"n{gate}"])[:, :, None] + bias
        re, im = u.chunk(2, -1)
        c, s = angle.cos(), angle.sin()
        return torch.cat([re * c - im * s, re * s + im * c], -1)

    k, q = turned("B", angle[1:]), turned("C", angle[1:])
    # the update at t + 1 that reads t is there one step earlier, decayed: it makes the key of t, except for y_t itself
    late = torch.cat([((1 - lam) * dt * a)[1:], torch.zeros_like(lam[:1])])
    y, last = attended(q, lam * dt * k, v, a, case.states["S"])
    delayed = torch.cat([torch.zeros_like(v[:1]), v[:-1]])
    keys = torch.cat([torch.zeros_like(k[:1]), (late * k)[:-1]])
    y2, last2 = attended(q, keys, delayed, a, torch.zeros_like(case.states["S"]))
    close(found.output, y + y2 + (p["D"][:, None] * v).flatten(2))
    close(found.finals["S"], last + last2)
    close(found.finals["ang"], angle[-1].flatten(1))


@TWO
@pytest.mark.parametrize("cell", ["deltanet", "gateddeltanet", "kda", "comba", "rwkv7"])
def test_solved_updates_are_a_system(cell: str, heads: int) -> None:
    case, found = run(cell, heads)
    p, x = case.parameters, case.inputs["x"]
    assert case.states is not None
    first = case.states["S"]
    if cell == "rwkv7":
        q, k, v = project(p, case.inputs, heads, "r", "k", "v")
        w = linear(linear(x, p["W_lw"]).tanh(), p["U_w"], p["b_w"])
        a = linear(linear(x, p["W_la"]), p["U_a"], p["b_a"])
        d = torch.exp(-0.6065306597126334 * by_head(w.sigmoid(), heads))
        a = by_head(a.sigmoid(), heads)
        kk = normalize(by_head(p["xi"], heads) * k, dim=-1)
        known = k * (1 + (a - 1) * by_head(p["al"], heads))
        # what -kk reads of the known updates before each step, then the rows that correct it
        y, last = attended(torch.cat([-kk[1:], kk[:1]]), known, v, d, first)
        seen = torch.cat([-torch.einsum("bnk,bnvk->bnv", kk[0], first)[None], by_head(y[:-1], heads)])
        e = solved(-kk, a * kk, seen, d, torch.zeros_like(first), late=False)
        y, last = attended(q, known, v, d, first)
        y2, last2 = attended(q, a * kk, e, d, torch.zeros_like(first))
        y, last = y + y2, last + last2
    else:
        q, k, v = deltas(case, heads)
        beta = number(case, "be").sigmoid()
        rate = torch.zeros_like(k)
        if cell == "kda":
            rate = by_head(linear(linear(x, p["W_low"]), p["U_a"], p["b_a"]), heads)
        elif cell != "deltanet":
            rate = number(case, "a")
        d = torch.ones_like(k) if cell == "deltanet" else torch.exp(-p["lam"].exp()[:, None] * softplus(rate))
        read = beta * p["c"].sigmoid()[:, None] if cell == "comba" else beta
        e = solved(-read * k, k, beta * v, d, first, late=True)
        if cell == "comba":
            q = q - p["d"][:, None] * k / k.shape[-1] ** 0.5
        y, last = attended(q, k, e, d, first)
    close(found.output, y)
    close(found.finals["S"], last)


@TWO
@pytest.mark.parametrize(("source", "steps"), [("paper", 2), ("paper(n=3)", 3)])
def test_deltaproduct_is_a_longer_deltanet(source: str, steps: int, heads: int) -> None:
    """n steps a token are a sequence n times as long, that decays at every n-th."""
    case, found = run("deltaproduct", heads, source)
    assert case.states is not None
    p = case.parameters
    names = range(1, steps + 1)
    k, v = (torch.stack([silu(project(p, case.inputs, heads, f"{u}_{j}")[0]) for j in names], 1) for u in "kv")
    beta = torch.stack([2 * number(case, f"be_{j}").sigmoid() for j in names], 1)
    a = torch.exp(-p["lam"].exp()[:, None] * softplus(number(case, "a")))
    d = torch.stack([a] + [torch.ones_like(a)] * (steps - 1), 1)
    k, v, beta, d = unit(k).flatten(0, 1), v.flatten(0, 1), beta.flatten(0, 1), d.flatten(0, 1)
    e = solved(-beta * k, k, beta * v, d, case.states["S"], late=True)
    q = unit(silu(project(p, case.inputs, heads, "q")[0])) / k.shape[-1] ** 0.5
    y, last = attended(q.repeat_interleave(steps, 0), k, e, d, case.states["S"])
    close(found.output, y[steps - 1 :: steps])
    close(found.finals["S"], last)


@TWO
def test_titans_and_ttt_are_their_gradients_by_hand(heads: int) -> None:
    case, found = run("titans", heads)
    assert case.states is not None
    q, k, v = (silu(u) for u in project(case.parameters, case.inputs, heads, "q", "k", "v"))
    q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    al, et, th = (number(case, gate).sigmoid()[..., None] for gate in ("al", "et", "th"))
    M, S = case.states["M"], case.states["S"]
    for t in range(len(q)):
        S = et[t] * S + 2 * th[t] * outer(v[t] - (M @ k[t][..., None])[..., 0], k[t])
        M = (1 - al[t]) * M + S
    close(found.finals["M"], M)
    close(found.output[-1], (M @ q[-1][..., None])[..., 0].flatten(1))

    case, found = run("ttt_linear", heads)
    assert case.states is not None
    q, k, v = project(case.parameters, case.inputs, heads, "q", "k", "v")
    width = q.shape[-1]
    gain, shift = (by_head(case.parameters[name], heads) for name in ("gain", "shift"))
    eta = 0.5 * number(case, "be").sigmoid() / width
    # the norm's own matrix: centring, then what lies along the centred vector is taken out
    centre = torch.eye(width, dtype=q.dtype) - 1 / width
    S, c = case.states["S"], by_head(case.states["c"], heads)
    for t in range(len(q)):
        d = ((S @ k[t][..., None])[..., 0] + c) @ centre
        spread = (d.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        jacobian = (centre - outer(d, d) / (width * spread[..., None] ** 2)) / spread[..., None]
        error = gain * (k[t] + gain * d / spread + shift - v[t])
        g = eta[t] * (jacobian.mT @ error[..., None])[..., 0]
        S, c = S - outer(g, k[t]), c - g
    close(found.finals["S"], S)
    close(found.finals["c"], c.flatten(1))
    z = torch.nn.functional.layer_norm((S @ q[-1][..., None])[..., 0] + c, (width,), eps=1e-6)
    close(found.output[-1], (q[-1] + gain * z + shift).flatten(1))


@TWO
def test_mesanet_comes_near_the_exact_solution(heads: int) -> None:
    """In many turns, for the eps of 1e-5 in the quotients slows the last ones."""
    case, _ = run("mesanet", heads)
    p = case.parameters
    assert case.states is not None
    given = {**case.states, "G": torch.zeros_like(case.states["G"])}
    found = delta._mesanet(100)(p, case.inputs, given, heads=heads)
    q, k, _ = deltas(case, heads)
    (v,) = project(p, case.inputs, heads, "v")
    a, beta = number(case, "a").sigmoid(), number(case, "be").sigmoid()
    _, pairs = attended(q, beta * k, k, a, given["G"])
    _, values = attended(q, beta * k, v, a, given["S"])
    close(found.finals["G"], pairs)
    close(found.finals["S"], values)
    ridge = torch.diag_embed(by_head(softplus(p["lam"]) + 0.25, heads))
    exact = values @ torch.linalg.solve(pairs + ridge, q[-1] * k.shape[-1] ** 0.5)[..., None]
    assert relative_error(found.output[-1], exact.flatten(1)) < 1e-3


@TWO
def test_plasticity_and_fast_weights_remember_pairs(heads: int) -> None:
    """Their matrices are sums over the past, which their states show."""
    case, found = run("plasticity", heads)
    assert case.states is not None
    h = by_head(torch.cat([case.states["h"][None], found.output]), heads)
    eta, steps = case.parameters["eta"], torch.arange(len(h) - 2, -1, -1)
    share = eta * (1 - eta) ** steps
    trace = torch.einsum("t,tbni,tbnj->bnij", share, h[1:], h[:-1])
    close(found.finals["P"], trace + (1 - eta) ** len(share) * case.states["P"])

    for source, turns in (("paper", 1), ("paper(S=3)", 3)):
        case, found = run("fastweights", heads, source)
        p = case.parameters
        assert case.states is not None
        h = by_head(torch.cat([case.states["h"][None], found.output]), heads)[:-1]
        age = 0.9 ** torch.arange(len(h) - 1, -1, -1, dtype=h.dtype)
        first = 0.9 ** len(h) * case.states["A"]
        close(found.finals["A"], 0.4 * torch.einsum("t,tbni,tbnj->bnij", age, h, h) + first)
        # Ba et al., eq. 5: A h as attention to earlier h; the last step
        R = p["R_z"].reshape(heads, h.shape[-1], -1)
        z = by_head(linear(case.inputs["x"][-1], p["W_z"], p["b_z"]), heads) + torch.einsum("nij,bnj->bni", R, h[-1])
        u = z.relu()
        for _ in range(turns):
            recalled = 0.4 * torch.einsum("t,tbni,tbnj,bnj->bni", age, h, h, u) + torch.einsum(
                "bnij,bnj->bni", first, u
            )
            normed = torch.nn.functional.layer_norm(z + recalled, u.shape[-1:])
            u = (by_head(p["gain"], heads) * normed + by_head(p["shift"], heads)).relu()
        close(found.output[-1], u.flatten(1))


@TWO
def test_what_ntm_and_masslstm_keep(heads: int) -> None:
    """Addresses are distributions, and mass is neither made nor lost."""
    _, found = run("ntm", heads)
    for name in ("rd", "wr"):
        address = by_head(found.finals[name], heads)
        assert (address > 0).all()
        close(address.sum(-1), torch.ones_like(address.sum(-1)))
    close(
        found.finals["r"].flatten(),
        torch.einsum("bnl,bnlm->bnm", by_head(found.finals["rd"], heads), found.finals["mem"]).flatten(),
    )

    case, found = run("masslstm", heads)
    assert case.states is not None
    stored, given = (by_head(c, heads).sum(-1) for c in (found.finals["c"], case.states["c"]))
    close(stored + by_head(found.output, heads).sum((0, -1)), given + case.inputs["mass"].sum(0))


def test_ltc_pairs_solves_its_implicit_step() -> None:
    """cm dv/dt at the new v, with the synapses' conductances at the old one."""
    case, _ = run("ltc_pairs", 1)
    p, x, ts = case.parameters, case.inputs["x"][:1], case.inputs["ts"][:1]
    assert case.states is not None
    old = case.states["v"]
    new = memory.loop(memory._ltc_pairs(1))(p, {"x": x, "ts": ts}, {"v": old}, heads=1).output[0]
    current = p["gl"] * (p["vl"] - new) - 1e-8 * new
    for v, end in ((old, ""), (x[0], "x")):
        g = p[f"w{end}"] * torch.sigmoid(p[f"sg{end}"] * (v[:, None] - p[f"mu{end}"]))
        current = current + (g * (p[f"E{end}"] - new[..., None])).sum(-1)
    close(p["cm"] * (new - old) / ts[0], current)
