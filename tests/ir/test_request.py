"""A request takes no field that could be more than a name where it is used."""

from __future__ import annotations

from typing import Any

import pytest

from rnncc.ir.request import OPTIONS, Request
from rnncc.ir.target import GPUS
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source

ODD: Any = 3
SOURCE = Source("cell.rnn", "cell Toy\nstate h\nh[t] = x\n")
NAMES = (
    "", "a b", "a\nb", "a\n", "/tmp/a", "../a", "a.b", "a-b", "a)", "a, b", 'a"; b', "$(a)", "`a`", "a\0", "{{a}}",
    "class", "_a", "1a", "ａ", "a" * 250, "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_none_of_a_package_is_refused(name: str) -> None:
    with pytest.raises(RnnccError) as caught:
        Request(SOURCE, name)
    assert caught.value.diagnostics[0].code == "RNN604" and "\n" not in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", "text"), ("source", Source(ODD, "")), ("source", Source("cell.rnn", ODD)), ("name", b"a"),
        ("constants", [("a", 1)]), ("constants", {1: 1}), ("constants", {"a": [1]}), ("constants", {"a": None}),
        ("zoneout", ["h"]), ("zoneout", "h"), ("zoneout", (1,)), ("recurrent_dropout", 1), ("newton", "yes"),
        ("architectures", "sm_80"), ("architectures", (80,)), ("gpus", ("h200",)), ("gpus", [GPUS["h200"]]),
        ("problems", ((64, 1, "bf16"),)),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    given: dict[str, Any] = {"source": SOURCE, "name": "toy", field: value}
    with pytest.raises(TypeError, match="must be") as caught:
        Request(**given)
    assert (field if field != "newton" else "parallel_newton").rstrip("s") in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("architectures", ("sm_80 -o x",)), ("architectures", ("sm_８０",)), ("instructions", "v3 -o x")],
)
def test_another_architecture_is_refused(field: str, value: Any) -> None:
    given: dict[str, Any] = {"source": SOURCE, "name": "toy", field: value}
    with pytest.raises(ValueError, match="is no"):
        Request(**given)


@pytest.mark.parametrize("option", ["architectures", "gpus", "problems", "instructions", "source", "name", "self", ""])
def test_a_program_has_four_options(option: str) -> None:
    with pytest.raises(ValueError, match="is no option of a program"):
        Request.of(SOURCE, "toy", {option: ()})


def test_options_give_the_same_request_again() -> None:
    options = {"constants": {"n": 2, "act": "tanh"}, "zoneout": ("h",), "recurrent_dropout": True, "newton": True}
    request = Request.of(SOURCE, "toy", options)
    assert request.options() == options and tuple(options) == OPTIONS
    assert Request.of(SOURCE, "toy", request.options()) == request
    assert Request(SOURCE, "toy").options() == {}
