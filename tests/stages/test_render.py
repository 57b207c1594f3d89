"""`render`: the files and units of a package, and the text of functions."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import product
from math import inf

import pytest

from rnncc.ir.dim import HEADS, HIDDEN_SIZE, constant, floor_divide, multiply, named, scale
from rnncc.ir.expr import Const, Ref, apply
from rnncc.ir.lowered import LoweredCell
from rnncc.ir.target import INSTRUCTION_SETS
from rnncc.language.read import from_text
from rnncc.machine.paths import cells_dir, templates_dir
from rnncc.stages.render.cpp.expressions import expression_text, number_text
from rnncc.stages.render.notation import cpp_dim
from tests.compiling import lowered, plan_of
from tests.rendering import for_cpus


def test_units_of_a_package() -> None:
    bundle = for_cpus([plan_of("lstm"), plan_of("gru")])
    paths = {file.path: file.text for file in bundle.files}
    assert len(paths) == len(bundle.files)
    assert bundle.include == ("src/include",)
    assert {unit.path for unit in bundle.units} <= set(paths)
    units = {unit.path: unit for unit in bundle.units}
    for cell, chooses in (("lstm", "lstm_dispatch"), ("gru", "gru_dispatch"), ("_core", "_core")):
        assert units[f"src/{chooses}.cpp"].isa == "binding"
        for isa, suffix in product(("generic", "v3", "v4"), ("f32", "f64")):
            for masked in ("",) if cell == "_core" else ("", "_masked"):
                unit = units[f"src/{cell}_{isa}_{suffix}{masked}.cpp"]
                assert (unit.isa, unit.shared, unit.compute_type) == (isa, cell == "_core", suffix)
    assert (units["src/_core_binding.cpp"].isa, units["src/_core_binding.cpp"].shared) == ("binding", True)
    assert len(units) == 34
    include = templates_dir() / "include"
    for header in include.rglob("*.*h"):
        expected = None if "cuda" in header.parts else header.read_text(encoding="utf-8")
        assert paths.get(f"src/include/{header.relative_to(include).as_posix()}") == expected


def test_shared_units_do_not_depend_on_the_cell() -> None:
    def shared(name: str) -> dict[str, str]:
        bundle = for_cpus([plan_of(name)])
        wanted = {unit.path for unit in bundle.units if unit.shared}
        return {file.path: file.text for file in bundle.files if file.path in wanted}

    assert shared("lstm") == shared("mogrifierlstm")


def test_statements_carry_their_line_and_no_path_leaks() -> None:
    bundle = for_cpus([plan_of("lstm")])
    text = next(file.text for file in bundle.files if file.path == "src/lstm_functions.h")
    source = (cells_dir() / "lstm.rnn").read_text(encoding="utf-8").splitlines()
    line = next(index for index, content in enumerate(source, 1) if content.startswith("c[t]"))
    statement = f"const rnncc::Vec<T> c = (f__sigmoid * c__1) + (i__sigmoid * g__tanh);  // lstm.rnn:{line}"
    assert statement in text
    assert str(cells_dir()) not in text
    assert "lstm_0_masked_backward" in text


def _functions(plan: LoweredCell) -> str:
    return next(file.text for file in for_cpus([plan]).files if file.path.endswith("_functions.h"))


def test_turns_of_a_loop_run_one_function() -> None:
    text = _functions(plan_of("ltc"))
    turns = [f"slot__::drive, slot__::f_{turn}__M, slot__::f_{turn}, slot__::u_{turn - 1}," for turn in range(2, 6)]
    found = [re.findall(rf"(ltc_shared::function_\d+)<T>, {turn}", text) for turn in turns]
    # Loops with lengths are compiled elsewhere. What plain loops do, too, is the same function.
    assert all(each == found[0] for each in found) and len(found[0]) == 2 and len(set(found[0])) == 1
    plain, masked = text.split("namespace rnncc::ltc_0_masked_forward {")
    assert "ltc_masked_shared::" not in plain and "ltc_shared::function_" in masked


def test_a_library_with_both_files_has_their_common_functions_once() -> None:
    plan = plan_of("ltc")

    def declared(files: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
        found = {}
        for file in for_cpus([plan], cpu_files=files).files:
            if name := re.search(r"ltc_v3_(f\d\d(_masked)?)\.cpp", file.path):
                lines = re.finditer(r"^(extern )?template void (function_\d+)", file.text, re.MULTILINE)
                found[name[1]] = [(line[1] or "", line[2]) for line in lines]
        return found

    both = declared(("f32", "f32_masked", "f64"))
    assert both["f32"] and both["f32_masked"] == [("extern ", name) for _, name in both["f32"]]
    assert {extern for extern, _ in both["f32"]} == {""} and not both["f64"]
    assert not any(declared(("f32_masked",)).values())


ALIKE = """
cell Alike
const j = 2.0, k = 2.0
input x: H
state h
param S: matrix(H, H), U: matrix(H, H)
p = tanh({first}*(R@h[t-1]) + x)
q = tanh({second}*(S@p) + x)
h[t] = U@q
"""


@pytest.mark.parametrize(
    ("first", "second", "are_shared"),
    [("2", "2", True), ("2", "3", False), ("j", "j", True), ("j", "k", False), ("2", "k", False)],
)
def test_functions_of_other_numbers_are_others(first: str, second: str, are_shared: bool) -> None:
    text = _functions(lowered(from_text("<alike>", ALIKE.format(first=first, second=second))))
    forward = re.search(r"namespace rnncc::alike_0_forward \{.*?functions\[\] = \{(.*?)\}", text, re.DOTALL)
    assert forward is not None
    names = re.findall(r"\b(\w*function_\d+)<T>", forward.group(1))
    assert (names[0] == names[1]) == are_shared, forward.group(1)


def test_entry_points() -> None:
    texts = {file.path: file.text for file in for_cpus([plan_of("lstm")]).files}
    for name in ("lstm_0_forward", "lstm_0_backward", "lstm_0_masked_forward", "lstm_0_masked_backward"):
        direction = name.rsplit("_", 1)[1]
        masked = "_masked" * ("masked" in name)
        entries = texts[f"src/lstm_v3_f64{masked}.cpp"]
        assert f"int32_t {name}_v3_f64{masked}(\n    const rnncc_{direction}_call* call)" in entries
        files = f"f32{masked}, all, f64{masked}, all"
        chosen = f"RNNCC_DISPATCH({name}, {files}, rnncc_{direction}_call, call->streams[0].dtype)"
        assert chosen in texts["src/lstm_dispatch.cpp"]


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_code_for_one_set_of_instructions(instructions: str) -> None:
    bundle = for_cpus([plan_of("lstm")], instructions)
    compiled = {unit.path: unit.isa for unit in bundle.units}
    kinds = [f"{instructions}_{suffix}" for suffix in ("f32", "f64")]
    own = {f"src/{name}.cpp" for kind in kinds for name in (f"_core_{kind}", f"lstm_{kind}", f"lstm_{kind}_masked")}
    assert compiled.keys() - own == {"src/_core.cpp", "src/_core_binding.cpp", "src/lstm_dispatch.cpp"}
    assert {compiled[path] for path in own} == {instructions}
    texts = {file.path: file.text for file in bundle.files}
    assert (
        f"RNNCC_DISPATCH(lstm_0_forward, f32, {instructions}, f64, {instructions}, " in texts["src/lstm_dispatch.cpp"]
    )
    assert f"RNNCC_DISPATCH(rnncc_linear_forward, f32, {instructions}, f64, {instructions}, " in texts["src/_core.cpp"]


@pytest.mark.parametrize("cpu_files", [("f32",), ("f64",), ("f32_masked",), ("f64", "f64_masked"), ()])
def test_what_is_not_compiled_with_a_package_is_found_later(cpu_files: tuple[str, ...]) -> None:
    """Its other files are those of a package with all."""
    whole, part = for_cpus([plan_of("lstm")], "v3"), for_cpus([plan_of("lstm")], "v3", cpu_files)
    compute_types = {file[:3] for file in cpu_files}
    assert {unit.path for unit in part.units if unit.compute_type} == {
        f"src/{name}.cpp" for name in (*(f"_core_v3_{t}" for t in compute_types), *(f"lstm_v3_{f}" for f in cpu_files))
    }

    def chosen(name: str, files: Sequence[str], there: Container[str]) -> str:
        code = (f"{file}, {'v3' if file in there else 'late_v3'}" for file in files)
        return f"RNNCC_DISPATCH({name}, {', '.join(code)}, "

    texts = {file.path: file.text for file in part.files}
    plain, masked = ("f32", "f64"), ("f32_masked", "f64_masked")
    assert chosen("lstm_0_backward", plain, cpu_files) in texts["src/lstm_dispatch.cpp"]
    assert chosen("lstm_0_masked_backward", masked, cpu_files) in texts["src/lstm_dispatch.cpp"]
    assert chosen("rnncc_pack", plain, compute_types) in texts["src/_core.cpp"]
    chooses = {"src/lstm_dispatch.cpp", "src/_core.cpp"}
    left_out = {unit.path for unit in whole.units} - {unit.path for unit in part.units}
    assert {file.path: file.text for file in whole.files if file.path not in left_out | chooses} == {
        path: text for path, text in texts.items() if path not in chooses
    }


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (scale(HIDDEN_SIZE, 4), "4*sizes[1]"),
        (constant(0), "0"),
        (floor_divide(HIDDEN_SIZE, HEADS), "sizes[1]/heads"),
        (multiply(named("P"), named("I")), "sizes[0]*sizes[2]"),
    ],
)
def test_dims(dim: object, text: str) -> None:
    assert cpp_dim(dim, ("I", "H", "P")) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "T(0.1)"),
        (-2.0, "T(-2.0)"),
        (1e-05, "T(1e-05)"),
        (inf, "rnncc::infinity<T>()"),
        (-inf, "T(-rnncc::infinity<T>())"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


def test_expressions() -> None:
    assert expression_text(apply("pow", Ref("v"), Const(2.0))) == "rnncc::powi<2>(v)"
    assert expression_text(apply("pow", Ref("v"), Const(-1.0))) == "rnncc::powi<-1>(v)"
    assert expression_text(apply("pow", Ref("v"), Const(0.5))).startswith("rnncc::pow(v")
    assert expression_text(apply("pow", Ref("v"), Const(9.0))).startswith("rnncc::pow(v")
    # Functions are qualified, so that a gate called `max` or `load` hides nothing; numbers in them are vectors.
    expr = apply("max", apply("sub", Const(1.0), Ref("load")), Const(0.5))
    assert expression_text(expr) == "rnncc::max(T(1.0) - load, rnncc::broadcast(T(0.5)))"
    folded = expression_text(apply("add", Const(1.0), Const(2.0)))
    assert folded == "rnncc::broadcast(T(1.0)) + rnncc::broadcast(T(2.0))"
    assert expression_text(apply("neg", Ref("a"))) == "-a"
    both = apply("mul", apply("neg", Ref("a")), apply("add", Ref("b"), Ref("c")))
    assert expression_text(both) == "(-a) * (b + c)"
