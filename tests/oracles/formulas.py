"""Gated cells without a third-party implementation here: each source's equations typed again in plain torch.

Where the DSL names a gate at a time, these pack, chunk and normalise as the sources do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from .base import Forward, Oracle, Sequences, Tensors

State = dict[str, Tensor]
# (parameters, inputs of this step, old states) -> (output, new states)
Step = Callable[[Tensors, State, State], tuple[Tensor, State]]


def loop(step: Step) -> Forward:
    """The step over all times; inputs without a time are the same at each."""

    def forward(parameters: Tensors, inputs: Tensors, states: Tensors) -> Sequences:
        current = dict(states)
        outputs = []
        for t in range(len(inputs["x"])):
            now = {name: value[t] if value.dim() == 3 else value for name, value in inputs.items()}
            output, current = step(parameters, now, current)
            outputs.append(output)
        return Sequences(torch.stack(outputs), current)

    return forward


def pack(p: Tensors, group: str, gates: str) -> Tensor:
    return torch.cat([p[f"{group}_{gate}"] for gate in gates.split()])


def gates_of(p: Tensors, names: str, x: Tensor, h: Tensor, h_names: str | None = None) -> tuple[Tensor, ...]:
    """Chunks of W x + b + R h, all gates in one product."""
    total = linear(x, pack(p, "W", names), pack(p, "b", names))
    total = total + linear(h, pack(p, "R", h_names or names))
    return total.chunk(len(names.split()), -1)


def _cifg(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # ONNX LSTM with input_forget = 1.
    f, g, o = gates_of(p, "f g o", i["x"], s["h"])
    forget = f.sigmoid()
    c = torch.lerp(g.tanh(), s["c"], forget)
    h = o.sigmoid() * c.tanh()
    return h, {"h": h, "c": c}


def _layernorm_lstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # haste, frameworks/pytorch/layer_norm_lstm.py
    width = 4 * s["h"].shape[-1]
    wx = layer_norm(linear(i["x"], p["W_v"]), (width,), weight=p["gx"])
    rh = layer_norm(linear(s["h"], p["R_v"]), (width,), weight=p["gh"])
    ig, gg, fg, og = (wx + rh + p["b_v"]).chunk(4, 1)
    c = fg.sigmoid() * s["c"] + ig.sigmoid() * gg.tanh()
    h = og.sigmoid() * layer_norm(c, c.shape[-1:], weight=p["gc"], bias=p["bc"]).tanh()
    return h, {"h": h, "c": c}


def _layernorm_lstm_pt(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # pytorch, benchmarks/fastrnns/custom_lstms.py, LayerNormLSTMCell
    width = 4 * s["h"].shape[-1]
    igates = layer_norm(i["x"] @ p["W_v"].t(), (width,), p["gx"], p["bx"])
    hgates = layer_norm(s["h"] @ p["R_v"].t(), (width,), p["gh"], p["bh"])
    ig, fg, gg, og = (igates + hgates).chunk(4, 1)
    c = layer_norm(fg.sigmoid() * s["c"] + ig.sigmoid() * gg.tanh(), s["c"].shape[-1:], p["gc"], p["bc"])
    h = og.sigmoid() * c.tanh()
    return h, {"h": h, "c": c}


def _layernorm_gru(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # haste, frameworks/pytorch/layer_norm_gru.py
    width = 3 * s["h"].shape[-1]
    vx = (layer_norm(linear(i["x"], p["W_vx"]), (width,), weight=p["gx"]) + p["b_vx"]).chunk(3, 1)
    vh = (layer_norm(linear(s["h"], p["R_vh"]), (width,), weight=p["gh"]) + p["b_vh"]).chunk(3, 1)
    z, r = torch.sigmoid(vx[0] + vh[0]), torch.sigmoid(vx[1] + vh[1])
    h = torch.lerp(torch.tanh(vx[2] + r * vh[2]), s["h"], z)
    return h, {"h": h}


def _layernorm_indrnn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # haste, frameworks/pytorch/layer_norm_indrnn.py
    wx = layer_norm(linear(i["x"], p["W_h"]), s["h"].shape[-1:], weight=p["gx"], bias=p["b_h"])
    h = torch.tanh(wx + s["h"] * p["u_h"])
    return h, {"h": h}


def _dreamer(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # dreamerv3, the GRU of nets.py (2023)
    joined = torch.cat([s["h"], i["x"]], -1) @ torch.cat([p["R_v"], p["W_v"]], -1).t()
    reset, cand, update = layer_norm(joined, joined.shape[-1:], p["gv"], p["bv"]).chunk(3, -1)
    update = torch.sigmoid(update - 1)
    h = update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * s["h"]
    return h, {"h": h}


def _gru_v3(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # keras GRUCell(reset_after=False); ONNX GRU with linear_before_reset = 0
    r, z = (gate.sigmoid() for gate in gates_of(p, "r z", i["x"], s["h"]))
    candidate = linear(torch.cat([i["x"], r * s["h"]], -1), torch.cat([p["W_n"], p["R_n"]], -1), p["b_n"])
    h = z * s["h"] + (1 - z) * candidate.tanh()
    return h, {"h": h}


def _conditional_gru(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Cho et al. 2014, appendix A.1.2, with biases
    h, total = s["h"], gates_of(p, "r z", i["x"], s["h"])
    r, z = (gate + linear(i["c"], p[f"C_{name}"]) for gate, name in zip(total, "rz", strict=True))
    inner = torch.cat([h, i["c"]], -1) @ torch.cat([p["R_n"], p["C_n"]], -1).t()
    candidate = torch.tanh(linear(i["x"], p["W_n"], p["b_n"]) + r.sigmoid() * inner)
    h = torch.lerp(candidate, h, z.sigmoid())
    return h, {"h": h}


def _slstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # FlashRNN's vanilla sLSTM pointwise function, n clipped at one
    iraw, fraw, zraw, oraw = gates_of(p, "i f z o", i["x"], s["h"])
    logf = s["m"] + torch.nn.functional.logsigmoid(fraw)
    m = torch.maximum(iraw, logf)
    igate, fgate = torch.exp(iraw - m), torch.exp(logf - m)
    c = fgate * s["c"] + igate * torch.tanh(zraw)
    n = torch.maximum(fgate * s["n"] + igate, torch.ones_like(m))
    h = torch.sigmoid(oraw) * (c / n)
    return h, {"h": h, "c": c, "n": n, "m": m}


def _slstm_of_xlstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # xlstm 2.0.6, blocks/slstm/src/vanilla/slstm.py: no bound on n, and whether it is 0 is asked of the whole batch
    raw = dict(zip("ifzo", gates_of(p, "i f z o", i["x"], s["h"]), strict=True))
    decayed = s["m"] + torch.nn.functional.logsigmoid(raw["f"])
    m = torch.max(raw["i"], decayed) if s["n"].any() else raw["i"]
    igate, fgate = ((v - m).exp().clamp(max=1) for v in (raw["i"], decayed))
    c, n = fgate * s["c"] + igate * raw["z"].tanh(), fgate * s["n"] + igate
    h = raw["o"].sigmoid() * c / n
    return h, {"h": h, "c": c, "n": n, "m": m}


def _lem(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # tk-rusch/LEM: z first, then h from the new z
    a, b, c = gates_of(p, "d1 d2 nz", i["x"], s["h"])
    dt_bar, dt = 0.5 * a.sigmoid(), 0.5 * b.sigmoid()
    z = torch.lerp(s["z"], c.tanh(), dt)
    h = torch.lerp(s["h"], torch.tanh(linear(i["x"], p["W_nh"], p["b_nh"]) + linear(z, p["R_nh"])), dt_bar)
    return h, {"h": h, "z": z}


def _multiplicative_rnn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Sutskever et al. 2011, eq. 7-8: f = diag(W_fx x) W_fh h; h = tanh(W_hf f + W_hx x)
    factor = torch.einsum("bi,fi,bh,fh->bf", i["x"], p["W_m"], s["h"], p["R_m"])
    h = torch.tanh(linear(factor, p["R_h"], p["b_h"]) + linear(i["x"], p["W_h"]))
    return h, {"h": h}


def _scrn(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Mikolov et al. 2014, eq. 5-7
    context = 0.05 * linear(i["x"], p["W_u"]) + 0.95 * s["s"]
    h = torch.sigmoid(linear(context, p["M_h"], p["b_h"]) + linear(i["x"], p["W_h"]) + linear(s["h"], p["R_h"]))
    y = torch.tanh(linear(h, p["R_y"], p["b_y"]) + linear(context, p["M_y"]))
    return y, {"h": h, "s": context}


def _rhn(layers: int) -> Step:
    # jzilly/RecurrentHighwayNetworks: s = (h - s) t + s, the input at depth 1 only
    def step(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
        value = s["h"]
        for depth in range(1, layers + 1):
            hidden = linear(value, p[f"R_n_{depth}"], p[f"b_n_{depth}"])
            transform = linear(value, p[f"R_g_{depth}"], p[f"b_g_{depth}"])
            if depth == 1:
                hidden, transform = hidden + linear(i["x"], p["W_n_1"]), transform + linear(i["x"], p["W_g_1"])
            value = (hidden.tanh() - value) * transform.sigmoid() + value
        return value, {"h": value}

    return step


def _mogrifier(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Melis et al. 2020, eq. 1-2, five rounds, with the release's biases
    x, h = i["x"], s["h"]
    for round_, name in enumerate(("x1", "h1", "x2", "h2", "x3")):
        if round_ % 2 == 0:
            x = 2 * linear(h, p[f"Q_{name}"], p[f"b_{name}"]).sigmoid() * x
        else:
            h = 2 * linear(x, p[f"Q_{name}"], p[f"b_{name}"]).sigmoid() * h
    ig, fg, gg, og = gates_of(p, "i f g o", x, h)
    c = fg.sigmoid() * s["c"] + ig.sigmoid() * gg.tanh()
    h = og.sigmoid() * c.tanh()
    return h, {"h": h, "c": c}


def _onlstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # yikangshen/Ordered-Neurons, ON_LSTM.py: units as [chunk, size of a chunk]
    cin, cforget = (gate.softmax(-1).cumsum(-1) for gate in gates_of(p, "mi mf", i["x"], s["h"]))
    cin, cforget = (1 - cin)[..., None], cforget[..., None]
    shape = (*cin.shape[:-1], -1)
    ig, fg, gg, og = (gate.reshape(shape) for gate in gates_of(p, "i f g o", i["x"], s["h"]))
    overlap = cforget * cin
    forget = fg.sigmoid() * overlap + (cforget - overlap)
    input_ = ig.sigmoid() * overlap + (cin - overlap)
    c = forget * s["c"].reshape(shape) + input_ * gg.tanh()
    h = (og.sigmoid() * c.tanh()).flatten(-2)
    return h, {"h": h, "c": c.flatten(-2)}


def _lmu(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # keras_lmu with memory_d = 1: u = e_x x + e_h h + e_m m; m = A m + B u; h = tanh(W_x x + W_h h + W_m m)
    u = torch.cat([i["x"], s["h"], s["m"]], -1) @ torch.cat([p["W_u"], p["R_u"], p["E_u"]], -1).t()
    m = linear(s["m"], p["A"]) + u * p["B"].t()
    h = torch.tanh(linear(i["x"], p["W_h"]) + linear(s["h"], p["R_h"]) + linear(m, p["M"], p["b_h"]))
    return h, {"h": h, "m": m}


def _phased(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Neil et al. 2016, eq. 6-10
    phase = torch.remainder(i["time"] - p["shift"], p["tau"]) / p["tau"]
    rise, fall = phase < p["ron"] / 2, (phase >= p["ron"] / 2) & (phase < p["ron"])
    slope = 2 * phase / p["ron"]
    k = rise * slope + fall * (2 - slope) + ~(rise | fall) * (0.001 * phase)
    ig, fg, gg, og = gates_of(p, "i f g o", i["x"], s["h"])
    c_tilde = fg.sigmoid() * s["c"] + ig.sigmoid() * gg.tanh()
    h_tilde = og.sigmoid() * c_tilde.tanh()
    h, c = k * h_tilde + (1 - k) * s["h"], k * c_tilde + (1 - k) * s["c"]
    return h, {"h": h, "c": c}


def _time_aware(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # Baytas et al. 2017, section 3.2: short-term memory discounted by 1 / log(e + gap)
    short = torch.tanh(linear(s["c"], p["D_cs"], p["b_cs"]))
    discount = 1 / torch.log(torch.e + i["gap"])
    adjusted = (s["c"] - short) + short * discount
    ig, fg, gg, og = gates_of(p, "i f g o", i["x"], s["h"])
    c = fg.sigmoid() * adjusted + ig.sigmoid() * gg.tanh()
    h = og.sigmoid() * c.tanh()
    return h, {"h": h, "c": c}


def _skip_lstm(p: Tensors, i: State, s: State) -> tuple[Tensor, State]:
    # imatge-upc/skiprnn-2017-telecombcn, SkipLSTMCell; Campos et al. 2018, eq. 2-6
    total = s["q"] + torch.minimum(s["p"], 1 - s["q"])
    u = total + (total.round() - total).detach()
    ig, ng, fg, og = gates_of(p, "i n f o", i["x"], s["h"])
    c = s["c"] * fg.sigmoid() + ig.sigmoid() * ng.tanh()
    new = {"h": c.tanh() * og.sigmoid(), "c": c, "p": (c @ p["m_pn"] + p["bp"])[:, None].sigmoid(), "q": 0 * total}
    states = {name: torch.lerp(s[name] if name != "q" else total, value.expand_as(u), u) for name, value in new.items()}
    return states["h"], states


_H = {"h": "H"}
_HC = {"h": "H", "c": "H"}
_LSTM = "W:i,f,g,o R:i,f,g,o b:i,f,g,o"
_NORMED = "W[4*H,I]:v R[4*H,H]:v gx[4*H] gh[4*H] gc bc"


ORACLES = (
    Oracle("cifg", "ONNX", loop(_cifg), "W:f,g,o R:f,g,o b:f,g,o", _HC),
    Oracle("layernormlstm", "haste", loop(_layernorm_lstm), f"{_NORMED} b[4*H]:v", _HC),
    Oracle("layernormlstm_pt", "pytorch", loop(_layernorm_lstm_pt), f"{_NORMED} bx[4*H] bh[4*H]", _HC),
    Oracle(
        "layernormgru",
        "haste",
        loop(_layernorm_gru),
        "W[3*H,I]:vx R[3*H,H]:vh b[3*H]:vx,vh gx[3*H] gh[3*H]",
        _H,
    ),
    Oracle("layernormindrnn", "haste", loop(_layernorm_indrnn), "W:h u:h b:h gx", _H),
    Oracle(
        "dreamergru",
        "dreamerv3",
        loop(_dreamer),
        "W[3*H,I]:v R[3*H,H]:v gv[3*H] bv[3*H]",
        _H,
    ),
    Oracle("gruv3", "keras", loop(_gru_v3), "W:r,z,n R:r,z,n b:r,z,n", _H),
    Oracle(
        "conditionalgru",
        "paper",
        loop(_conditional_gru),
        "W:r,z,n R:r,z,n C[H,K]:r,z,n b:r,z,n",
        _H,
        sizes={"I": 4, "H": 6, "K": 5},
        dims=("K",),
        inputs={"c": "K"},
        per_sequence=("c",),
    ),
    Oracle(
        "slstm",
        "flashrnn",
        loop(_slstm),
        "W:i,f,z,o R:i,f,z,o b:i,f,z,o",
        {"h": "H", "c": "H", "n": "H", "m": "H"},
        defaults={"m": -torch.inf},
    ),
    Oracle(
        "slstm_xlstm",
        "xlstm",
        loop(_slstm_of_xlstm),
        "W:i,f,z,o R:i,f,z,o b:i,f,z,o",
        {"h": "H", "c": "H", "n": "H", "m": "H"},
        ranges={"n": (1.0, 2.0)},
    ),
    Oracle(
        "lem",
        "tk-rusch/LEM",
        loop(_lem),
        "W:d1,d2,nz,nh R:d1,d2,nz,nh b:d1,d2,nz,nh",
        {"h": "H", "z": "H"},
        constants={"dt": 0.5},
    ),
    Oracle(
        "multiplicativernn",
        "paper",
        loop(_multiplicative_rnn),
        "W:m,h R:m,h b:h",
        _H,
    ),
    Oracle(
        "scrn",
        "paper",
        loop(_scrn),
        "W:u,h R:h,y M[H,H]:h,y b:h,y",
        {"h": "H", "s": "H"},
    ),
    Oracle("rhn", "paper", loop(_rhn(2)), "W:n_1,g_1 R:n_1,g_1,n_2,g_2 b:n_1,g_1,n_2,g_2", _H),
    Oracle(
        "rhn",
        "paper(L=3)",
        loop(_rhn(3)),
        "W:n_1,g_1 R:n_1,g_1,n_2,g_2,n_3,g_3 b:n_1,g_1,n_2,g_2,n_3,g_3",
        _H,
        shaping={"L": 3},
    ),
    Oracle(
        "mogrifierlstm",
        "paper",
        loop(_mogrifier),
        f"{_LSTM} Q[I,H]:x1,x2,x3 Q[H,I]:h1,h2 b[I]:x1,x2,x3 b:h1,h2",
        _HC,
    ),
    Oracle(
        "onlstm",
        "Ordered-Neurons",
        loop(_onlstm),
        f"{_LSTM} W[K,I]:mi,mf R[K,H]:mi,mf b[K]:mi,mf",
        _HC,
        sizes={"I": 4, "H": 12, "K": 3},
    ),
    Oracle(
        "skiplstm",
        "skiprnn-2017-telecombcn",
        loop(_skip_lstm),
        "W:i,n,f,o R:i,n,f,o b:i,n,f,o m:pn bp[1]",
        {"h": "H", "c": "H", "p": "H", "q": "H"},
        defaults={"p": 1.0},
        ranges={"p": (0.0, 1.0), "q": (0.0, 0.5)},
    ),
    Oracle(
        "lmu",
        "keras_lmu",
        loop(_lmu),
        "W[1,I]:u W:h R[1,H]:u R:h E[1,N]:u A[N,N] B[N,1] M[H,N] b:h",
        {"h": "H", "m": "N"},
        sizes={"I": 4, "H": 6, "N": 8},
        dims=("N",),
    ),
    Oracle(
        "phasedlstm",
        "paper",
        loop(_phased),
        f"{_LSTM} tau shift ron",
        _HC,
        inputs={"time": "1"},
        ranges={"time": (0.0, 9.0), "tau": (1.0, 3.0), "shift": (0.0, 2.0), "ron": (0.2, 0.9)},
    ),
    Oracle(
        "timeawarelstm",
        "paper",
        loop(_time_aware),
        f"{_LSTM} D[H,H]:cs b:cs",
        _HC,
        inputs={"gap": "1"},
        ranges={"gap": (0.0, 9.0)},
    ),
)
