"""`rnncc latex`: the equations as a paper has them, compiled by LaTeX where it is there (marker `latex`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnncc.cli import cli
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.functions import ALONG_AXIS, MATRIX_FUNCTIONS, OF_VECTORS_TOO, ROW_FUNCTIONS
from rnncc.language.operators import OPERATORS
from rnncc.language.source import Source
from rnncc.language.surrogates import SURROGATES
from rnncc.pipeline import compile_cells
from rnncc.show.latex import latex
from rnncc.show.latex.document import escaped
from tests.generated.cells import generate
from tests.shipped import FOLDER, STEMS

TESTS = Path(__file__).parent
PDFLATEX = shutil.which("pdflatex")
needs_latex = pytest.mark.skipif(PDFLATEX is None, reason="pdflatex is not here: apt-get install texlive-latex-base")


def checked(text: str, name: str = "cell") -> tuple[CompiledCell, ...]:
    """A text's cells, parsed and checked."""
    return compile_cells(Request(Source(f"{name}.rnn", text), name), "check").cells


def tex(text: str, *, standalone: bool = False) -> str:
    """A text in TeX."""
    return latex(checked(text), standalone=standalone)


def rows(text: str) -> list[str]:
    """The rows of a text's `align` environment."""
    body = re.search(r"\\begin{align}\n(.*)\n\\end{align}", tex(text), re.DOTALL)
    assert body is not None
    return [row.strip() for row in body[1].split("\\\\\n")]


def right(expression: str, declared: str = "") -> str:
    """What is written for the value of v in a cell with the given lines."""
    text = f"cell A\nstate h\n{declared}\nv = {expression}\nh[t] = tanh(v + W@x)\n"
    return rows(text)[0].partition(" &= ")[2]


def compiled(document: str, folder: Path) -> str:
    """The log of pdflatex, which must succeed."""
    assert PDFLATEX is not None
    (folder / "cell.tex").write_text(document, encoding="utf-8")
    command = [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "cell.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    # TeX breaks the lines of its log.
    return (folder / "cell.log").read_text(encoding="utf-8", errors="replace")


def everything() -> list[str]:
    """Cells that use every function, operator and type of the language."""
    lines = [
        "# Ünïcode – “quotes” \\ {braces} $1 & 50 % of #3, a_b^c ~ <x|y>, αβΩ, ß ø Ł, é ő ş, 中, ≤ ∞ 𝒙 and “…”",
        "cell Functions",
        "dim K = 3",
        "const k = 2.5, small = 1e-12, act = tanh",
        "input gap: 1 = 0.5, c: K per sequence",
        "state h, s = learned, m = -inf",
        "weights V: matrix, U: diag, S: sparse(density=0.1, block=16), F: lowrank(4), D: blockdiag(2), Z: mask",
        "param M: matrix = orthogonal, u: vector = normal(0, 0.1), e: scalar",
        "buffer A: matrix = spectral(0.9)",
        "p = V@x + Z@c",
        "q = R@h[t-1] + V@s[t-1] + S@h[t-3] + F@h[t-1] + D@m[t-1] + U@h[t-1] + b",
    ]
    calls = []
    for name, operator in OPERATORS.items():
        if operator.user and name in ("elu", "leakyrelu", "mod"):
            calls.append(f"{name}({', '.join(['p', 'u'][: operator.arity])})")
        elif operator.user and name != "where":
            calls.append(f"{name}({', '.join(['p', 'q', 'k'][: operator.arity])})")
    calls += [f"round(q, grad={name}(k))" for name in SURROGATES] + [
        "sign(q, grad=u1 -> exp(-u1**2))",
        "floor(q, grad=1)",
    ]
    calls += [f"where(p {sign} q, h[t-1], where(q, p, gap))" for sign in ("<", "<=", ">", ">=", "==", "!=")]
    calls += [f"{name}(q)" for name in ROW_FUNCTIONS if name not in ("split", "repeat", "concat", "roll")]
    calls += [
        "roll(q, 1)",
        "roll(q, -2, fill=0)",
        "ones(H)*q",
        "arange(H)",
        "mean(heads(p))",
        "sum(heads(c, 3))",
        "H*q/K",
    ]
    calls += [f"{name}(q)" for name in OF_VECTORS_TOO]
    matrices = [
        f"{name}(M)" for name in MATRIX_FUNCTIONS if name not in ("eye", "diag", "norm", "unflatten", *ALONG_AXIS)
    ]
    moved = [name for name in ALONG_AXIS if name != "roll"]
    matrices += [f"{name}(M, axis={axis})" for name in moved for axis in ("rows", "columns")]
    matrices += ["roll(M, 1, axis=rows)", "roll(M, -1, fill=k, axis=columns)"]
    matrices += ["norm(M)*M", "diag(u)@M", "M - small*eye(H)", "e*A", "M**2"]
    lines += [f"v{number} = {call}" for number, call in enumerate(calls)]
    lines += [f"w{number} = ({matrix})@h[t-1]" for number, matrix in enumerate(matrices)]
    lines += ["local r: 2*H, a: 2*H, a1: H, a2: H", "r = repeat(q, 2)", "a = concat(p, q)", "a1, a2 = split(a)"]
    total = [f"v{number}" for number in range(len(calls))] + [f"w{number}" for number in range(len(matrices))]
    lines += [f"h[t] = act({' + '.join(total)}) + a1*a2 + sum(r)"]
    lines += ["s[t] = s[t-1]/(1 + exp(-k))", "m[t] = max(m[t-1], +q)", "init b = 1"]
    loop = """cell Loop
const L = 3
state h
def gate(u, n) = sigmoid(R@u + b if n > 1 else W@x)
v[0] = h[t-1]
for l in 1..(2*L)//2:
    g[l] = gate(v[l-1], l)
    for k in l..l:
        y[k] = tanh(R@v[l-1] + bR + (W@x if k == 1 else 0))
    v[l] = g[l]*y[l]
h[t] = v[L] + R_g_2@h[t-1]
"""
    changing = """cell Matrices
dim K = H
state S: matrix(H, K), λ_new: matrix(K, K) = learned, h
output y
param A: matrix(H, H)
local k: K, a: num_heads, z: H*K//num_heads, one: H
k, z = W@x
v = W@x
a = sigmoid(W@x + b)
one = 1
Q_hat = softmax(unflatten(z, H, K), axis=rows) + normalize(S[t-1], axis=columns)
P = tanh(A - 0.5*one@T(h[t-1]))
S[t] = a*S[t-1]@(eye(K) - k@T(k)) - diag(v)@S[t-1]@diag(exp(k)) + A@S[t-1]/(1 + norm(S[t-1])) + Q_hat*(v@T(2*k))
λ_new[t] = T(S[t])@S[t] + 0.1*λ_new[t-1] + where(λ_new[t-1] > 0, λ_new[t-1], round(λ_new[t-1], grad=1))
h[t] = tanh(T(P)@h[t-1] + diag(P) + R@h[t-1])
y = S[t]@k + sum(S[t], axis=rows)*v + max(T(S[t]), axis=columns) + sum(λ_new[t]) + (v + h[t])@T(k)@k
"""
    return ["\n".join(lines) + "\n", loop, changing]


def every_text() -> list[str]:
    """The texts of this repository that have no mistakes, those of `everything`, and generated ones."""
    texts = everything() + [generate(seed).text for seed in range(100)]
    for path in sorted(TESTS.rglob("*.rnn")):
        try:
            text = path.read_text(encoding="utf-8")
            checked(text)
        except (RnnccError, UnicodeDecodeError):
            continue
        texts.append(text)
    return texts


@pytest.mark.latex
@needs_latex
def test_every_shipped_cell_compiles_and_fits_the_page(tmp_path: Path) -> None:
    text = "\n".join((FOLDER / f"{stem}.rnn").read_text(encoding="utf-8") for stem in STEMS)
    log = compiled(tex(text, standalone=True), tmp_path)
    assert not re.findall(r"Overfull \\hbox.*|LaTeX Warning.*|Missing character.*", log)


@pytest.mark.latex
@needs_latex
def test_every_construct_compiles(tmp_path: Path) -> None:
    made = [checked(text) for text in every_text()]
    assert len(made) > 120
    log = compiled(latex([cell for cells in made for cell in cells], standalone=True), tmp_path)
    assert not re.findall(r"LaTeX Warning: (?!Label).*|Missing character.*", log)


@pytest.mark.parametrize("text", everything(), ids=["functions", "loops", "matrices"])
def test_every_construct_is_written(text: str) -> None:
    written = tex(text)
    assert written.count("{") == written.count("}")
    assert not re.search(r"@|\bNone\b|\*\*|\\operatorname\{\}|__", re.sub(r"(?m)^%.*$", "", written))


def test_the_lstm_is_that_of_a_paper() -> None:
    text = (FOLDER / "lstm.rnn").read_text(encoding="utf-8")
    assert rows(text) == [
        "i_t &= W_i x_t + R_i h_{t-1} + b_i",
        "f_t &= W_f x_t + R_f h_{t-1} + b_f",
        "g_t &= W_g x_t + R_g h_{t-1} + b_g",
        "o_t &= W_o x_t + R_o h_{t-1} + b_o",
        r"c_t &= \sigma(f_t) \odot c_{t-1} + \sigma(i_t) \odot \tanh(g_t)",
        r"h_t &= \sigma(o_t) \odot \tanh(c_t)",
    ]
    said = tex(text)
    assert "% Hochreiter & Schmidhuber" in said
    assert r"$h_t$, $c_t \in \mathbb{R}^{H}$ are states with $h_0 = c_0 = 0$" in said
    assert r"$W_i$, $W_f$, $W_g$, $W_o \in \mathbb{R}^{H \times I}$" in said
    assert r"$b_o \in \mathbb{R}^{H}$ ($b_f$ starts at $1$)" in said


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a - (b1 - c)", "a_t - (b_{1,t} - c_t)"),
        ("a - b1 - c", "a_t - b_{1,t} - c_t"),
        ("a - (b1 + c)", "a_t - (b_{1,t} + c_t)"),
        ("a*(b1 + c)", r"a_t \odot (b_{1,t} + c_t)"),
        ("-(a + c)", "-(a_t + c_t)"),
        ("-a*c + a", r"-a_t \odot c_t + a_t"),
        ("a - -c", "a_t - (-c_t)"),
        ("a*-c", r"a_t \odot (-c_t)"),
        ("(-a)**2", "(-a_t)^2"),
        ("-a**2", "-a_t^2"),
        ("(a*c)**2", r"(a_t \odot c_t)^2"),
        ("(a**2)**3", "(a_t^2)^3"),
        ("a/(c*b1)", r"\frac{a_t}{c_t \odot b_{1,t}}"),
        ("a/c*b1", r"\frac{a_t}{c_t} \odot b_{1,t}"),
        ("(a/c)**2", r"\Bigl(\frac{a_t}{c_t}\Bigr)^2"),
        ("2*a*0.5", r"2\, a_t \cdot 0.5"),
        ("k*a*c", r"k\, a_t \odot c_t"),
        ("sum(a)*c", r"\operatorname{sum}(a_t)\, c_t"),
        ("(a < c)*a", r"\mathbf{1}[a_t < c_t] \odot a_t"),
        ("where(a, c, 0)", r"\begin{cases} c_t & \text{if } a_t \neq 0 \\ 0 & \text{otherwise} \end{cases}"),
        (
            "2 + where(a < 1, c, a)",
            r"2 + \Biggl(\begin{cases} c_t & \text{if } a_t < 1 \\ a_t & \text{otherwise} \end{cases}\Biggr)",
        ),
        ("tanh(a*(c + tanh(b1)))", r"\tanh\Bigl(a_t \odot \bigl(c_t + \tanh(b_{1,t})\bigr)\Bigr)"),
        ("1e-05*a", r"10^{-5}\, a_t"),
        ("sigma1 + v_reset*a", r"\sigma_1 + v_{\mathrm{reset}}\, a_t"),
        ("gap*a", r"\mathit{gap}_t\, a_t"),
    ],
)
def test_brackets_and_products(expression: str, expected: str) -> None:
    declared = "input gap: 1\nconst k = 2, sigma1 = 1, v_reset = 3\na = V@x\nb1 = V@x\nc = V@x\nweights V: matrix"
    text = f"cell A\nstate h\n{declared}\nv = {expression}\nh[t] = tanh(v + W@x)\n"
    assert next(row for row in rows(text) if row.startswith("v_t")) == f"v_t &= {expected}"


def test_matrices_that_change_are_bold_capitals() -> None:
    text = (TESTS / "fixtures" / "gateddeltanet.rnn").read_text(encoding="utf-8")
    assert rows(text)[-2:] == [
        r"\mathbf{S}_t &= a_t\, \mathbf{S}_{t-1} (\mathrm{I}_{K} - \mathit{be}_t\, \mathit{kn}_t\, "
        r"\mathit{kn}_t^{\top}) + \mathit{be}_t\, v_t\, \mathit{kn}_t^{\top}",
        r"y_t &= \mathbf{S}_t q_t",
    ]
    assert r"$\mathbf{S}_t \in \mathbb{R}^{H \times K}$ is a state with $\mathbf{S}_0 = 0$" in tex(text)


def test_matrices_of_other_names_and_functions_of_them() -> None:
    found = rows(everything()[2])
    assert found[5] == (
        r"\hat{\mathbf{Q}}_t &= \operatorname{softmax}_{\mathrm{rows}}\bigl(\operatorname{unflatten}_{H \times K}(z_t)"
        r"\bigr) + \operatorname{normalize}_{\mathrm{columns}}(\mathbf{S}_{t-1})"
    )
    assert r"\boldsymbol{\lambda}_{\mathrm{new},t} &= " in "".join(found)
    assert r"\operatorname{sum}_{\mathrm{rows}}(\mathbf{S}_t) \odot v_t" in "".join(found)
    said = tex(everything()[2])
    assert (
        r"$\boldsymbol{\lambda}_{\mathrm{new},t} \in \mathbb{R}^{K \times K}$ is a state with a trained start" in said
    )
    assert r"works within each row where $\mathrm{rows}$ stands below it" in said


def test_inner_brackets_are_smaller_than_outer_ones() -> None:
    assert right("tanh(h[t-1]*(1 + h[t-1]))") == r"\tanh\bigl(h_{t-1} \odot (1 + h_{t-1})\bigr)"


def test_a_group_of_one_parameter_needs_no_subscript() -> None:
    assert rows("cell A\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n") == [r"h_t &= \tanh(W x_t + R h_{t-1} + b)"]


def test_loops_have_their_round_above_and_their_bounds_beside() -> None:
    found = rows((FOLDER / "rhn.rnn").read_text(encoding="utf-8"))
    assert found[0] == "s_t^{(0)} &= h_{t-1}"
    assert found[2].startswith(
        r"g_t^{(l)} &= \sigma(\mathbf{1}_{l = 1} W_g^{(l)} x_t + R_g^{(l)} s_t^{(l-1)} + b_g^{(l)})"
    )
    assert found[2].endswith(r", \quad l = 1, \dots, L")
    assert found[-1] == "h_t &= s_t^{(L)}"


def test_functions_of_the_cells_own_name_the_gate() -> None:
    text = "cell A\nstate h\ndef gate(u) = sigmoid(W@x + R@u + b)\nr, z = gate(h[t-1])\nh[t] = r*z*gate(r*h[t-1])\n"
    assert rows(text) == [
        r"\operatorname{gate}_*(u) &= \sigma(W_* x_t + R_* u + b_*)",
        r"r_t &= \operatorname{gate}_r(h_{t-1})",
        r"z_t &= \operatorname{gate}_z(h_{t-1})",
        r"h_t &= r_t \odot z_t \odot \operatorname{gate}_h(r_t \odot h_{t-1})",
    ]
    assert r"$\operatorname{gate}_*$ has parameters of its own for $* \in \{r, z, h\}$" in tex(text)


def test_what_is_said_of_structure_heads_and_derivatives() -> None:
    said = tex(everything()[0])
    assert r"(sparse, of density $0.1$, in blocks of $16 \times 16$)" in said
    assert "(of rank $4$, products of two factors)" in said
    assert "(block diagonal, $2$ blocks)" in said
    assert r"$A \in \mathbb{R}^{H \times H}$ (starts normal, scaled to the spectral radius $0.9$)" in said
    assert "$s_t \\in \\mathbb{R}^{H}$ is a state with a trained start" in said
    assert "$m_0 = -\\infty$" in said
    assert r"$c \in \mathbb{R}^{K}$ is an input, the same at all steps" in said
    assert r"to be $u_1 \mapsto \exp(-u_1^2)$" in said
    assert r"\mathbb{R}^{N}" not in said
    heads = "cell A\nstate h\ne = sum(h[t-1])\nh[t] = e*h[t-1] + W@x\n"
    assert "A layer has $N$ heads" in tex(heads)
    assert rows(heads)[1] == r"h_t &= e_t\, h_{t-1} + W x_t"


def test_a_value_called_sigma_is_no_function() -> None:
    text = "cell A\nstate h\nparam sigma: vector\nh[t] = sigmoid(sigma*h[t-1] + W@x)\n"
    assert rows(text) == [r"h_t &= \operatorname{sigmoid}(\sigma \odot h_{t-1} + W x_t)"]
    assert r"Here $\operatorname{sigmoid}(v) = 1 / (1 + e^{-v})$" in tex(text)


def test_parts_of_one_value_are_one_row_and_those_of_several_are_not() -> None:
    text = "cell A\nstate h\nlocal v: 2*H\n{}\nr, z = split({})\nh[t] = r*z*h[t-1]\n"
    assert rows(text.format("v = W@x", "v"))[1] == r"(r_t, z_t) &= \operatorname{split}(v_t)"
    assert rows(text.format("v = W@x", "V@v").replace("local", "weights V: matrix(2*H, 2*H)\nlocal"))[1:3] == [
        r"r_t &= \operatorname{split}(V_r v_t)_1",
        r"z_t &= \operatorname{split}(V_z v_t)_2",
    ]


def test_greek_letters_of_the_text_are_greek() -> None:
    assert rows("cell A\nstate h\nα = σ(W·x + b)\nh[t] = α⊙h[t-1]\n") == [
        r"\alpha_t &= \sigma(W x_t + b)",
        r"h_t &= \alpha_t \odot h_{t-1}",
    ]


def test_accents_stand_above_their_letter() -> None:
    text = "cell A\nstate h\nh_tilde = tanh(W@x + R@h[t-1] + b)\nα_hat_1, s_bar_z = h_tilde + b\n"
    assert rows(text + "dt_dot = W@x\nh[t] = α_hat_1*s_bar_z*b_h_tilde*dt_dot\n") == [
        r"\tilde{h}_t &= \tanh(W_{\tilde{h}} x_t + R h_{t-1} + b_{\tilde{h}})",
        r"\hat{\alpha}_{1,t} &= \tilde{h}_t + b_{\hat{\alpha}_1}",
        r"\bar{s}_{z,t} &= \tilde{h}_t + b_{\bar{s}_z}",
        r"\mathit{dt}_{\mathrm{dot},t} &= W_{\mathit{dt}_{\mathrm{dot}}} x_t",
        r"h_t &= \hat{\alpha}_{1,t} \odot \bar{s}_{z,t} \odot b_{\tilde{h}} \odot \mathit{dt}_{\mathrm{dot},t}",
    ]


def test_long_equations_are_broken_between_terms() -> None:
    names = [f"a{number}" for number in range(30)]
    text = "cell A\nstate h\n" + f"{', '.join(names)} = W@x\n" + f"h[t] = {' + '.join(names)}\n"
    broken = rows(text)[30:]
    assert len(broken) > 1
    assert all(row.endswith("\\notag") for row in broken[:-1])
    assert all(row.startswith("&\\qquad {} + a_{") for row in broken[1:])
    joined = "".join(row.removesuffix(" \\notag").replace("&\\qquad {}", "") for row in broken)
    assert re.findall(r"a_\{(\d+),t\}", joined) == [str(number) for number in range(30)]


def test_text_is_escaped() -> None:
    assert escaped("50 % of a_b & Koutník's #1 {ő}") == r"50 \% of a\_b \& Koutn\'{\i}k's \#1 \{\H{o}\}"
    assert escaped('"α" – 中') == r"``$\alpha$'' -- [U+4E2D]"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["latex", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command(tmp_path: Path) -> None:
    code, output = run("elman")
    assert code == 0
    assert output.startswith("% Elman\n% Elman, ")
    assert "\\documentclass" not in output
    code, output = run("lstm", "--standalone", "--out", str(tmp_path / "lstm.tex"))
    assert (code, output) == (0, f"wrote {tmp_path / 'lstm.tex'}\n")
    assert (tmp_path / "lstm.tex").read_text(encoding="utf-8").startswith("\\documentclass")
    assert run("lstm", "--out", str(tmp_path / "no" / "lstm.tex"))[0] == 1


def test_a_cell_of_several_and_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "two.rnn"
    path.write_text("cell One\nstate h\nh[t] = W@x\n\ncell Two\nstate h\nh[t] = tanh(W@x)\n")
    assert run(str(path), "--cell", "Two")[1].startswith("% Two\n")
    assert run(str(path))[1].count("\\begin{align}") == 2
    path.write_text("cell One\nstate h\nh[t] = tahn(x)\n")
    code, output = run(str(path))
    assert code == 1
    assert "RNN" in output
