"""The examples do what they say: they run, and what they train learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Golden

ROOT = Path(__file__).resolve().parents[1]


def run(name: str, *options: str, launcher: tuple[str, ...] = ()) -> str:
    """What an example prints. One thread: its time then does not depend on what else the machine does."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, *launcher, str(ROOT / "examples" / name), *options],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_a_character_model_with_a_cell_of_ones_own() -> None:
    output = run("char_lm.py")
    losses = [float(value) for value in re.findall(r"validation ([\d.]+) bits per character", output)]
    assert len(losses) == 10
    for curve in (losses[:5], losses[5:]):
        assert curve == sorted(curve, reverse=True)
        # Guessing by the frequency of characters costs over 4 bits.
        assert curve[-1] < 2.4
    _, _, sample = output.partition("writes:\n\n")
    assert len(sample) >= 400
    # It has learned to separate words and to spell the commonest. Which it writes depends on the text: each version of
    # Python has its own.
    words = re.findall("[a-z]+", sample.lower())
    assert len({"the", "is", "of", "and", "to", "in", "an", "be", "for"}.intersection(words)) >= 3


def said_of_the_loop(output: str) -> tuple[float, float]:
    """The largest differences, of outputs and of gradients, that an example has found between a layer and its loop."""
    outputs, gradients = (float(value) for value in re.findall(r"those of a Python loop, up to ([\d.e-]+)", output))
    # How many times as long the loop takes depends on the machine: it is said, and that is all.
    assert re.search(r"compiled [\d.]+ ms, Python loop [\d.]+ ms, [\d.]+ times as long", output)
    return outputs, gradients


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cell", ["mycell.rnn", "mydelta.rnn"])
def test_a_character_model_compares_its_layer_with_a_loop(cell: str) -> None:
    path = str(ROOT / "examples" / cell)
    output = run("char_lm.py", f"--cell={path}", "--hidden=32", "--heads=2", "--steps=20", "--seed=3", "--eager-loop")
    outputs, gradients = said_of_the_loop(output)
    assert outputs < 1e-5
    assert gradients < 1e-3
    losses = [float(value) for value in re.findall(r"validation ([\d.]+) bits per character", output)]
    assert len(losses) == 10
    # There are some 95 characters: 6.6 bits.
    assert losses[4] < losses[0] < 6.6
    assert len(output.partition("writes:\n\n")[2]) >= 400


@pytest.mark.long
def test_a_delta_rule_recalls_what_it_was_shown() -> None:
    output = run("recall.py", "--pairs=8", "--steps=80")
    outputs, gradients = said_of_the_loop(output)
    assert outputs < 1e-5
    assert gradients < 1e-4
    found = re.search(r"right answers after 80 steps each: MyDelta ([\d.]+)%, nn.LSTM ([\d.]+)%", output)
    assert found is not None
    ours, theirs = float(found[1]), float(found[2])
    assert ours > 95
    # One in 32 by guessing.
    assert theirs < 30


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_delta_rule_recalls_more_than_an_lstm(seed: int) -> None:
    output = run("recall.py", f"--seed={seed}")
    found = re.search(r"right answers after 500 steps each: MyDelta ([\d.]+)%, nn.LSTM ([\d.]+)%", output)
    assert found is not None
    assert float(found[1]) > 99
    assert float(found[2]) < 30


@pytest.mark.long
def test_a_character_model_with_a_matrix_as_its_state() -> None:
    path = str(ROOT / "examples" / "mydelta.rnn")
    output = run("char_lm.py", f"--cell={path}", "--hidden=128", "--heads=4")
    losses = [float(value) for value in re.findall(r"validation ([\d.]+) bits per character", output)]
    assert losses[:5] == sorted(losses[:5], reverse=True)
    assert losses[4] < 2.3
    assert " the " in output.partition("writes:\n\n")[2]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("recall.py", "--pairs=65"), "--pairs is from 1 to 64"),
        (("char_lm.py", "--cell=lstm", "--hidden=8", "--eager-loop"), "LSTM has no Python loop in"),
    ],
)
def test_an_example_says_what_it_cannot_do(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        run(*options)


@pytest.mark.long
def test_cells_with_a_recurrent_matrix_track_state() -> None:
    output = run("state_tracking.py")
    rows = {
        (task, cell): [float(value) / 100 for value in re.findall(r"([\d.]+)%", rest)]
        for task, cell, rest in re.findall(r"^(parity|A5) +(\w+)(.*)$", output, re.MULTILINE)
    }
    assert len(rows) == 6
    for task in ("parity", "A5"):
        for cell in ("LSTM", "sLSTM"):
            at_40, at_256, at_1000 = rows[task, cell]
            assert at_40 > 0.99
            assert at_256 > 0.95
            assert at_1000 > 0.8
    # Chance is 1/2 and 1/60.
    assert all(accuracy < 0.6 for accuracy in rows["parity", "minGRU"])
    assert all(accuracy < 0.1 for accuracy in rows["A5", "minGRU"])


@pytest.mark.long
def test_heads_on_two_processes_train_as_on_one() -> None:
    curves = []
    for ranks in (1, 2):
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        output = run("tensor_parallel.py", "--steps=40", launcher=launcher)
        assert f"4 heads on {ranks} processes" in output
        curves.append([float(value) for value in re.findall(r"loss ([\d.]+)", output)])
    assert len(curves[0]) == 10
    assert curves[0][-1] < 2.8 < 4 < curves[0][0]
    # The same training: the sums over heads are taken in another order.
    assert all(abs(a - b) < 1e-3 for a, b in zip(*curves, strict=True))


def test_the_walkthrough_is_the_document(golden: Golden) -> None:
    golden(ROOT / "docs" / "pipeline.md", run("walkthrough.py"))
