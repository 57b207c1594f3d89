"""Notebooks: `%%rnn` in a real shell of IPython, the example executed by a kernel, and values that show themselves."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import rnncc
from rnncc.language.diagnostics import RnnccError
from rnncc.notebook import Findings, draw, equations, explain
from rnncc.notebook.values import coloured
from tests.shipped import FOLDER

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
GOOD = "cell Leaky\nstate h\nh[t] = 0.5*h[t-1] + W@x\n"
BAD = "cell Bad\nstate h\nh[t] = tahn(W@x + R@h + b)\n"
# A value that nothing reads: RNN251 warns of it.
WARNED = "cell Warned\nstate h\nweights V: matrix\ne = sum(h[t-1])\nh[t] = V@h[t-1] + W@x\n"


@pytest.fixture
def shell() -> Any:
    """A shell of IPython, with rnncc loaded as an extension."""
    pytest.importorskip("IPython", reason="IPython is not here: pip install 'rnncc[notebook]'")
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "rnncc")
    yield made
    InteractiveShell.clear_instance()


def run(shell: Any, text: str) -> tuple[bool, str, list[dict[str, str]]]:
    """Whether a cell succeeds, what it prints, and what it displays by MIME type."""
    from IPython.utils.capture import capture_output

    shown: list[dict[str, str]] = []
    publish = shell.display_pub.publish
    shell.display_pub.publish = lambda data, *_, **__: shown.append(data)
    try:
        with capture_output(display=False) as printed:
            result = shell.run_cell(text)
    finally:
        shell.display_pub.publish = publish
    return result.success, printed.stdout + printed.stderr, shown


def test_without_ipython_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rnncc.notebook.magic", raising=False)
    monkeypatch.setitem(sys.modules, "IPython.core.error", None)
    with pytest.raises(RnnccError, match=r"RNN611.*rnncc\[notebook\]"):
        rnncc.load_ipython_extension(None)


def test_a_cell_defines_layer_step_and_op(shell: Any) -> None:
    success, printed, shown = run(shell, f"%%rnn mine\n{GOOD}")
    assert success, printed
    assert "defined Leaky, LeakyCell, leaky, mine" in printed
    assert not shown
    names = shell.user_ns
    assert names["mine"].Leaky is names["Leaky"]
    assert names["Leaky"].__name__ == "Leaky"
    assert callable(names["leaky"])
    assert run(shell, "import torch; assert Leaky(3, 4)(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)")[0]


def test_options_show_equations_a_picture_and_an_explanation(shell: Any) -> None:
    success, printed, shown = run(shell, f"%%rnn --equations --draw --explain\n{GOOD}")
    assert success, printed
    assert [sorted(set(data) - {"text/plain"}) for data in shown] == [["text/latex"], ["image/svg+xml"], ["text/html"]]
    assert shown[0]["text/latex"].startswith("\\begin{align*}\n  h_t &= 0.5\\, h_{t-1} + W x_t")
    assert all(data["text/plain"] for data in shown)


def test_mistakes_are_shown_in_colour_and_without_a_traceback(shell: Any) -> None:
    success, printed, shown = run(shell, f"%%rnn\n{BAD}")
    assert not success
    assert "Traceback" not in printed
    assert printed.strip().splitlines()[-1] == "rnncc: 2 errors; nothing is defined"
    (data,) = shown
    assert "error[RNN203]: unknown function 'tahn'" in data["text/plain"]
    assert "\x1b" not in data["text/plain"] + data["text/html"]
    assert '<span style="font-weight: bold; color: #d9372c">error[RNN203]</span>' in data["text/html"]
    assert "Bad" not in shell.user_ns


def test_warnings_are_shown_and_the_cell_is_defined(shell: Any) -> None:
    success, printed, shown = run(shell, f"%%rnn\n{WARNED}")
    assert success, printed
    assert "defined Warned" in printed
    assert "warning[RNN251]" in shown[0]["text/plain"]


@pytest.mark.parametrize("line", ["1a", "--nope", "'a", "class", "a b"])
def test_a_wrong_line_is_said_in_one_line(shell: Any, line: str) -> None:
    success, printed, _ = run(shell, f"%%rnn {line}\n{GOOD}")
    assert not success
    assert re.fullmatch(r"UsageError: %%rnn: [^\n]+", printed.strip())


def test_a_name_that_means_something_else_is_said(shell: Any) -> None:
    printer = GOOD.replace("Leaky", "Print")
    assert "\nrnncc: print now hides Python's own print\n" in run(shell, f"%%rnn\n{printer}")[1]
    # The second time it is the first one's.
    assert "hides" not in run(shell, f"%%rnn\n{printer}")[1]
    run(shell, "import json as leaky")
    assert "\nrnncc: leaky now hides the module json\n" in run(shell, f"%%rnn mine\n{GOOD}")[1]
    assert "hides" not in run(shell, f"%%rnn mine\n{GOOD}")[1]


@pytest.mark.parametrize("name", ["None", "True", "Lambda", "class"])
def test_a_word_of_python_names_no_cell(shell: Any, name: str) -> None:
    success, printed, shown = run(shell, f"%%rnn\n{GOOD.replace('Leaky', name)}")
    assert not success and "nothing is defined" in printed
    assert f"'{name}'" in shown[0]["text/plain"] and "Traceback" not in printed


def test_a_cell_that_is_defined_again_leaves_the_old_layers(shell: Any) -> None:
    """What was made before keeps its equations, and a mistake leaves the names as they were."""
    assert run(shell, f"%%rnn\n{GOOD}")[0] and run(shell, "old = Leaky(3, 4)")[0]
    assert run(shell, f"%%rnn\n{GOOD.replace('0.5', '0.25')}")[0] and run(shell, "new = Leaky(3, 4)")[0]
    names = shell.user_ns
    assert "0.5" in repr(equations(names["old"])) and "0.25" in repr(equations(names["new"]))
    wrong = GOOD.replace("W@x", "W@")
    assert not run(shell, f"%%rnn\n{wrong}")[0]
    assert names["Leaky"] is type(names["new"])


@pytest.mark.long
def test_the_example_runs_in_a_kernel() -> None:
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "the example is kept without outputs"
    book.cells.append(nbformat.v4.new_code_cell(f"%%rnn\n{BAD}", metadata={"tags": ["raises-exception"]}))
    done = nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    outputs = {cell.id: cell.outputs for cell in done.cells if cell.cell_type == "code"}
    kinds = [kind for output in outputs["cell"] for kind in output.get("data", {}) if kind != "text/plain"]
    assert kinds == ["text/latex", "image/svg+xml"]
    assert outputs["use"][0]["data"]["text/plain"] == "(torch.Size([20, 4, 16]), torch.Size([1, 4, 16]))"
    assert "text/html" in outputs["explain"][0]["data"]
    *shown, failed = done.cells[-1].outputs
    assert "text/html" in shown[-1]["data"]
    assert (failed["output_type"], failed["traceback"]) == ("error", ["rnncc: 2 errors; nothing is defined"])


def test_a_name_a_path_a_layer_a_class_and_a_module_mean_their_cells(tmp_path: Path) -> None:
    path = tmp_path / "two.rnn"
    text = f"{GOOD}\n{GOOD.replace('Leaky', 'Other').replace('0.5', '0.25')}"
    path.write_text(text)
    module = rnncc.compile(text)
    assert draw("lstm").cell == "LSTM"
    assert draw(path).cell == "Leaky"
    assert draw(path, "Other") == draw(module.Other) == draw(module.Other(2, 3)) == draw(module.OtherCell)
    assert draw(module).cell == "Leaky"
    assert equations(module).tex.count("\\begin{align}") == 2
    assert equations(module.Other).tex.count("\\begin{align}") == 1
    assert [entry["cell"] for entry in explain(module).facts] == ["Leaky", "Other"]
    assert explain(module, "Other").text.startswith("Other: states h [H]")


def test_what_is_no_cell_is_said(tmp_path: Path) -> None:
    import torch

    for foreign in (torch.nn.LSTM(2, 3), torch.nn.LSTM, torch):
        with pytest.raises(TypeError, match=r"is not of rnncc\.load or rnncc\.compile"):
            draw(foreign)
    with pytest.raises(ValueError, match="has no cell 'B', only LSTM"):
        explain("lstm", "B")
    with pytest.raises(ValueError, match="theme must be one of auto, light, dark"):
        draw("lstm", theme="blue")
    bad = tmp_path / "bad.rnn"
    bad.write_text(BAD)
    with pytest.raises(RnnccError):
        equations(bad)


def test_values_print_as_the_command_line_does() -> None:
    from click.testing import CliRunner

    from rnncc.cli import cli

    for value, command in ((equations("gru"), "latex"), (explain("gru"), "explain")):
        assert f"{value!r}\n" == CliRunner().invoke(cli, [command, "gru"]).output
    assert draw("gru").svg == CliRunner().invoke(cli, ["draw", "gru"]).output
    assert repr(draw("gru")) == "<picture of GRU; its attribute svg has the text>"
    assert ElementTree.fromstring(draw("gru")._repr_svg_()).tag.endswith("svg")


def test_a_notebook_shows_equations_without_their_sentences() -> None:
    shown = equations("s6")._repr_latex_()
    assert shown.startswith("\\begin{align*}")
    assert shown.endswith("\\end{align*}")
    assert "\\notag" not in shown
    assert shown.count("\\begin") == shown.count("\\end") == 1


def test_html_of_findings_is_escaped() -> None:
    with pytest.raises(RnnccError) as raised:
        rnncc.compile("cell A\nstate h\nh[t] = W@x if 1 <2 else hh&\n")
    html = Findings(raised.value.diagnostics)._repr_html_()
    assert ElementTree.fromstring(html).tag == "pre"
    assert "&lt;2" in html
    assert coloured("\x1b[1;31ma<b\x1b[0m c \x1b[34md") == (
        '<span style="font-weight: bold; color: #d9372c">a&lt;b</span> c <span style="color: #2f72dc">d</span>'
    )


def test_the_shipped_cells_are_those_of_the_folder() -> None:
    assert draw("elman") == draw(FOLDER / "elman.rnn")
