"""What `partition` says of cells that are wrong: that nothing can be placed so."""

from __future__ import annotations

import pytest

from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.names import reserved_attribute
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells
from tests.stages.checking import ELMAN, body, errors, marked, the_error, typed


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        (("state h", ELMAN, "init q = 1"), "RNN224", "q = 1"),
        (("state h", ELMAN, "init b = xavier"), "RNN224", "b = xavier"),
        (("state h", "param v: vector = eye", f"{ELMAN}*v"), "RNN224", None),
        (("state h", "param M: matrix, B: blockdiag(2)", "h[t] = (M + B)@h[t-1] + W@x"), "RNN214", None),
        (("state h", "h[t] = eye(H)@h[t-1] + W@x"), "RNN228", "eye(H)"),
        (("state h", "h[t] = elu(R@h[t-1])"), "RNN230", None),
    ],
)
def test_one_mistake_is_one_error(lines: tuple[str, ...], code: str, text: str | None) -> None:
    assert typed(*lines)
    found = the_error(*lines)
    assert found.code == code
    if text is not None:
        assert marked(found) == text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("state h", "param half: vector", f"{ELMAN}*half"), "half"),
        (("state h", "param _s: vector", f"{ELMAN}*_s"), "_s"),
        (("state h", "weights type: vector", f"{ELMAN}*type"), "type"),
        (("state h", "param rnncc_gates: vector", f"{ELMAN}*rnncc_gates"), "rnncc_gates"),
        (("state h", "param weight_ih: vector", f"{ELMAN}*weight_ih"), "weight_ih"),
        (("state h = learned", "param h0: vector", f"{ELMAN}*h0"), "h0"),
    ],
)
def test_names_that_the_module_has(lines: tuple[str, ...], text: str) -> None:
    found = the_error(*lines)
    assert (found.code, text in marked(found)) == ("RNN217", True)


def test_no_parameter_hides_an_attribute_of_the_module() -> None:
    import torch

    from rnncc.runtime.modules.base import RecurrentModule
    from rnncc.runtime.modules.cell import RecurrentCell

    annotated = {name for base in RecurrentModule.__mro__ for name in vars(base).get("__annotations__", ())}
    names = {*dir(RecurrentCell), *dir(torch.nn.Module()), *annotated}
    assert not {name for name in names if not reserved_attribute(name)}


def test_everything_is_found_in_one_go() -> None:
    found = errors("state h", "init q = 1", "param half: vector", "h[t] = elu(R@h[t-1])*half + eye(H)@x")
    assert [each.code for each in found] == ["RNN224", "RNN217", "RNN230", "RNN228"]


def test_mistakes_of_other_cells_do_not_hide_them() -> None:
    """One run reports what `check` finds in one cell and `partition` in another, in the order of the text."""
    early, late = body("state h", "h[t] = sigmod(W@x)"), body("state h", "h[t] = elu(R@h[t-1])")
    text = "\n".join((late, early.replace("Cell", "Second"), late.replace("Cell", "Third")))
    with pytest.raises(RnnccError) as caught:
        compile_cells(Request(Source("three.rnn", text), "three"), "partition")
    assert [each.code for each in caught.value.diagnostics] == ["RNN230", "RNN203", "RNN230"]
