"""torchrecurrent 0.2.5 (PyPI): all its 41 cells as oracles."""

from __future__ import annotations

import torchrecurrent as tr

from .base import Oracle
from .torchrecurrent_calls import ExactHardsigmoid, cell, delayed, intersection, janet, mclstm, packed, two, typed

_H = {"h": "H"}
_HC = {"h": "H", "c": "H"}
_HZ = {"h": "H", "z": "H"}
_SCRN_OUTPUT_FEEDBACK = """
cell SCRN
const alpha = 0.95
state y, s
weights M: matrix
u = W@x
s[t] = (1 - alpha)*u + alpha*s[t-1]
h = sigmoid(M@s[t] + W@x + R@y[t-1] + b)
y[t] = tanh(R@h + M@s[t] + b)
"""
_LEM_OLD_Z = """
cell LEM
const dt = 1.0
state h, z
d1, d2 = dt*sigmoid(W@x + R@h[t-1] + b)
nz = tanh(W@x + R@h[t-1] + b)
z[t] = (1 - d2)*z[t-1] + d2*nz
nh = tanh(W@x + R@z[t-1] + b)
h[t] = (1 - d1)*h[t-1] + d1*nh
"""


ORACLES = (
    Oracle(
        "antisymmetricrnn",
        "torchrecurrent",
        cell(
            tr.AntisymmetricRNNCell,
            {"weight_ih": "W_h", "weight_hh": "M", "bias_ih": "b_h"},
            epsilon=0.5,
            gamma=0.25,
        ),
        "W:h M[H,H] b:h",
        _H,
        constants={"eps": 0.5, "gamma": 0.25},
    ),
    Oracle(
        "gatedantisymmetricrnn",
        "torchrecurrent",
        cell(
            tr.GatedAntisymmetricRNNCell,
            {"weight_ih": "W_z W_n", "weight_hh": "M", "bias_ih": "b_z b_n"},
            epsilon=0.5,
            gamma=0.25,
        ),
        "W:z,n M[H,H] b:z,n",
        _H,
        constants={"eps": 0.5, "gamma": 0.25},
    ),
    Oracle("atr", "torchrecurrent", cell(tr.ATRCell, packed("p", "q")), "W:p R:q b:p", _H),
    Oracle(
        "brc",
        "torchrecurrent",
        cell(tr.BRCell, {**packed("a c h", biased="a c 0"), "weight_hh": "w_a w_c"}),
        "W:a,c,h w[H]:a,c b:a,c",
        _H,
    ),
    Oracle("nbrc", "torchrecurrent", cell(tr.NBRCell, packed("a c h", "a c", "a c 0")), "W:a,c,h R:a,c b:a,c", _H),
    Oracle(
        "cfn",
        "torchrecurrent",
        cell(tr.CFNCell, packed("theta eta n", "theta eta")),
        "W:theta,eta,n R:theta,eta b:theta,eta,n",
        _H,
    ),
    Oracle(
        "cornn",
        "torchrecurrent",
        cell(
            tr.coRNNCell,
            {**packed("z"), "weight_ch": "M_z"},
            two,
            dt=0.2,
            gamma=1.5,
            epsilon=0.75,
        ),
        "W:z R:z M[H,H]:z b:z",
        _HZ,
        constants={"dt": 0.2, "gamma": 1.5, "eps": 0.75},
    ),
    Oracle(
        "fastrnn",
        "torchrecurrent",
        cell(tr.FastRNNCell, {**packed("n"), "alpha": "alpha", "beta": "beta"}),
        "W:n R:n b:n alpha[1] beta[1]",
        _H,
    ),
    Oracle(
        "fastgrnn",
        "torchrecurrent",
        # nonlinearity: its default gate is tanh, against its docstring, the paper and EdgeML (sigmoid).
        cell(
            tr.FastGRNNCell,
            {**packed("p", biased="z n"), "zeta": "zeta", "nu": "nu"},
            nonlinearity="sigmoid",
        ),
        "W:p R:p b:z,n zeta[1] nu[1]",
        _H,
    ),
    Oracle(
        "indrnn",
        "torchrecurrent",
        cell(tr.IndRNNCell, {**packed("h"), "vector_u": "u_h"}, nonlinearity="relu"),
        "W:h u[H]:h b:h",
        _H,
    ),
    Oracle(
        "intersectionrnn",
        "torchrecurrent",
        cell(tr.IntersectionRNNCell, packed("yn hn gy gh"), intersection),
        "W:yn,hn,gy,gh R:yn,hn,gy,gh b:yn,hn,gy,gh",
        _H,
        sizes={"I": 6, "H": 6},
    ),
    Oracle(
        "janet",
        "torchrecurrent",
        cell(tr.JANETCell, {**packed("s n"), "beta": "beta"}, janet),
        "W:s,n R:s,n b:s,n beta[1]",
        _H,
    ),
    Oracle(
        "lem",
        "torchrecurrent",
        cell(
            tr.LEMCell,
            {**packed("d1 d2 nz nh", "d1 d2 nz"), "weight_ch": "R_nh"},
            two,
            dt=0.5,
        ),
        "W:d1,d2,nz,nh R:d1,d2,nz,nh b:d1,d2,nz,nh",
        _HZ,
        constants={"dt": 0.5},
        text=_LEM_OLD_Z,
        deviation="the second candidate reads the old z; the paper and tk-rusch/LEM read the new one",
    ),
    Oracle("ligru", "torchrecurrent", cell(tr.LiGRUCell, packed("z n")), "W:z,n R:z,n b:z,n", _H),
    Oracle("lightru", "torchrecurrent", cell(tr.LightRUCell, packed("n f", "f")), "W:n,f R:f b:n,f", _H),
    Oracle(
        "mclstm",
        "torchrecurrent",
        cell(
            tr.MCLSTMCell,
            packed("f i o m n"),
            mclstm,
        ),
        "W:f,i,o,m,n R:f,i,o,m,n b:f,i,o,m,n",
        {"v": "H", "c": "H"},
    ),
    Oracle("mgu", "torchrecurrent", cell(tr.MGUCell, packed("f n")), "W:f,n R:f,n b:f,n", _H),
    Oracle(
        "minimalrnn",
        "torchrecurrent",
        cell(tr.MinimalRNNCell, {**packed("z", "u"), "weight_mm": "M_u", "bias_hh": "b_u"}),
        "W:z R:u M[H,H]:u b:z,u",
        _H,
    ),
    Oracle(
        "miru1",
        "torchrecurrent",
        cell(tr.MiRU1Cell, packed("r n"), update_coefficient=0.75),
        "W:r,n R:r,n b:r,n",
        _H,
        constants={"lam": 0.75},
    ),
    Oracle(
        "miru2",
        "torchrecurrent",
        cell(tr.MiRU2Cell, packed("n"), update_coefficient=0.75, reset_coefficient=0.25),
        "W:n R:n b:n",
        _H,
        constants={"lam": 0.75, "theta": 0.25},
    ),
    Oracle(
        "multiplicativelstm",
        "torchrecurrent",
        # The bias of each factor of m has no place in the paper's equations: zero there.
        cell(
            tr.MultiplicativeLSTMCell,
            {**packed("m i f g o", "m", "0 i f g o"), "weight_mh": "R_i R_f R_g R_o"},
            two,
        ),
        "W:m,i,f,g,o R:m,i,f,g,o b:i,f,g,o",
        _HC,
    ),
    Oracle(
        "mut1",
        "torchrecurrent",
        cell(tr.MUT1Cell, {**packed("z r q", "r n"), "bias_hh": "0 b_n"}),
        "W:z,r,q R:r,n b:z,r,q,n",
        _H,
    ),
    Oracle("mut2", "torchrecurrent", cell(tr.MUT2Cell, packed("z r n")), "W:z,r,n R:z,r,n b:z,r,n", _H),
    Oracle("mut3", "torchrecurrent", cell(tr.MUT3Cell, packed("z r n")), "W:z,r,n R:z,r,n b:z,r,n", _H),
    Oracle(
        "nas",
        "torchrecurrent",
        cell(
            tr.NASCell,
            packed("g0 g1 g2 g3 g4 g5 g6 g7"),
            two,
        ),
        "W:g0,g1,g2,g3,g4,g5,g6,g7 R:g0,g1,g2,g3,g4,g5,g6,g7 b:g0,g1,g2,g3,g4,g5,g6,g7",
        _HC,
    ),
    Oracle(
        "originallstm",
        "torchrecurrent",
        cell(
            tr.OriginalLSTMCell,
            packed("i g o"),
            two,
        ),
        "W:i,g,o R:i,g,o b:i,g,o",
        _HC,
    ),
    Oracle(
        "peepholelstm",
        "torchrecurrent",
        cell(
            tr.PeepholeLSTMCell,
            {**packed("i f g o"), "weight_ph": "p_i p_f p_o"},
            two,
        ),
        "W:i,f,g,o R:i,f,g,o b:i,f,g,o p[H]:i,f,o",
        _HC,
    ),
    Oracle(
        "ran",
        "torchrecurrent",
        cell(
            tr.RANCell,
            packed("n i f", "i f", "i f"),
            two,
        ),
        "W:n,i,f R:i,f b:i,f",
        _HC,
    ),
    Oracle(
        "reslstm",
        "torchrecurrent",
        cell(
            tr.ResLSTMCell,
            {**packed("i f g o"), "weight_ph": "p_i p_f p_o", "weight_proj": "M", "weight_res": "V"},
            two,
        ),
        "W:i,f,g,o R:i,f,g,o b:i,f,g,o p[H]:i,f,o M[H,H] V[H,I]",
        _HC,
    ),
    Oracle(
        "scrn",
        "torchrecurrent",
        cell(
            tr.SCRNCell,
            {**packed("u h", "h y", "0 h"), "weight_ch": "M_h M_y", "bias_hh": "0 b_y"},
            two,
            fixed={"alpha": 0.95},
        ),
        "W:u,h R:h,y M[H,H]:h,y b:h,y",
        {"y": "H", "s": "H"},
        text=_SCRN_OUTPUT_FEEDBACK,
        deviation="the output y feeds back, where the paper (and its own docstring) feed back h",
    ),
    Oracle("sgrn", "torchrecurrent", cell(tr.SGRNCell, packed("p", "f")), "W:p R:f b:p", _H),
    Oracle(
        "sgu",
        "torchrecurrent",
        cell(tr.SGUCell, {**packed("xg z", "zg z"), "bias_hh": "b_zg 0"}, gate_nonlinearity=ExactHardsigmoid()),
        "W:xg,z R:zg,z b:xg,zg,z",
        _H,
    ),
    Oracle(
        "dsgu",
        "torchrecurrent",
        cell(
            tr.DSGUCell,
            {**packed("xg z", "zg z"), "bias_hh": "b_zg 0", "weight_ho": "R_zo"},
            gate_nonlinearity=ExactHardsigmoid(),
        ),
        "W:xg,z R:zg,zo,z b:xg,zg,z",
        _H,
    ),
    Oracle("star", "torchrecurrent", cell(tr.STARCell, packed("z k", "k")), "W:z,k R:k b:z,k", _H),
    Oracle("taugru", "torchrecurrent", delayed(packed("u z g a"), 1), "W:u,z,g,a R:u,z,g,a b:u,z,g,a", _H),
    Oracle("trnn", "torchrecurrent", cell(tr.TRNNCell, packed("z f", biased="0 f")), "W:z,f b:f", _H),
    Oracle(
        "tgru",
        "torchrecurrent",
        typed(tr.TGRUCell, {**packed("z f o"), "weight_hh": "V_z V_f V_o"}, "h"),
        "W:z,f,o V[H,I]:z,f,o b:z,f,o",
        _H,
    ),
    Oracle(
        "tlstm",
        "torchrecurrent",
        typed(tr.TLSTMCell, {**packed("z f o"), "weight_hh": "V_z V_f V_o"}, "c"),
        "W:z,f,o V[H,I]:z,f,o b:z,f,o",
        {"c": "H"},
    ),
    Oracle("ugrnn", "torchrecurrent", cell(tr.UGRNNCell, packed("n g")), "W:n,g R:n,g b:n,g", _H),
    Oracle(
        "unicornn",
        "torchrecurrent",
        cell(
            tr.UnICORNNCell,
            {**packed("a"), "weight_hh": "u_a", "weight_ch": "cc"},
            two,
            dt=0.2,
            alpha=0.75,
        ),
        "W:a u[H]:a b:a cc[H]",
        _HZ,
        constants={"dt": 0.2, "alpha": 0.75},
    ),
    Oracle(
        "wmclstm",
        "torchrecurrent",
        cell(
            tr.WMCLSTMCell,
            {**packed("i f g o"), "weight_mh": "M_i M_f M_o"},
            two,
        ),
        "W:i,f,g,o R:i,f,g,o M[H,H]:i,f,o b:i,f,g,o",
        _HC,
    ),
    # Other constants of the same cells.
    Oracle(
        "indrnn",
        "torchrecurrent(tanh)",
        cell(tr.IndRNNCell, {**packed("h"), "vector_u": "u_h"}),
        "W:h u[H]:h b:h",
        _H,
        shaping={"act": "tanh"},
    ),
    Oracle(
        "fastgrnn",
        "torchrecurrent(tanh)",
        cell(tr.FastGRNNCell, {**packed("p", biased="z n"), "zeta": "zeta", "nu": "nu"}),
        "W:p R:p b:z,n zeta[1] nu[1]",
        _H,
        shaping={"act": "tanh"},
    ),
    Oracle(
        "taugru",
        "torchrecurrent(d=3)",
        delayed(packed("u z g a"), 3),
        "W:u,z,g,a R:u,z,g,a b:u,z,g,a",
        _H,
        shaping={"d": 3},
    ),
)
