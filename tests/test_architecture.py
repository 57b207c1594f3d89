"""The rules of the code's shape (CONTRIBUTING.md): who imports what, how long a file is, what a template may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from rnncc.ir.request import Request
from rnncc.language.diagnostics import RnnccError
from rnncc.language.source import Source
from rnncc.machine.paths import cells_dir, templates_dir
from rnncc.pipeline import compile_cells
from tests.shipped import most_lines

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rnncc"
MODULES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted(templates_dir().rglob("*.j2"))
CELLS = sorted(cells_dir().glob("*.rnn"))

# Libraries, and the only parts of the package that may import them.
OWNERS = {
    "lark": ("rnncc.stages.parse",),
    "sympy": ("rnncc.stages.differentiate",),
    "jinja2": ("rnncc.stages.render.templates",),
    # The interpreter of cells and what compares with it; what a package carries; loading; ways in from libraries that
    # work on tensors; what is timed. Commands that need it import it inside their functions.
    "torch": ("rnncc.stages.load", "rnncc.runtime", "rnncc.verify", "rnncc.compat", "rnncc.bench", "rnncc.cli"),
    "click": ("rnncc.cli",),
    "pygls": ("rnncc.editing.server",),
    "lsprotocol": ("rnncc.editing.server",),
    "pygments": ("rnncc.editing.pygments_lexer",),
    "IPython": ("rnncc.notebook.magic",),
}


def module_name(path: Path) -> str:
    """`rnncc.stages.parse` for rnncc/stages/parse/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere, absolute, with its line; `from a import b` gives `a` and `a.b`."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def is_within(module: str, parent: str) -> bool:
    """Whether a module is `parent` or inside it."""
    return module == parent or module.startswith(parent + ".")


def stage_of(module: str) -> str | None:
    """`parse` for anything in rnncc.stages.parse."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["rnncc", "stages"] and len(parts) > 2 else None


def test_the_reader_of_imports_sees_every_form() -> None:
    found = {name for name, _ in imports(PACKAGE / "pipeline.py")}
    assert {"rnncc.stages.parse", "rnncc.stages.parse.parse", "rnncc.ir.request.Request"} <= found


def test_a_stage_never_imports_another_stage() -> None:
    stages = {entry.stem for entry in (PACKAGE / "stages").iterdir()}
    for path in MODULES:
        if (own := stage_of(module_name(path))) is not None:
            foreign = [(name, line) for name, line in imports(path) if stage_of(name) in stages - {own}]
            assert not foreign, path


def test_only_the_owner_imports_a_library() -> None:
    for path in MODULES:
        module = module_name(path)
        for name, line in imports(path):
            owners = OWNERS.get(name.split(".")[0])
            if owners is not None:
                assert any(is_within(module, owner) for owner in owners), f"{path}:{line} imports {name}"


def test_the_command_line_imports_torch_only_inside_functions() -> None:
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        for node in tree_of(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(is_within(name, "torch") for name in names), path
            assert not (isinstance(node, ast.ImportFrom) and is_within(node.module or "", "torch")), path


def test_the_runtime_needs_torch_and_python_alone() -> None:
    """It is copied into packages, which must run where rnncc is not installed."""
    import sys

    for path in sorted((PACKAGE / "runtime").rglob("*.py")):
        for name, line in imports(path):
            top = name.split(".")[0]
            relative = is_within(name, "rnncc.runtime")
            assert relative or top == "torch" or top in sys.stdlib_module_names, f"{path}:{line} imports {name}"


def test_the_ir_knows_the_language_and_nothing_else() -> None:
    for path in sorted((PACKAGE / "ir").glob("*.py")):
        own = [name for name, _ in imports(path) if is_within(name, "rnncc")]
        assert all(is_within(name, "rnncc.ir") or is_within(name, "rnncc.language") for name in own), path


@pytest.mark.parametrize("path", sorted((PACKAGE / "ir").glob("*.py")), ids=module_name)
def test_values_of_the_ir_never_change(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
    given = [ast.unparse(each) for node in classes for each in node.decorator_list]
    assert not [text for text in given if "dataclass" in text and "frozen=True" not in text]


def import_graph() -> dict[str, set[str]]:
    """Which of the package's modules each imports, at its top, inside functions, or for types alone."""
    own = {module_name(path): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for module, path in own.items():
        found = {name for name, _ in imports(path)}
        # `from a import b` gives a and a.b: if that is a module, it is the one that is meant.
        packages = {name.rpartition(".")[0] for name in found if name in own}
        names = {name.rpartition(".")[0] for name in found if name not in own}
        graph[module] = {name for name in found if name in own and (name not in packages or name in names)} - {module}
    return graph


def test_no_module_imports_itself_through_others() -> None:
    graph, finished = import_graph(), set[str]()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path[path.index(module) :], module))
        if module not in finished:
            for name in sorted(graph[module]):
                follow(name, (*path, module))
            finished.add(module)

    for module in sorted(graph):
        follow(module, ())


# What users call may have more arguments than six: as many as what it stands in for. Its name, and what that is. (What
# click decorates is the command line, whose options are arguments there.)
CALLED_BY_USERS = {
    "rnncc.runtime.modules.layer.RecurrentLayer.__init__": "torch.nn.LSTM's arguments, and those that every cell has",
    "rnncc.runtime.modules.layer.RecurrentLayer.forward": "torch.nn.LSTM's, and where sequences begin and end",
    "rnncc.runtime.modules.cell.RecurrentCell.__init__": "torch.nn.LSTMCell's arguments, and those that every cell has",
    "rnncc.runtime.modules.function.run_function": "the functional op of every cell, with the options of a layer",
    "rnncc.compat.flash.flashrnn": "FlashRNN's function",
    "rnncc.compat.haste._Lstm.__init__": "the constructor of Haste's LSTM and LayerNormLSTM",
}


def is_of_click(node: ast.expr) -> bool:
    """Whether a decorator is `click.…`, called or not."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "click"


def parameters(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """The name of every function, method and lambda, and its number of parameters without `self` and `cls`. What click
    decorates is left out."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{getattr(node, 'name', '<lambda>')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            starred = [each for each in (given.vararg, given.kwarg) if each is not None]
            if not any(map(is_of_click, getattr(node, "decorator_list", ()))):
                yield name, len(names) + len(starred) - (names[:1] in (["self"], ["cls"]))
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from parameters(node, name if is_named else prefix)


def test_the_counter_of_parameters_sees_every_form() -> None:
    text = """
class A:
    def method(self, a, /, b, *c, d, **e): return lambda x, y: x
    @classmethod
    async def made(cls, a): ...
@click.command()
@click.option("--a")
def command(a, b): ...
"""
    found = dict(parameters(ast.parse(text), "m"))
    assert found == {"m.A.method": 5, "m.A.method.<lambda>": 2, "m.A.made": 1}


def test_a_function_has_at_most_six_parameters() -> None:
    for path in MODULES:
        found = parameters(tree_of(path), module_name(path))
        assert not {name: count for name, count in found if count > 6 and name not in CALLED_BY_USERS}


def test_what_users_call_is_there_and_has_more() -> None:
    trees = ((tree_of(path), module_name(path)) for path in MODULES)
    many = {name for tree, module in trees for name, count in parameters(tree, module) if count > 6}
    assert many >= CALLED_BY_USERS.keys()


# Fields of a request as a name among its constants: options travel as fields.
OPTION_KEYS = {f"{option.name}__" for option in fields(Request)}


def test_no_option_has_a_name_among_constants() -> None:
    for path in MODULES:
        constants = (node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
        assert not [value for value in constants if value in OPTION_KEYS], path


@pytest.mark.parametrize("key", sorted(OPTION_KEYS))
def test_the_constants_of_a_request_are_the_cells_own(key: str) -> None:
    source = Source("leak.rnn", "cell Leak\nstate h\nh[t] = 0.5*h[t-1] + W@x\n")
    with pytest.raises(RnnccError, match="is not a constant of cell Leak"):
        compile_cells(Request(source, "leak", constants={key: 1}), "check")


def source_files() -> list[Path]:
    """Everything that people read and edit as code."""
    folders = ("rnncc", "templates", "tests", "examples", "benchmarks")
    endings = {".py", ".lark", ".j2", ".h", ".cuh", ".cpp", ".cu"}
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings]
    assert len(files) > 50
    return files


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    assert not {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 400}


# Templates decide nothing and compute nothing: `lower` and the plans of `render` do.
FORBIDDEN = (
    nodes.Call,
    nodes.CallBlock,
    nodes.Macro,
    nodes.Import,
    nodes.FromImport,
    nodes.Include,
    nodes.Extends,
    nodes.Block,
    nodes.Concat,
    nodes.Compare,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Pow,
    nodes.Neg,
    nodes.Pos,
)


def forbidden_nodes(text: str) -> list[tuple[str, int]]:
    """The kinds of node that a template may not hold, with their lines."""
    tree = jinja2.Environment().parse(text)
    return [(type(node).__name__, node.lineno) for node in tree.find_all(FORBIDDEN)]


def test_the_templates_are_found() -> None:
    assert TEMPLATES


@pytest.mark.parametrize(
    "text", ["{{ a + 1 }}", "{{ f(a) }}", "{% macro m() %}{% endmacro %}", "{% if a > b %}{% endif %}"]
)
def test_what_is_forbidden_is_seen(text: str) -> None:
    assert forbidden_nodes(text)


def test_a_template_only_fills_in() -> None:
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        assert not forbidden_nodes(text), path
        assert len(text.splitlines()) <= 120, path


def test_only_a_report_says_that_something_was_reported() -> None:
    """What marks a place as wrong holds a Reported. Who could make one without a diagnostic could lose an error."""
    for path in MODULES:
        calls = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))
        made = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Reported"]
        assert not made or path == PACKAGE / "language" / "report.py", path


def test_a_shipped_cell_is_short_and_cites_its_source() -> None:
    for path in CELLS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= most_lines(path.stem), path
        assert lines[0].startswith("# "), path
        assert any(line.startswith("# Form:") for line in lines), path
        names = [line.split()[1] for line in lines if line.startswith("cell ")]
        assert [name.lower() for name in names] == [path.stem]
