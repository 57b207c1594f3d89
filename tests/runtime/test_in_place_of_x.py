"""`input u in place of x`: the same layer by other names, in which x is a state, a value or a parameter."""

from __future__ import annotations

import inspect

import pytest
import torch

import rnncc
from rnncc import verify
from rnncc.editing.analysis import analyse
from rnncc.editing.formatting import format_source
from rnncc.editing.hover import describe
from rnncc.editing.rename import RefusedError, rename
from rnncc.language.source import Source, Span
from rnncc.show.draw import draw
from tests.compiling import cell_of
from tests.packages import float64_package
from tests.test_latex import checked, rows

# A state-space model as papers print it, and with the language's own names.
PRINTED = """cell Printed
input u in place of x
input gap: 1 = 1
state x, s
weights C: matrix
local v: 3
param mu: vector(3)
v = W@u[t-1] + b + mu
x[t] = exp(-gap)*x[t-1] + W@u + 0.1*sum(v)
s[t] = tanh(C@x[t] + R@s[t-1] + W@u)
output s
"""
OWN = (
    PRINTED.replace("cell Printed", "cell Own")
    .replace("input u in place of x\n", "")
    .replace("x[t", "H[t")
    .replace("state x,", "state h,")
    .replace("u[t-1]", "x[t-1]")
    .replace("W@u", "W@x")
    .replace("H[t", "h[t")
)


def test_a_layer_is_the_same_by_either_name() -> None:
    printed, own = rnncc.compile(PRINTED, "printed"), rnncc.compile(OWN, "own")
    torch.manual_seed(0)
    one, two = printed.Printed(5, 6), own.Own(5, 6)
    assert [*one.state_dict()] == [*two.state_dict()]
    assert [name.replace("_x", "_h") for name in one.gate_parameters()] == [*two.gate_parameters()]
    two.load_state_dict(dict(one.state_dict()))
    x, gap = torch.randn(4, 2, 5, requires_grad=True), torch.rand(4, 2, 1)
    found, expected = one(input=x, gap=gap), two(input=x, gap=gap)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    gradients = [torch.autograd.grad(output.sum(), x)[0] for output, _ in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert inspect.signature(one.forward) == inspect.signature(two.forward)
    step, state = printed.PrintedCell(5, 6), None
    step.load_state_dict({name.removesuffix("_l0"): value for name, value in one.state_dict().items()})
    for at in range(4):
        output, state = step(x[at], state, gap=gap[at])
        torch.testing.assert_close(output, found[0][at])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "body",
    [
        "state x\nx[t] = tanh(W@u + R@x[t-1] + b)",
        "state h\nx = W@u + b\nh[t] = tanh(x + R@h[t-1] + x[t-1])",
        "state h\nparam x: vector = 1\nh[t] = tanh(x*(W@u) + R@h[t-1] + b)",
        "state h\nweights x: vector\nh[t] = tanh(x*(W@u) + R@h[t-1] + b)",
        "state x = learned, y\nx[t] = 0.5*x[t-1] + W@u\ny[t] = x[t-3] + W@u[t-2]",
    ],
    ids=["state", "value", "parameter", "group", "delayed"],
)
def test_x_is_what_the_cell_says(body: str) -> None:
    text = f"cell Free\ninput u in place of x\n{body}\n"
    report = verify.verify(float64_package(text, "free").Free, cell_of(text), dtypes=(torch.float64,))
    assert report.rows
    assert report.passed, [row for row in report.rows if not row.passed]


def test_the_input_may_have_a_width() -> None:
    made = rnncc.compile("cell Wide\ninput u: 2*H in place of x\nstate x\nx[t] = 0.5*x[t-1] + W@u\n", "wide")
    assert made.Wide(8, 4)(torch.zeros(3, 2, 8))[0].shape == (3, 2, 4)
    with pytest.raises(ValueError, match="input_size"):
        made.Wide(7, 4)


def test_pages_and_pictures_have_the_new_name() -> None:
    found = rows(PRINTED)
    assert found[1].startswith(r"x_t &= \exp(-\mathit{gap}_t)\, x_{t-1} + W_x u_t + 0.1\, \operatorname{sum}(v_t)")
    picture = draw(checked(PRINTED)[0].typed, "light")
    assert "u is an input." in picture.replace("_t", "") and "x is an input" not in picture.replace("_t", "")


def test_editors_know_both_names() -> None:
    analysis = analyse("printed.rnn", PRINTED)
    at = PRINTED.index("W@u +") + 2
    mention = analysis.index.at(at)
    assert mention is not None and mention.symbol.kind == "input"
    assert "**input** `u`: I" in describe(analysis, mention)
    places = rename(analysis, mention, "w")
    assert [PRINTED[place.start : place.end] for place in places] == ["u"] * 4
    state = analysis.index.at(PRINTED.index("x[t]"))
    assert state is not None and state.symbol.kind == "state"
    # The x of `in place of x` is the language's: it stays.
    renamed = rename(analysis, state, "z")
    assert Span(PRINTED.index("of x") + 3, PRINTED.index("of x") + 4) not in renamed
    assert [PRINTED[place.start : place.end] for place in renamed] == ["x"] * 4
    plain = analyse("own.rnn", OWN)
    x = plain.index.at(OWN.index("W@x +") + 2)
    assert x is not None
    with pytest.raises(RefusedError, match="a name of the language"):
        rename(plain, x, "u")


def test_the_formatter_leaves_the_words_apart() -> None:
    text = PRINTED.replace("input u in place of x", "input  u   in place   of  x  # the input")
    assert format_source(Source("printed.rnn", text)).splitlines()[1] == "input u in place of x  # the input"


def test_place_and_of_are_names_elsewhere() -> None:
    text = "cell Words\ninput u in place of x\nstate place, of\nplace[t] = W@u + of[t-1]\nof[t] = place[t]*u\n"
    assert rnncc.compile(text, "words").Words(3, 3)(torch.zeros(2, 1, 3))[0].shape == (2, 1, 3)
