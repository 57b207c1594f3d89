"""Whatever is done to the text of a shipped cell, it ends in diagnostics or in a cell, and soon.

The cell is taken through every stage that runs without a compiler, so that no text makes a later stage fail.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rnncc.ir.cell import Cell
from rnncc.ir.verify import verify
from rnncc.language.codes import CODES
from rnncc.language.diagnostics import RnnccError
from rnncc.language.read import LARGEST, decode
from rnncc.machine.paths import shipped_cells
from rnncc.stages.classify import classify
from rnncc.stages.differentiate import differentiate
from rnncc.stages.lower import lower
from rnncc.stages.mask import mask
from tests.compiling import front
from tests.rendering import for_cpus
from tests.seeds import count, drawn

# What a text may take, in seconds; the largest ones take a few on a slow machine.
LIMIT = 60


@cache
def _texts() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in shipped_cells())


def survive(data: bytes) -> tuple[Cell, ...]:
    """The cells of `data`, or none where it has diagnostics. Any other exception is the failure looked for."""
    start = time.process_time()
    try:
        cells = tuple(cell for cell, _ in front(decode("mutant.rnn", data)))
        for cell in cells:
            verify(cell)
            classify(cell)
            masked = mask(cell)
            for_cpus([lower(cell, differentiate(cell), masked, differentiate(masked))])
    except RnnccError as error:
        cells = ()
        assert error.diagnostics
        assert all(diagnostic.code in CODES for diagnostic in error.diagnostics)
        # It can be printed: nothing in it is beyond UTF-8.
        str(error).encode("utf-8")
    assert time.process_time() - start < LIMIT
    return cells


_TOKENS = (
    *("h[t-1]", "h[t]", "x[t-1]", "x[t+1]", "h[t-2]", "W", "R", "b", "bR", "t", "H", "I", "inf", "pi", "learned", "x"),
    *(
        "+",
        "-",
        "*",
        "/",
        "//",
        "**",
        "@",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ":",
        "=",
        "==",
        "<",
        "..",
        "\n",
        "\n    ",
        "#",
    ),
    *(
        "cell A\n",
        "state ",
        "input ",
        "output ",
        "dim ",
        "const ",
        "local ",
        "param ",
        "weights ",
        "init ",
        "for l in 1..3:",
    ),
    *("0", "1", "2", "-1", "0.5", "1e300", "1e-320", "99999999", "vector", "scalar", "matrix", "diag", "blockdiag(2)"),
    *("tanh(", "split(", "layernorm(", "softmax(", "sum(", "concat(", "repeat(", "where(", "heaviside(", "T(", "eye("),
    *(
        " if ",
        " else ",
        "σ",
        "α",
        "ϕ",
        "def f(u) = ",
        "⊙",
        "·",
        "é",
        "\t",
        "\0",
        "\r",
        "sparse(density=0.1)",
        "uniform(1, 2)",
        "orthogonal",
    ),
)
WORDS = tuple(token.encode() for token in _TOKENS)


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A shipped cell with up to four changes."""
    data = draw(st.sampled_from(_texts()))
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(data)))
        last = min(len(data), first + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(("cut", "double", "swap", "insert", "replace", "bytes", "lines", "splice")))
        if kind == "cut":
            data = data[:first] + data[last:]
        elif kind == "double":
            data = data[:last] + data[first:last] + data[last:]
        elif kind == "swap":
            other = min(len(data), last + draw(st.integers(0, 40)))
            data = data[:first] + data[last:other] + data[first:last] + data[other:]
        elif kind == "insert":
            data = data[:first] + draw(st.sampled_from(WORDS)) + data[first:]
        elif kind == "replace":
            data = data[:first] + draw(st.sampled_from(WORDS)) + data[last:]
        elif kind == "bytes":
            data = data[:first] + draw(st.binary(max_size=8)) + data[last:]
        elif kind == "lines":
            lines = data.split(b"\n")
            draw(st.randoms(use_true_random=False)).shuffle(lines)
            data = b"\n".join(lines)
        else:
            other_text = draw(st.sampled_from(_texts()))
            data = data[:first] + other_text[draw(st.integers(0, len(other_text))) :]
    return data


@settings(max_examples=count(30), suppress_health_check=list(HealthCheck))
@given(mutants())
@example(b"")
@example(b"cell A\nstate h\nh[t] = x[t-100000000]\n")
@example(b"cell A\nstate h\nh[t] = h[t-1000000]\n")
@example(b"cell A\nstate h\nh[t] = h[t-1]**99999999**99999999\n")
@example(b"cell A\nconst k = 9**9**9**9\nstate h\nh[t] = k*h[t-1]\n")
@example(b"cell A\nconst k = 1//0, l = 1/0, m = 0**-1\nstate h\nh[t] = k*l*m*h[t-1]\n")
@example(b"cell A\nstate h\nfor l in -99999999999..99999999999:\n n[l] = x\nh[t] = n[1]\n")
@example(b"cell A\nstate h\nfor l in 3..1:\n n[l] = x\nh[t] = h[t-1]\n")
@example(b"cell A\ndim P = 99999999999\nstate h: P**P**P\nh[t] = h[t-1]\n")
@example(b"cell A\ndim P = 1000000000000\nstate h: P*P*P*P*P\nh[t] = h[t-1]\n")
@example(b"cell A\nstate h\nh[t] = repeat(h[t-1], 99999999999)\n")
@example(b"cell A\nweights R: blockdiag(0)\nstate h\nh[t] = R@h[t-1]\n")
@example(b"cell A\nstate h\nh[t] = heaviside(h[t-1], grad=foo, grad=atan(1))\n")
@example(b"cell A\nstate h = inf - inf\nh[t] = h[t-1]\n")
# Of `plif`: what follows `//` is a number, and the index before it holds `t`.
@example(b"cell A\nstate h, v\nparam a: scalar\nv[t] = v[t-1]// + sigmoid(a)*(W@x)\nh[t] = v[t-1]//2\n")
def test_mutant(data: bytes) -> None:
    survive(data)


@settings(max_examples=count(125), suppress_health_check=list(HealthCheck))
@given(mutants())
def test_checked_mutant(data: bytes) -> None:
    """The stages that report errors, alone: they are quick."""
    with suppress(RnnccError):
        front(decode("mutant.rnn", data))


# Numbers at the edge of arithmetic, and where they stand.
EDGES = (
    *(
        "0",
        "(-0.0)",
        "(1 - 1)",
        "(2*pi - pi - pi)",
        "(1e-200*1e-200)",
        "1e-320",
        "inf",
        "(-inf)",
        "(inf - inf)",
        "1e308",
    ),
    *("10**400", "log(0)", "log1p(-2)", "sqrt(-1)", "(-8)**(1/3)", "0**-1", "0**0", "exp(1000)", "mod(3, 0)", "sin(0)"),
    *("0.5", "-2", "4", "k", "(n - 1)", "(k - k)", "max(inf, -inf)", "(x - x)"),
)
PLACES = (
    *("h[t-1]/{}", "1/{}*h[t-1]", "(h[t-1]/{})**2", "h[t-1]**{}", "{}**h[t-1]", "h[t-1]*{}**-1", "mod(x, {}) + h[t-1]"),
    *(
        "h[t-1]*({}*{}*{})",
        "h[t-1]*{}*1e200*{}*1e200",
        "(h[t-1]*{})**4",
        "{}/({}*h[t-1])",
        "h[t-1]/{}/{}",
        "h[t-1]*(x/{})",
    ),
    *("where({}, h[t-1], h[t-1]*h[t-1])", "clamp(h[t-1], {}, {})", "logaddexp(h[t-1], {})", "sqrt({})*h[t-1]/sqrt({})"),
    *("heaviside(h[t-1] - {}, grad=atan(3))", "heaviside(h[t-1], grad=fast_sigmoid({}))", "(1 + h[t-1]**2)**{}*h[t-1]"),
)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("number", EDGES)
def test_numbers_at_the_edge(number: str) -> None:
    """Whatever numbers make of each other, it ends in diagnostics or in a cell."""
    head = "cell A\nconst k = 0, n = 1\nstate h\nfor l in 1..n:\n    v[l] = W@x\n"
    for place in PLACES:
        survive(f"{head}h[t] = v[n] + {place.replace('{}', number)}\n".encode())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", shipped_cells(), ids=lambda path: path.stem)
def test_cut_short(path: Path) -> None:
    """A file cut off at the end of any word, as a failing disk or an editor's buffer leaves it."""
    data = path.read_bytes()
    start = data.index(b"\ncell ") if b"\ncell " in data else 0
    ends = [index for index in range(start, len(data)) if data[index : index + 1] in b" \n([,@*+"]
    for end in ends[:: max(1, len(ends) // 12)]:
        survive(data[:end])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["lstm", "rhn", "layernormlstm"])
def test_each_byte_missing(name: str) -> None:
    (data,) = [path.read_bytes() for path in shipped_cells() if path.stem == name]
    data = data[data.index(b"cell ") :]
    for index in range(len(data)):
        survive(data[:index] + data[index + 1 :])


@pytest.mark.parametrize("seed", drawn(4))
def test_random_bytes(seed: int) -> None:
    generator = random.Random(seed)
    survive(generator.randbytes(10_000))
    survive(bytes(generator.choice(b"cell A\nh[t]=W@x+R*(),;:.#0123456789") for _ in range(100_000)))
    survive(b"cell A\nstate h\n" + b" ".join(generator.choice(WORDS) for _ in range(5_000)))


@pytest.mark.long
@pytest.mark.parametrize(
    "where", ["expression", "cells", "equations", "states", "loops", "comment", "arguments", "targets"]
)
def test_megabyte(where: str) -> None:
    """A text just below the limit, of each kind that a program might write."""
    head = b"cell A\nstate h\nh[t] = tanh(W@x + R@h[t-1] + b"
    texts = {
        "expression": head + b" + x" * (LARGEST // 4 - 100) + b")\n",
        "cells": b"".join(b"cell A%d\nstate h\nh[t] = W@x + h[t-1]\n" % index for index in range(300)),
        "equations": head + b")\n" + b"".join(b"z%d = W@x\n" % index for index in range(60_000)),
        "states": b"cell A\nstate " + b", ".join(b"h%d" % index for index in range(100_000)) + b"\n",
        "loops": head + b")\n" + b"for l in 1..1000:\n n[l] = W@x\n" * 30_000,
        "comment": head + b")\n#" + b"-" * (LARGEST - 100),
        "arguments": head + b" + max(" + b"x, " * (LARGEST // 4) + b"x))\n",
        "targets": b"cell A\nstate h\n" + b", ".join(b"z%d" % index for index in range(100_000)) + b" = W@x\n",
    }
    assert len(texts[where]) <= LARGEST
    survive(texts[where])


@pytest.mark.one_in(6, "depth")
@pytest.mark.parametrize("depth", [50, 100, 1_000, 20_000])
@pytest.mark.parametrize(
    "opening", ["(", "-", "tanh(", "x + ", "x*", "x**", "h[", "x if 1 else ", "R@", "where(1, 1, "]
)
def test_deep_nesting(opening: str, depth: int) -> None:
    closing = ")" if opening.endswith(("(", ", ")) else "]" if opening.endswith("[") else ""
    text = f"cell A\nstate h\nh[t] = {opening * depth}h[t-1]{closing * depth}\n"
    survive(text.encode()[:LARGEST])
