"""What messages advise is right: the code in a help is compiled or run, as the help says it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rnncc
from rnncc.cli import cli
from rnncc.language import outside
from rnncc.language.diagnostics import Severity
from rnncc.language.operators import OPERATORS
from rnncc.stages.check import elsewhere
from rnncc.stages.partition.hoist import _INSTEAD
from tests.stages.checking import diagnose

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

# What advice may name, in a cell around it.
NAMES = {
    **{name: f"param {name}: matrix(H, H)" for name in "ABMV"},
    "u": "u = W@x", "a": "a = sigmoid(W@x + b)", "c": "c = sigmoid(W@x + R@h[t-1])", "w": "w = sigmoid(R@h[t-1])",
    "v": "v = sigmoid(W@x + R@h[t-1] + b)", "f": "def f(z) = tanh(z)",
}  # fmt: skip
EXPRESSION = "h[t] = tanh(u + ({}))"
WIDE = "local y: 2*H; y = {}; h[t] = tanh(sum(y) + u)"
# In quotes stand also names of functions, and Python.
NAME, PYTHON = re.compile(r"\w+"), re.compile(r"torch\.|\(…, |^\w+=[\d.]+$")
NOISE = ("{0}; {1}",)
OLDER = (EXPRESSION, "h[t] = tanh(u + {1} + R@h[t-1])", "h[t] = tanh({2} + R@h[t-1])")
PERMUTED = ("{0}; h[t] = tanh(u + {1})",)
MOVED = ("local v: 2*H, w: 2*H; v = concat(u, W@x); {0}; {1}; h[t] = tanh(sum(w) + u)",)
# The cells that follow the advice of a function, where it is more than an expression for each piece of code.
CELLS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("rand", "randn", "noise", "normal", "uniform", "bernoulli", "gaussian"), NOISE),
    **dict.fromkeys(("delay", "prev", "previous", "lag"), OLDER),
    "pad": (*MOVED, EXPRESSION.replace("{}", "{2}")),
    **dict.fromkeys(("flip", "permute"), PERMUTED),
    "shift": (*OLDER, EXPRESSION.replace("{}", "{3}")),
    **dict.fromkeys(("maxplus", "logmatmul"), ("{1}; {2}; h[t] = tanh(u + ({0}))",)),
    **dict.fromkeys(("cdist", "pairwise"), ("{1}; {2}; h[t] = tanh(u + sum({0}, axis=rows))",)),
    **dict.fromkeys(("einsum", "bmm", "tensordot"), ("local k: H; k = W@x; S = {0}; h[t] = tanh(S@({1}) + ({2})@u)",)),
    **dict.fromkeys(
        ("reshape", "view", "matrix"), ("dim P = H, Q = H; {1}; v = W@x; S = {0}; h[t] = tanh(sum(S)*u + R@h[t-1])",)
    ),
    "outer": ("dim K = H; {1}; local k: K; k = W@x; S[t] = 0.5*S[t-1] + {0}; h[t] = tanh(S[t]@k)",),
    "cross": (
        "local a: 3, c: 3; a, c = W@x; a1, a2, a3 = split(a); c1, c2, c3 = split(c); h[t] = tanh(u + {0} + a1 + c1)",
    ),
    "tile": (WIDE,),
    "leaky_relu": ("v = W@x; a = {0}; h[t] = tanh(a + R@h[t-1])", EXPRESSION.replace("{}", "{1}")),
    "remainder": ("c = sigmoid(W@x); k = {0}; h[t] = tanh(k + R@h[t-1])", EXPRESSION.replace("{}", "{1}")),
    **dict.fromkeys(("solve", "linsolve"), ("X = {0}; h[t] = tanh(X@h[t-1] + u)",)),
    "weight_norm": ("{1}; h[t] = tanh(({0})@h[t-1] + u)",),
    "orthogonal": (
        "Q = {0}; h[t] = tanh(Q@h[t-1] + u)", "Q = {1}; h[t] = tanh(Q@h[t-1] + u)", "h[t] = tanh(R@h[t-1] + u); {2}",
    ),
}  # fmt: skip
OUTSIDE = {
    outside.CONVOLUTION: ("{2}; {0}; {1}; h[t] = tanh(c)", "weights V: matrix; h[t] = tanh({3} + R@h[t-1])"),
    outside.COMPLEX: ("state p, q; {0}; {1}; h[t] = tanh(p[t] + q[t])",),
    outside.MORE_AXES: (
        "dim K = H; {0}; local k: K, q: K; k = W@x; q = W@x; {1}; {2}; h[t] = tanh(y)",
    ),
    outside.KRONECKER: ("{0}; h[t] = tanh(u + R@h[t-1])", "{1}; h[t] = tanh(u + R@h[t-1])"),
    outside.INTEGERS: (),
    outside.CHOICES: ("{0}; h[t] = tanh(p + u)", "h[t] = tanh({1} + u)"),
    outside.MEMORY: (
        "{0}; {1}; local w: L; w = W@x; k = W@x; M[t] = 0.5*M[t-1] + k@T(w); h[t] = tanh({2})",
        "{0}; {3}; param Q: matrix(64, H), U: matrix(H, 64); "
        "h[t] = tanh(W@x + U@(T(mem)@softmax(mem@(Q@h[t-1]))))",
    ),
}  # fmt: skip
# How a function is called that goes by another name elsewhere.
CALLS = {
    "max": "max(u, v)", "min": "min(u, v)", "clamp": "clamp(v, 0, 1)", "mod": "mod(u, v)",
    "heaviside": "heaviside(v, grad=atan(2))", "round": "round(v, grad=1)", "sign": "sign(v)", "norm": "norm(M)*v",
    "T": "T(M)@v", "expm": "expm(M)@v", "inv": "inv(M)@v", "eye": "(M + eye(H))@v", "diag": "diag(v)@u",
    "normalize": "normalize(M, axis=rows)@v", "arange": "arange(H)*v", "roll": "roll(v, 1)",
}  # fmt: skip
CALLED = {
    "concat": "local y: 2*H; y = concat(u, v); h[t] = tanh(sum(y) + u)",
    "split": "local y: 2*H; y = concat(u, v); i, o = split(y); h[t] = tanh(i + o)",
    "repeat": "local y: 2*H; y = repeat(v, 2); h[t] = tanh(sum(y) + u)",
    "diag": "param g: vector; h[t] = tanh((diag(g)@M)@h[t-1] + u)",
}


def cell_with(statements: str) -> str:
    """A cell with these statements, and whatever they name."""
    lines = statements.replace("…", "u").split("; ")
    declared = re.compile(r"(?:^|, )(?:param |buffer |weights |local |state |dim )?(\w+)(?= =|:|,.* =)")
    made = {name for line in lines for name in declared.findall(line)}
    own = [line for line in lines if re.match(r"(state|input|param|buffer|weights|local|dim) ", line)]
    named, wanted = set(re.findall(r"[A-Za-z_]\w*", statements)) | {"u"}, list[str]()
    wanted += [line for name, line in NAMES.items() if name in named - made]
    rest = [line for line in lines if line not in own]
    rest += [] if "h[t] =" in statements else ["h[t] = tanh(u + R@h[t-1])"]
    return "\n".join(("cell Mine", "state h", *own, *wanted, *rest, ""))


def mistakes(text: str) -> list[str]:
    """What is wrong with a cell."""
    return [found.message for found in diagnose(text)[1] if found.severity is Severity.ERROR]


def pieces(help: str) -> list[str]:
    """What stands in quotes, and is code."""
    return [piece for piece in re.findall(r"'([^']*)'", help) if piece in "01" or not NAME.fullmatch(piece)]


def help_for(function: str) -> str:
    """The help where a cell calls a function that is none."""
    (found,) = diagnose(f"cell Mine\nstate h\nv = W@x + R@h[t-1]\nh[t] = tanh({function}(v))\n")[1]
    assert found.code in ("RNN203", "RNN229", "RNN240"), found
    return found.help


def assert_works(help: str, cells: Sequence[str] | None) -> None:
    """Each piece of a cell's code compiles in one of `cells`, or else as an expression; each piece of Python runs."""
    found = pieces(help)
    code = [piece for piece in found if not PYTHON.search(piece)]
    forms = [EXPRESSION.format(piece) for piece in code] if cells is None else [form.format(*code) for form in cells]
    # A form that leaves a piece out would leave it untested.
    assert all(any(piece in form for form in forms) for piece in code), (code, forms)
    for form in forms:
        assert mistakes(cell_with(form)) == [], cell_with(form)
    for piece in found:
        if PYTHON.search(piece):
            run(piece)


def run(piece: str) -> None:
    """Runs Python that a help names: a constructor, a keyword of it, a call of the layer, or a name of torch's."""
    cells = rnncc.compile("cell Mine\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b)\n", "advice")
    known: dict[str, Any] = {"Mine": cells.Mine, "torch": torch}
    if re.fullmatch(r"\w+=[\d.]+", piece):
        piece = f"Mine(…, {piece})"
    if piece.startswith("layer("):
        known |= {"layer": cells.Mine(32, 4), "tokens": torch.zeros(3, 2, dtype=torch.int64)}
    if "parametrize" in piece:
        piece = f"__import__('{piece}')"
    made = eval(piece.replace("…", "3, 4, 2"), known)
    if isinstance(made, cells.Mine):
        assert made(torch.zeros(5, 2, 3))[0].shape == (5, 2, 4)
    elif piece.startswith("layer("):
        assert made[0].shape == (3, 2, 4)


def test_what_the_language_has_is_not_said_to_be_missing() -> None:
    named = elsewhere._WORDS.keys() | elsewhere._OTHER_NAMES.keys()
    assert not named & {name for name, operator in OPERATORS.items() if operator.user}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", elsewhere._WORDS)
def test_what_says_the_same_compiles(function: str) -> None:
    help = help_for(function)
    assert help == elsewhere.instead_of(function, "Mine", ()) and "{" not in help
    assert_works(help, CELLS.get(function))


@pytest.mark.parametrize("function", elsewhere._OTHER_NAMES)
def test_the_other_name_is_one_that_can_be_called(function: str) -> None:
    (name,) = re.findall(r"'(.*)'", help_for(function))
    assert name == elsewhere._OTHER_NAMES[function]
    form = CALLED.get(name) or EXPRESSION.format(CALLS.get(name, f"{name}(v)"))
    assert mistakes(cell_with(form)) == [], cell_with(form)


@pytest.mark.parametrize("function", outside.OUTSIDE_FUNCTIONS)
def test_the_nearest_form_compiles(function: str) -> None:
    help = help_for(function)
    meant = outside.OUTSIDE_FUNCTIONS[function]
    assert help == meant.help
    assert_works(help, OUTSIDE[meant])


@pytest.mark.parametrize("name", outside.OUTSIDE_TYPES)
def test_the_nearest_form_of_a_type_compiles(name: str) -> None:
    meant = outside.OUTSIDE_TYPES[name]
    assert_works(meant.help, OUTSIDE[meant])


@pytest.mark.parametrize("vector", ["v", "h[t-1]", "2*v"])
def test_a_value_for_each_pair_of_units_compiles(vector: str) -> None:
    form = "{2}; {3}; h[t] = tanh(u + sum({0} + {1}, axis=rows))"
    assert_works(outside.pairs(vector), (form,))


def test_a_function_of_groups_is_one_along_an_axis() -> None:
    found = diagnose("cell Mine\ndim K = 4\nstate h\nh[t] = tanh(sum(W@x, K) + R@h[t-1])\n")[1]
    form = "dim K = 4, P = H, Q = H; {1}; local k: K, v: P*Q//num_heads; k = W@x; v = W@x; S[t] = u@T(k); "
    assert_works(found[0].help, (form + "h[t] = {0} + sum({2})",))


@pytest.mark.parametrize("name", _INSTEAD)
def test_what_stands_in_place_of_a_function_of_parameters_compiles(name: str) -> None:
    assert_works(_INSTEAD[name], None)


# What texts say of the shell.


def texts() -> Iterator[tuple[str, str]]:
    """Every text of rnncc that a user may see, with its file: strings of the code, and pages."""
    for path in sorted((ROOT / "rnncc").rglob("*.py")):
        yield str(path.relative_to(ROOT)), re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
    for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_every_command_that_a_text_names_is_there() -> None:
    found = {(file, *each) for file, text in texts() for each in re.findall(r"`rnncc ([a-z]+)([^`\n]*)`", text)}
    assert len(found) > 50
    wrong = []
    for file, name, rest in sorted(found):
        command = cli.commands.get(name)
        known = {option for each in command.params for option in each.opts} | {"--help", "-h"} if command else set()
        options = re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest)
        if command is None or not set(options) <= known:
            wrong.append(f"{file}: rnncc {name}{rest}")
    assert wrong == []


def test_every_extra_that_a_text_names_is_there() -> None:
    found = {(file, extra) for file, text in texts() for extra in re.findall(r"'(?:rnncc|\.)\[([^\]{}]+)\]'", text)}
    assert {each for _, each in found} >= {"plot", "lsp", "bench,plot"}
    assert [(file, extra) for file, extra in sorted(found) if not set(extra.split(",")) <= set(EXTRAS)] == []
