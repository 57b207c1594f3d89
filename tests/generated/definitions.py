"""Takes parts of drawn equations out into functions of the cell (`def`), which the equations then call."""

from __future__ import annotations

import ast
import re
from random import Random

_CHANCE = 0.15


def with_functions(equations: list[str], seed: int) -> list[str]:
    """The equations, some of them as calls, after the definitions of what they call."""
    random = Random(-1 - seed)
    definitions: list[str] = []
    kept = []
    for equation in equations:
        plain = not equation.startswith("for ") and "split(" not in equation
        if not (plain and random.random() < _CHANCE):
            kept.append(equation)
            continue
        left, right = re.split(r"(?<![<>=!])=(?!=)", equation, maxsplit=1)
        name = f"def{len(definitions)}"
        body, arguments = _abstracted(ast.parse(right.strip(), mode="eval").body, random)
        parameters = ", ".join(f"arg{index}" for index in range(len(arguments)))
        definitions.append(f"def {name}({parameters}) = {body}")
        kept.append(f"{left}= {name}({', '.join(arguments)})")
    return [*definitions, *kept]


def _abstracted(tree: ast.expr, random: Random) -> tuple[str, list[str]]:
    """The text of an expression with up to two of its parts as parameters, and these parts."""
    found = [node for node in _parts(tree) if not isinstance(node, ast.Constant)]
    chosen = random.sample(found, min(len(found), random.choice((0, 1, 1, 2))))
    # A part in another one is taken out with it.
    chosen = [node for node in chosen if not any(node in ast.walk(each) for each in chosen if each is not node)]
    arguments = list(dict.fromkeys(ast.unparse(node) for node in chosen))
    parameters = {text: f"arg{index}" for index, text in enumerate(arguments)}

    class Replaced(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node in chosen:
                return ast.Name(parameters[ast.unparse(node)], ast.Load())
            return self.generic_visit(node)

    return ast.unparse(Replaced().visit(tree)), arguments


def _parts(tree: ast.expr) -> list[ast.expr]:
    """The values in an expression: not what is known while compiling, nor names of functions."""
    match tree:
        case ast.Call(ast.Name(name), arguments):
            inside = arguments[:1] if name in ("repeat", "unflatten") else arguments
        case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
            inside = [left, right]
        case ast.UnaryOp(_, operand):
            inside = [operand]
        case ast.IfExp(_, body, orelse):
            inside = [body, orelse]
        case _:
            inside = []
    return [tree, *(part for each in inside for part in _parts(each))]
