"""What `check` says of cells that are wrong: all of it, once, at the right place, with the way out."""

from __future__ import annotations

import time

import pytest

from rnncc.language.diagnostics import RnnccError, render
from rnncc.language.names import reserved
from tests.stages.checking import ELMAN, body, codes, diagnose, errors, marked, the_error


def test_everything_is_found_in_one_go() -> None:
    found = errors(
        "state h, c, lost",
        "i = sigmiod(W@x + R@h + b)",
        "f = sigmoid(V@x + undefined)",
        "c = f*c[t-1]",
        "h[t] = W*x*c[t+1]",
        "i = 0",
    )
    assert [each.code for each in found] == [
        "RNN205", "RNN203", "RNN201", "RNN202", "RNN202", "RNN207", "RNN211", "RNN215", "RNN206",
    ]  # fmt: skip
    starts = [each.span.start for each in found]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        (("state h", "h[t] = tanh(W@x + R@h)"), "RNN201", "h"),
        (("state h", "h[t] = tanh(W@x + n[3])"), "RNN202", "n[3]"),
        (("state h", "h[t] = clamp(W@x, 0)"), "RNN204", "clamp(W@x, 0)"),
        (("state h", "h[t] = sin(W@x, grad=atan(1))"), "RNN204", "atan(1)"),
        (("state h", "h[t] = heaviside(W@x, grad=steep(1))"), "RNN204", "steep(1)"),
        (("state h", "i, i = W@x", "h[t] = i"), "RNN206", "i"),
        (("state h", "i[t] = W@x", "h[t] = i"), "RNN208", "i[t]"),
        (("state h", "h[t] = R@h[t-1] + R@x"), "RNN210", "R@x"),
        (("state h", "h[t] = W"), "RNN211", "W"),
        (("state h", "h[t] = W + b"), "RNN211", "W"),
        (("state h", "h[t] = layernorm(W)*x"), "RNN211", "W"),
        (("state h", "h[t] = h[t-1]@R"), "RNN212", "h[t-1]"),
        (("state h", "h[t] = x[t+1]"), "RNN215", "x[t+1]"),
        (("state h", "h[t+1] = W@x"), "RNN215", "h[t+1]"),
        (("state h", "i = W@x + R@h[t-1]", "h[t] = i[t-1] + i[t-2]"), "RNN216", "i[t-1]"),
        (("state h", "c = 0.5*i + W@x", "i = R@c[t-1]", "h[t] = c[t-2] + h[t-1] + i[t-1]"), "RNN216", "c[t-1]"),
        (("state h", "i = exp(-b)", "h[t] = i[t-1]*h[t-1] + W@x"), "RNN216", "i[t-1]"),
        (("state h", "weights V: matrix", "M = T(V)", "h[t] = M[t-1]@h[t-1] + W@x"), "RNN216", "M[t-1]"),
        (("state h", "i = what + 1", "h[t] = i[t-1] + W@x"), "RNN202", "what"),
        (("state h", "i = W@x", "h[t] = i[t+1] + h[t-1]"), "RNN215", "i[t+1]"),
        (("state h", "i = W@x", "h[t] = i[t-65] + h[t-1]"), "RNN221", "i[t-65]"),
        (("state h", "i[1] = W@x", "h[t] = i[t-1] + h[t-1]"), "RNN202", "i[t-1]"),
        (("state h", "i[1] = W@x", "h[t] = i[2][t-1] + i[1] + h[t-1]"), "RNN202", "i[2][t-1]"),
        (("state h", "i[1] = W@x", "h[t] = i[t-1][1] + i[1] + h[t-1]"), "RNN216", "i[t-1][1]"),
        (("state h", "i[1] = W@x", "h[t] = W_i[1][t-1]@x + i[1] + h[t-1]"), "RNN216", "W_i[1][t-1]"),
        (("state h", "h[t] = h[1][t-1] + W@x"), "RNN216", "h[1][t-1]"),
        (("state h", "h[t] = h[3]"), "RNN216", "h[3]"),
        (("state h", "h[t] = b[t-1] + W@x"), "RNN216", "b[t-1]"),
        (("state h", "h[t] = W@x*t"), "RNN216", "t"),
        (("state h", "tanh = W@x", "h[t] = x"), "RNN217", "tanh"),
        (("state h", "auto = W@x", "h[t] = auto"), "RNN217", "auto"),
        (("state h, d_h", ELMAN, "d_h[t] = x"), "RNN217", "d_h"),
        (("state h", "_Complex = W@x", "h[t] = _Complex"), "RNN217", "_Complex"),
        (("state h", "_LP64 = W@x", "h[t] = _LP64"), "RNN217", "_LP64"),
        (("state h", "const RNNCC_INLINE = 2", "h[t] = RNNCC_INLINE*x"), "RNN217", None),
        (("state h", "Late = W@x", "h[t] = Late"), "RNN217", "Late"),
        (("state h", "param a: vector", "weights a: vector", "h[t] = a*x"), "RNN218", "a: vector"),
        (("state h", "for h in 1..1:", "    n[1] = x", ELMAN), "RNN218", None),
        (("state h", "for l in 1..H:", "    n[l] = x", ELMAN), "RNN220", "H"),
        (("state h", "h[t] = x//2"), "RNN220", "x//2"),
        (("state h", "i, f = split(W@x)", "h[t] = i"), "RNN222", "split(W@x)"),
        (("state h", "h[t] = tanh(split(W@x))"), "RNN222", "split(W@x)"),
        (("state h", ELMAN, "init W = xaver"), "RNN224", "xaver"),
        (("state h", ELMAN, "init W = uniform(1)"), "RNN224", "uniform(1)"),
        (("state h", "weights b: matrix", ELMAN), "RNN227", "matrix"),
        (("state h", "param M: matrix(2)", "h[t] = M@x"), "RNN227", None),
        (("state h", "output zz", ELMAN), "RNN202", None),
        (("state h", "output x", ELMAN), "RNN232", None),
        (("state h", "param a: vector", "a = x", "h[t] = a"), "RNN236", "a"),
        (("state h", "W = x", "h[t] = x"), "RNN236", "W"),
        (("state h", "h[t] = conv(W@x)"), "RNN229", "conv"),
        (("state h", "h[t] = sum((M - T(M))@x)", "param M: matrix(2*H, 3*H)"), "RNN214", None),
    ],
)  # fmt: skip
def test_one_mistake_is_one_error(lines: tuple[str, ...], code: str, text: str | None) -> None:
    found = the_error(*lines)
    assert found.code == code
    if text is not None:
        assert marked(found) == text


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        (("state h", "init b = inf", ELMAN), "RNN224", "inf"),
        (("state h", "init b = -inf", ELMAN), "RNN224", "-inf"),
        (("state h", "init b = inf - inf", ELMAN), "RNN224", "inf - inf"),
        (("state h", "init b = 1e40", ELMAN), "RNN224", "1e40"),
        (("state h", "init b = constant(-1e40)", ELMAN), "RNN224", "-1e40"),
        (("state h", "init b = constant(inf)", ELMAN), "RNN224", "inf"),
        (("state h", "init b = 3.4028235e38", ELMAN), "RNN224", "3.4028235e38"),
        (("state h", "init R = normal(0, -1)", ELMAN), "RNN224", "-1"),
        (("state h", "init R = normal(1e39, 1)", ELMAN), "RNN224", "1e39"),
        (("state h", "init R = uniform(1, -1)", ELMAN), "RNN224", "uniform(1, -1)"),
        (("state h", "init R = uniform(-3e38, 3e38)", ELMAN), "RNN224", "uniform(-3e38, 3e38)"),
        (("const k = 1e40", "state h", "init b = 2*k", ELMAN), "RNN224", "2*k"),
        (("state h", "param v: vector = inf", "h[t] = v*tanh(W@x + R@h[t-1])"), "RNN224", "inf"),
        (("state h = 1e40", ELMAN), "RNN225", "1e40"),
        (("state h = -1e40", ELMAN), "RNN225", "-1e40"),
        (("state h = 1/2*1e39", ELMAN), "RNN225", "1/2*1e39"),
    ],
)
def test_numbers_that_nothing_can_start_from(lines: tuple[str, ...], code: str, text: str) -> None:
    found = the_error(*lines)
    assert (found.code, marked(found)) == (code, text)


@pytest.mark.parametrize(
    "lines",
    [
        ("state h = -inf", ELMAN),
        ("state h = inf", ELMAN),
        ("state h = 3.4e38", "init b = -3.4e38", ELMAN),
        ("state h", "init b = constant(1e-50)", "init R = normal(0, 0)", "init W = uniform(1, 1)", ELMAN),
    ],
)
def test_numbers_that_all_can_start_from(lines: tuple[str, ...]) -> None:
    cell, found = diagnose(body(*lines))
    assert cell is not None and not [each for each in found if each.code in ("RNN224", "RNN225")]


def test_a_bare_state_names_both_forms() -> None:
    found = the_error("state h", "h[t] = tanh(W@x + R@h + b)")
    assert "'h[t-1]'" in found.help
    assert "'h[t]'" in found.help


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("sigmod(W@x)", "did you mean 'sigmoid'?"),
        ("maximum(W@x, 0)", "write 'max'"),
        ("gatte*x", "did you mean 'gate'?"),
        ("W(x)", "'W@…'"),
    ],
)
def test_the_way_out_is_shown(text: str, help: str) -> None:
    assert help in errors("state h", "gate = W@x", f"h[t] = {text}*gate")[0].help


def test_both_sides_of_a_width_mismatch_are_shown() -> None:
    found = the_error("dim P = 8", "state h, m: P", ELMAN, "m[t] = m[t-1] + h[t]")
    text = render(found)
    assert "'m[t-1]' has width P, 'h[t]' has width H" in text
    assert "'m' is declared here" in text
    assert found.notes[0].text == "width P"


def test_widths_of_products_are_compared_too() -> None:
    found = the_error("state h", "param M: matrix(H, 3*H)", "h[t] = M@h[t-1] + W@x")
    assert found.code == "RNN214"
    assert "3*H" in found.message
    assert found.message.endswith("'h[t-1]' has width H")


def test_a_cycle_is_a_path() -> None:
    found = the_error("state h", "a = tanh(c)", "c = x*g", "g = a + W@x", "h[t] = c + h[t-1]")
    assert "a -> c -> g -> a" in found.message
    assert [note.text for note in found.notes] == ["'c' needs 'g'", "'g' needs 'a'"]


def test_a_state_that_needs_its_own_new_value() -> None:
    assert "h[t] -> h[t]" in the_error("state h", "h[t] = tanh(h[t] + W@x)").message


def test_an_error_does_not_drag_others_along() -> None:
    assert codes("state h", "weights p: vectr", "h[t] = p*x + tanh(p@x) + R@(p*h[t-1])") == ["RNN227"]
    assert codes("state h", "z = undefined@x", "h[t] = z*h[t-1] + W@z") == ["RNN202"]
    assert codes("state h", "for l in 1..2:", "    const k = 2", ELMAN) == ["RNN234"]


def test_two_spellings_of_a_parameter() -> None:
    assert codes("state h", "param W_h: vector", ELMAN) == ["RNN219"]
    twice = ("weights W_a: vector", "a_b = W@x", "b1 = W_a*x", "h[t] = a_b + b1")
    assert codes("state h", *twice) == ["RNN262"]
    assert codes("state h", "weights W_a: vector", "a_c = W@x", "c = W_a*x", "h[t] = a_c + c") == ["RNN219"]


def test_shaping_is_checked() -> None:
    lines = ("const L = 1, act = tanh", "state h", "h[t] = act(W@x + h[t-L])")
    assert codes(*lines, L=2, act="sin") == []
    assert codes(*lines, M=2) == ["RNN235"]
    assert codes(*lines, L="tanh") == ["RNN235"]
    assert codes(*lines, act=2) == ["RNN235"]
    assert codes(*lines, act="nothing") == ["RNN235"]
    assert codes(*lines, L=0.5) == ["RNN220"]
    assert codes(*lines, L=float("nan")) == ["RNN235"]


@pytest.mark.parametrize(
    "lines",
    [
        ("for l in 1..1000000000:", "    n[l] = x", "h[t] = n[1]"),
        ("h[t] = W@x + h[t-100000]",),
        ("for k in 1..1000:", "    for l in 1..1000:", "        for m in 2..1:", "            n[1] = x", "h[t] = x"),
        pytest.param(
            ("for l in 1..1000:", "    n[l] = " + "+".join(["W@x*h[t-1]"] * 90), "h[t] = n[1]"), marks=pytest.mark.long
        ),
        ("local v: " + "*".join(["(H + I + 1)"] * 40), "v = W@x", "h[t] = R@v"),
    ],
)  # fmt: skip
def test_limits_are_errors_and_come_fast(lines: tuple[str, ...]) -> None:
    started = time.process_time()
    found = errors("state h", *lines)
    assert {each.code for each in found} == {"RNN221"}
    assert time.process_time() - started < 20


@pytest.mark.long
def test_a_large_cell_is_checked_in_reasonable_time() -> None:
    started = time.process_time()
    lines = ("s[0] = h[t-1]", "for l in 1..1000:", "    s[l] = tanh(R@s[l-1] + W@x + b)", "h[t] = s[1000]")
    cell, _ = diagnose(body("state h", *lines))
    assert cell is not None
    assert cell.segments[0].phases == 1000
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("const dropout = 0.5", "state h", f"{ELMAN}*dropout"), "dropout"),
        (("dim bias = 4", "state h: bias", ELMAN), "bias"),
        (("input x, lengths: 1", "state h", f"{ELMAN}*lengths"), "lengths"),
    ],
)
def test_names_of_arguments(lines: tuple[str, ...], text: str) -> None:
    found = the_error(*lines)
    assert (found.code, text in marked(found)) == ("RNN217", True)


def test_no_dim_hides_an_argument() -> None:
    from inspect import signature

    from rnncc.runtime.modules.cell import RecurrentCell
    from rnncc.runtime.modules.function import run_function
    from rnncc.runtime.modules.layer import RecurrentLayer

    for takes in (RecurrentLayer.__init__, RecurrentCell.__init__, run_function):
        names = [name for name, each in signature(takes).parameters.items() if each.kind is not each.VAR_KEYWORD]
        assert not [name for name in names if not reserved(name, "dim")]


def test_an_unknown_width_has_no_number_of_its_own() -> None:
    found, *_ = errors("state h", "v = softmax(concat(h[t-1], R@h[t-1]))", "h[t] = v*x")
    assert found.code == "RNN214" and found.label == "width ? + H"


def test_the_text_of_an_error_parts_its_diagnostics_with_an_empty_line() -> None:
    found = errors("state h", "h[t] = R@h + nothing + b")
    first, second = str(RnnccError(*found)).split("\n\n")
    assert first.startswith("error[RNN201]") and second.startswith("error[RNN202]")
