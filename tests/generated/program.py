"""A cell's text as Python syntax: one statement a line, its expressions parsed by Python's own parser.

The language's expressions are Python's, but for `for l in 1..L:`. Nothing here knows rnncc; what a statement means
is what docs/language.md says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# How a text calls the number of heads.
HEADS = "num_heads"
BUILT_IN = {"W": "matrix", "R": "matrix", "b": "vector", "bR": "vector"}


@dataclass(frozen=True, slots=True)
class Width:
    """A width `k*base`; `names` are the sizes that its text holds. `is_narrow`: it is one number, or one per head."""

    k: int
    size: int
    names: frozenset[str]
    is_narrow: bool = False


@dataclass(frozen=True, slots=True)
class Equation:
    """One target. `targets` are all of its `split`, of which it is number `index`; `loop` the loop's variables."""

    target: str
    value: ast.expr
    targets: tuple[str, ...]
    index: int
    loop: Mapping[str, int]


@dataclass(slots=True)
class Program:
    """What a cell declares, by name. Widths are text; a state's initial value is None where it is learned. `diagonal`:
    states that start so on the diagonal alone."""

    sizes: dict[str, int]
    constants: dict[str, float | str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=lambda: {"x": "I"})
    states: dict[str, str] = field(default_factory=dict)
    initial: dict[str, float | None] = field(default_factory=dict)
    diagonal: set[str] = field(default_factory=set)
    locals: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=lambda: dict(BUILT_IN))
    params: dict[str, str] = field(default_factory=dict)
    equations: dict[str, Equation] = field(default_factory=dict)
    functions: dict[str, tuple[list[str], ast.expr]] = field(default_factory=dict)
    output: str = ""

    def width(self, text: str) -> Width:
        """The width that a text states."""
        tree = expression(text)
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - self.constants.keys()
        size = eval(text, {"__builtins__": {}}, {**self.constants, **self.sizes})
        k = 1
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) and isinstance(factor := tree.left, ast.Name):
            k = int(self.constants.get(factor.id, 1))
        elif isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) and isinstance(tree.left, ast.Constant):
            k = int(str(tree.left.value))
        return Width(k, size, names, text.strip() in ("1", HEADS))

    def is_declared(self, target: str) -> bool:
        """Whether the text says how wide an equation's target is. A split says so too."""
        base = re.sub(r"_\d+$", "", target) if self.equations[target].loop else target
        return target in self.states or base in self.locals or len(self.equations[target].targets) > 1

    def target_width(self, target: str) -> Width:
        """The declared width of an equation's target, H if there is none. Loops: that of n for n_1."""
        base = re.sub(r"_\d+$", "", target) if self.equations[target].loop else target
        return self.width(self.states.get(target) or self.locals.get(base) or "H")

    def input_sizes(self) -> frozenset[str]:
        """Sizes that measure inputs only: values of such a width have no heads."""
        outside = {name for text in self.inputs.values() for name in self.width(text).names} | {"I"}
        texts = [side for text in (*self.states.values(), *self.locals.values()) for side in sides(text) or (text,)]
        inside = {name for text in texts for name in self.width(text).names}
        return frozenset(outside - inside - {"H", HEADS})


def sides(text: str) -> tuple[str, ...]:
    """The rows and the columns of `matrix(P, Q)`; nothing of a vector."""
    found = re.fullmatch(r"matrix\((.*), (.*)\)", text)
    return (found[1], found[2]) if found else ()


def is_time(index: ast.expr) -> bool:
    """Whether an index is a time, and not the turn of a loop."""
    return any(isinstance(node, ast.Name) and node.id == "t" for node in ast.walk(index))


def expression(text: str) -> ast.expr:
    """The syntax of an expression."""
    return ast.parse(re.sub(r"(\w+) -> ", r"lambda \1: ", text.strip()), mode="eval").body


def spelled(text: str) -> str:
    """A text as the language writes it, where a derivative is one of Python's functions."""
    return re.sub(r"lambda (\w+): ", r"\1 -> ", text)


def read(text: str, sizes: Mapping[str, int], given: Mapping[str, float | str] = {}) -> Program:
    """The program of a text. `sizes` holds I, H and dims given to the layer, `given` constants given to it."""
    program = Program(dict(sizes))
    lines = [line.partition("#")[0].rstrip() for line in text.splitlines()]
    block: list[tuple[str, str, str]] = []
    for line in (line for line in lines if line and not line.startswith("cell ")):
        # A loop's equations stand four columns behind it.
        block = block[: (len(line) - len(line.lstrip())) // 4]
        loop = re.fullmatch(r"for (\w+) in (\S+)\.\.(\S+):", line.strip())
        if loop is not None:
            block = [*block, (loop[1], loop[2], loop[3])]
        elif not _declared(program, line, given):
            _equation(program, line.strip(), block)
    return program


def _number(program: Program, text: str) -> int:
    return int(eval(text, {"__builtins__": {}}, {**program.constants}))


def _declared(program: Program, line: str, given: Mapping[str, float | str]) -> bool:
    keyword, _, rest = line.partition(" ")
    entries = [_entry(entry) for entry in re.split(r",\s*(?![^(]*\))", rest.replace(" per sequence", ""))]
    match keyword:
        case "input":
            program.inputs |= {name: width or program.inputs["x"] for name, width, _ in entries if name != "x"}
        case "state":
            program.states |= {name: width or "H" for name, width, _ in entries}
            starts = {name: start or "0" for name, _, start in entries}
            program.diagonal |= {name for name, start in starts.items() if start.endswith("eye")}
            numbers = {name: re.sub(r"\*?eye$", "", start) for name, start in starts.items()}
            ones = {"": 1.0, "-": -1.0}
            program.initial |= {n: None if s == "learned" else ones.get(s) or float(s) for n, s in numbers.items()}
        case "local":
            program.locals |= {name: width for name, width, _ in entries}
        case "weights":
            program.groups |= {name: kind for name, kind, _ in entries}
        case "param" | "buffer":
            program.params |= {name: kind for name, kind, _ in entries}
        case "dim":
            for name, _, default in entries:
                if name not in program.sizes:
                    program.sizes[name] = int(eval(default or "0", {"__builtins__": {}}, dict(program.sizes)))
        case "const":
            for name, _, default in entries:
                value = given.get(name, default)
                try:
                    program.constants[name] = float(value) if "." in str(value) else int(value)
                except ValueError:
                    program.constants[name] = value
        case "def":
            called, parameters, body = re.fullmatch(r"(\w+)\((.*?)\) = (.*)", rest).groups()  # type: ignore[union-attr]
            program.functions[called] = parameters.split(", "), expression(body)
        case "output":
            program.output = rest
        case "init":
            pass
        case _:
            return False
    return True


def _entry(text: str) -> tuple[str, str, str]:
    """`name: width = start`."""
    name, _, start = (part.strip() for part in text.partition("="))
    name, _, width = (part.strip() for part in name.partition(":"))
    return name, width, start


def _equation(program: Program, line: str, block: list[tuple[str, str, str]]) -> None:
    left, right = re.split(r"(?<![<>=!])=(?!=)", line, maxsplit=1)
    value = _called(program, expression(right))
    names = [name.strip() for name in left.split(",")]
    rounds: list[dict[str, int]] = [{}]
    for variable, first, last in block:
        turns = range(_number(program, first), _number(program, last) + 1)
        rounds = [{**outer, variable: turn} for outer in rounds for turn in turns]
    for loop in rounds:
        targets = tuple(_target(program, name, loop) for name in names)
        is_split = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "split"
        for index, target in enumerate(targets):
            assert target not in program.equations, target
            program.equations[target] = Equation(target, value, targets if is_split else (target,), index, loop)


def _called(program: Program, value: ast.expr) -> ast.expr:
    """What a call of a function of the cell's own stands for: the body with the arguments in it."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in program.functions):
        return value
    parameters, body = program.functions[value.func.id]
    arguments = dict(zip(parameters, value.args, strict=False))

    class Given(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return arguments.get(node.id, node)

    found: ast.expr = Given().visit(expression(ast.unparse(body)))
    return found


def _target(program: Program, name: str, loop: Mapping[str, int]) -> str:
    """`h` of `h[t]`, `n_1` of `n[l]`."""
    found = re.fullmatch(r"(\w+)\[(.+)\]", name)
    if found is None:
        return name
    if found[2] == "t":
        return found[1]
    number = eval(found[2], {"__builtins__": {}}, {**program.constants, **loop})
    return f"{found[1]}_{number}"
