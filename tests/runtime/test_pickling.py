"""Classes, single steps, functional ops, and what holds them, in another process: by pickle, cloudpickle, torch.save,
and as arguments of a spawned process."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import multiprocessing
import pickle
import typing
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

import rnncc
from rnncc.compat.nn import replace
from rnncc.driver import build_package
from rnncc.language.read import read_request
from rnncc.machine.paths import cells_dir
from tests.fresh import run_fresh
from tests.packages import ONE_LIBRARY

TEXT = "cell Mine\nconst gain = 0.5, act = tanh\nstate h\nh[t] = gain*act(W@x + R@h[t-1] + b)\n"

# What each form gives for a seed: run here and in a process that has loaded no cell.
CALLS = """
import torch

def called(value):
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)  # and then the parameters of what is a class
    name = getattr(value, "__name__", type(value).__name__)
    if name == "mine":
        return value(torch.randn(5, 2, 4), [torch.randn(4, 4)], hidden_size=4)[0]
    if isinstance(value, torch.nn.Module):
        return value(x)[0]
    if hasattr(value, "Mine"):
        value = value.Mine
    layer = value(3, 4)
    return layer(x[0] if name == "MineCell" else x)[0]
"""
scope: dict[str, Any] = {}
exec(CALLS, scope)
called = scope["called"]


def cells() -> Any:
    return rnncc.compile(TEXT, "mine_of_pickling")


def made(form: str) -> Any:
    module = cells()
    match form:
        case "class":
            return module.Mine
        case "single step":
            return module.MineCell
        case "functional op":
            return module.mine
        case "partial":
            return functools.partial(module.Mine, num_layers=2, gain=0.25)
        case "module":
            return module
        case "another program":
            return type(module.Mine(3, 4, zoneout={"h": 0.1}))
        case "shipped class":
            return rnncc.load("elman").Elman
        case "instance of torch.nn":
            return replace(nn.LSTM(3, 4), as_nn=True)
        case "derived class":
            from tests.derived_layer import Derived

            return Derived
        case "layer":
            return module.Mine(3, 4, act="sigmoid").double().float()
    raise AssertionError(form)


FORMS = ("class", "single step", "functional op", "partial", "module", "another program", "shipped class",
         "instance of torch.nn", "derived class", "layer")  # fmt: skip


def elsewhere(data: bytes, folder: Path, load: str = "pickle.load(file)") -> torch.Tensor:
    """What the pickled thing gives in a fresh process, which starts in another folder."""
    (folder / "data").write_bytes(data)
    root = Path(__file__).resolve().parents[2]
    program = f"""
import pickle, sys
sys.path.append({str(root)!r})
with open("data", "rb") as file:
    {"import rnncc, torch" if "rnncc" in load else "pass"}
    value = {load}
{CALLS}
torch.save(called(value).detach(), "result")
"""
    done = run_fresh(program, folder=folder)
    assert done.returncode == 0, done.stderr
    result: torch.Tensor = torch.load(folder / "result", weights_only=True)
    return result


@pytest.mark.one_in(12)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", [pickle, cloudpickle], ids=lambda by: by.__name__)
def test_a_fresh_process_loads_it(form: str, by: Any, tmp_path: Path) -> None:
    value = made(form)
    data = by.dumps(value)
    assert b"rnncc_loaded" not in data and str(cells_dir()).encode() not in data
    assert torch.equal(elsewhere(data, tmp_path), called(value))


@pytest.mark.one_in(5, "form")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("partial", "layer", "instance of torch.nn")])
def test_it_is_the_same_object_in_this_process(form: str, protocol: int) -> None:
    value = made(form)
    assert pickle.loads(pickle.dumps(value, protocol)) is value and copy.deepcopy(value) is value
    assert copy.copy(value) is value


def test_a_class_that_only_its_program_knows_goes_by_cloudpickle(tmp_path: Path) -> None:
    """Such as one of a notebook: cloudpickle takes its methods along."""
    program = f"""
import cloudpickle, rnncc
cells = rnncc.compile({TEXT!r}, "mine_of_pickling")
class Twice(cells.Mine):
    def forward(self, x):
        output, last = super().forward(x)
        return 2*output, last
def make(*sizes):
    return cells.Mine(*sizes)
with open("data", "wb") as file:
    cloudpickle.dump((Twice, make), file)
"""
    run_fresh(program, folder=tmp_path).check_returncode()
    data = (tmp_path / "data").read_bytes()
    twice = elsewhere(data, tmp_path, "pickle.load(file)[0]")
    once = elsewhere(data, tmp_path, "pickle.load(file)[1]")
    assert torch.equal(twice, 2 * once) and torch.equal(once, called(cells().Mine))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("form", ["class", "single step", "functional op", "shipped class", "instance of torch.nn"])
def test_torch_loads_it_by_the_allow_list(form: str, tmp_path: Path) -> None:
    value = made(form)
    torch.save({"cell": value, "size": 4}, tmp_path / "config")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "config", weights_only=True)
    load = "torch.load(file, weights_only=True)['cell']"
    allowed = f"[torch.serialization.add_safe_globals(rnncc.safe_globals()), {load}][1]"
    assert torch.equal(elsewhere((tmp_path / "config").read_bytes(), tmp_path, allowed), called(value))


def _work(value: Any, results: Any) -> None:
    results.put(called(value).detach().numpy())


@pytest.mark.long
@pytest.mark.parametrize("form", ["class", "functional op", "partial", "derived class"])
def test_a_spawned_process_takes_it_as_an_argument(form: str) -> None:
    value, context = made(form), multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_work, args=(value, results))
    process.start()
    result = results.get(timeout=300)
    process.join(60)
    assert process.exitcode == 0 and torch.equal(torch.from_numpy(result), called(value))


def test_what_has_no_name_is_refused_at_once() -> None:
    class Local(cells().Mine):  # type: ignore[misc]
        pass

    for value in (Local, Local(3, 4)):
        with pytest.raises((pickle.PicklingError, AttributeError), match="Local"):
            pickle.dumps(value)


def test_a_class_derives_from_a_layer_and_from_an_abstract_class() -> None:
    class Encoder(abc.ABC):
        @abc.abstractmethod
        def encode(self, x: torch.Tensor) -> torch.Tensor: ...

    class Both(cells().Mine, Encoder, typing.Generic[typing.TypeVar("T")]):  # type: ignore[misc]
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)[0]  # type: ignore[no-any-return]

    assert Both(3, 4).encode(torch.zeros(5, 2, 3)).shape == (5, 2, 4)


BUILT = """
import copy, functools, pickle, sys, cloudpickle, torch
import mine
from torch import nn
class Own(mine.Mine):
    pass
for by in (pickle, cloudpickle):
    for value in (mine.Mine, mine.MineCell, mine.mine, Own):
        data = by.dumps(value)
        assert by.loads(data) is value, value
    config = by.loads(by.dumps({"partial": functools.partial(mine.Mine, num_layers=2), "layer": mine.Mine(3, 4)}))
    assert config["partial"](3, 4).num_layers == 2 and type(config["layer"]) is mine.Mine
assert copy.deepcopy(mine.mine) is mine.mine
assert "rnncc" not in sys.modules
with open("data", "wb") as file:
    cloudpickle.dump((Own, mine.mine), file)
"""


def test_those_of_a_built_package_go_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "mine.rnn").write_text(TEXT)
    build_package(dataclasses.replace(read_request(tmp_path / "mine.rnn"), **ONE_LIBRARY), tmp_path)
    run_fresh(BUILT, folder=tmp_path).check_returncode()
    read = "import pickle; own, op = pickle.load(open('data', 'rb')); print(own.__mro__[1], op)"
    done = run_fresh(read, folder=tmp_path)
    assert done.stdout.split() == ["<class", "'mine._cell_mine.Mine'>", "<functional", "op", "mine._cell_mine.mine>"]


def test_the_functional_op_is_as_a_function() -> None:
    op: Any = cells().mine
    assert op.__name__ == op.__qualname__ == "mine" and "streams" in op.__doc__ and op.__module__ in repr(op)
    compiled = torch.compile(lambda x, weight: op(x, [weight], hidden_size=4)[0], backend="aot_eager", fullgraph=True)
    x, weight = torch.randn(5, 2, 4), torch.randn(4, 4)
    assert torch.equal(compiled(x, weight), op(x, [weight], hidden_size=4)[0])


def restored(layer: Any, other: dict[str, Any]) -> Any:
    """What a pickle makes of a layer's state, with other entries."""
    made: Any = type(layer)
    again = made.__new__(made)
    again.__setstate__(layer.__getstate__() | other)
    return again


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("spec", None, "is its class's"), ("num_layers", 2**70, "another number of layers"),
        ("_suffixes", ["_l0", "_l1"], "another number of layers"), ("bidirectional", True, "another number of layers"),
        ("hidden_size", -4, "hidden_size"), ("hidden_size", "4", "hidden_size"), ("num_heads", 0, "num_heads"),
        ("num_heads", 3, "num_heads"),
    ],
)  # fmt: skip
def test_a_state_that_no_layer_had_is_refused(name: str, value: Any, message: str) -> None:
    layer = cells().Mine(3, 4)
    with pytest.raises((TypeError, ValueError), match=message):
        restored(layer, {name: value})


@pytest.mark.parametrize("form", ["layer", "instance of torch.nn"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("_sizes", [{"I": 3, "H": 4000, "num_heads": 1}]), ("_shapes", [{"weight_hh": (1, 1)}]), ("_whole", "odd")],
)
def test_kernels_read_memory_by_nothing_that_a_state_says(name: str, value: Any, form: str) -> None:
    layer = made(form)
    again = restored(layer, {name: value})
    x = torch.randn(5, 2, 3)
    calls: tuple[dict[str, Any], ...] = ({}, {"lengths": [5, 3]})
    for keywords in calls:
        assert torch.equal(again(x, **keywords)[0], layer(x, **keywords)[0])
    again = restored(layer, {})
    again._parameters = {**again._parameters, "weight_hh_l0": nn.Parameter(torch.zeros(1, 1))}
    with pytest.raises(RuntimeError, match="weight_hh_l0 must be"):
        again(x)


SPLIT = """
cell Split
dim K = 2, L = 2
const gain = 0.5
state s: L
local k: K, l: L
k, l = W@x
s[t] = gain*s[t-1] + l + mean(k)
"""


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        # The rows of W are as many as before.
        ("dims", {"K": -1, "L": 5}, ValueError), ("dims", {"K": 0, "L": 4}, ValueError),
        ("dims", {"K": 2.0, "L": 2}, TypeError), ("dims", {"K": True, "L": 3}, TypeError),
        ("dims", {"K": 2}, ValueError), ("dims", {"K": 2, "L": 2, "M": 2}, ValueError),
        ("constants", {"gain": "x"}, TypeError), ("constants", {}, ValueError),
        ("_zoneout", {"s": 0.5}, ValueError), ("_zoneout", {"q": 0.5}, ValueError),
        ("_recurrent_dropout", 3.0, ValueError),
    ],
)  # fmt: skip
def test_numbers_of_a_state_are_read_as_the_constructor_reads_them(
    name: str, value: Any, error: type[Exception]
) -> None:
    layer = rnncc.compile(SPLIT, "split_of_pickling").Split(3, 4)
    with pytest.raises(error):
        restored(layer, {name: value})
