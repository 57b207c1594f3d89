"""Kernel families: a program asks one for its scope and never for its name, and each has a header and a model."""

from __future__ import annotations

import ast
import re

import pytest

from rnncc.ir.family import FAMILIES, FUSED, Family, Scope
from rnncc.machine.paths import templates_dir
from rnncc.runtime.kernels import index
from rnncc.stages.schedule.families import MODELS
from tests.test_architecture import MODULES, PACKAGE, TEMPLATES

# Where a program asks for a name, another family of the same scope would be forgotten.
NAMES = frozenset(family.name for family in FAMILIES)
FAMILY_MODULE = PACKAGE / "ir" / "family.py"
HEADERS = sorted(path for ending in ("h", "cuh") for path in (templates_dir() / "include").rglob(f"*.{ending}"))
# The words of an index, which rnncc::FusedScope stands for: one of them is also a family's name.
SCOPES = re.compile(r"constexpr const char\* FUSED_SCOPES\[\] = \{(.*)\};")


def is_name(node: ast.AST) -> bool:
    """Whether an expression is a family's name: `"grid"`, `kernel.family.name`, or a collection with one of these."""
    match node:
        case ast.Constant(value=str(text)):
            return text in NAMES
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(map(is_name, parts))
        case ast.Attribute(attr="name", value=ast.Attribute(attr="family") | ast.Name(id="family")):
            return True
        case _:
            return False


def names_asked_for(text: str) -> list[int]:
    """The lines of a program that compare the name of a kernel family, or give one a name of its own for that."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare():
                asked = any(map(is_name, (node.left, *node.comparators)))
            case ast.MatchValue():
                asked = is_name(node.value)
            case ast.Assign(value=value) | ast.AnnAssign(value=value):
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                asked = bool(parts) and all(isinstance(part, ast.Constant) and is_name(part) for part in parts)
            case ast.Dict():
                asked = sum(key is not None and is_name(key) for key in node.keys) > 1
            case ast.Subscript():
                asked = isinstance(node.slice, ast.Attribute) and is_name(node.slice)
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                asked = any(map(is_name, node.args))
            case _:
                continue
        if asked:
            found.append(node.lineno)
    return found


def names_in_text(text: str) -> list[str]:
    """The names of kernel families that stand as strings in C++ or in a template, outside of comments."""
    code = re.sub(r"//[^\n]*", "", SCOPES.sub("", text))
    return [name for name in re.findall(r"""["'](\w+)["']""", code) if name in NAMES]


@pytest.mark.parametrize(
    "text",
    [
        'a.family == "grid"', '"grid" != family', 'family in ("gather", "scatter")', "a.family.name == other",
        'STEPWISE = "stepwise"', 'match family:\n    case "grid":\n        pass',
        'match family:\n    case "gather" | "scatter":\n        pass', 'MODELS = {"gather": one, "scatter": two}',
        "MODELS[kernel.family.name]", 'name.startswith("grid")', 'CLUSTERS = ("gather", "scatter")',
    ],
)  # fmt: skip
def test_a_comparison_of_a_familys_name_is_seen(text: str) -> None:
    assert names_asked_for(text)


def test_a_familys_name_in_cpp_and_in_a_template_is_seen() -> None:
    assert names_in_text('bool is_grid() const { return family == "grid"; }  // "walk"') == ["grid"]
    assert names_in_text("{% if plan.family in ['gather'] %}") == ["gather"]


def test_no_program_compares_a_familys_name() -> None:
    # `sparse` is also how a cell calls a type of matrices.
    may_ask = {FAMILY_MODULE, FAMILY_MODULE.parents[1] / "stages" / "check" / "types.py"}
    for path in sorted({*MODULES} - may_ask):
        assert not names_asked_for(path.read_text(encoding="utf-8")), path


def test_no_cpp_knows_a_familys_name() -> None:
    for path in (*HEADERS, *TEMPLATES):
        assert not names_in_text(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("family", FUSED, ids=lambda family: family.name)
def test_a_fused_family_has_a_header_and_a_model(family: Family) -> None:
    """A launch of one step has a time that needs no model."""
    header = templates_dir() / "include" / "rnncc" / "cuda" / "fused" / "families" / f"{family.name}.cuh"
    text = header.read_text(encoding="utf-8")
    assert re.search(rf"struct {family.shape} (: [^{{]*)?{{", text) and f" fused_{family.name}(" in text
    assert (family in MODELS) is (family.scope is not Scope.STEP)


def test_the_library_knows_the_scopes_of_fused_kernels() -> None:
    header = (templates_dir() / "include" / "rnncc" / "cuda" / "fused" / "host" / "index.h").read_text(encoding="utf-8")
    (words,) = SCOPES.findall(header)
    scopes = [scope.value for scope in Scope if scope in {family.scope for family in FUSED}]
    assert re.findall(r"\w+", words) == scopes == list(index._SCOPES)
    assert f"enum class FusedScope {{ {', '.join(scopes)} }};" in header
