"""Which drawn expressions are one number per head, so that their targets are it too unless they are declared."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.generated.leaves import NARROW, Leaf
from tests.generated.program import HEADS

# Names of numbers.
NUMBERS = {"pi", "inf", "I", "H", "P", HEADS}
# These make vectors of numbers alone.
OF_WIDTHS = ("ones", "arange")


def is_narrow(text: str, leaves: Iterable[Leaf]) -> bool:
    """Whether an expression is one number per head, or one."""
    known = {ast.unparse(ast.parse(leaf.value.text, mode="eval")) for leaf in leaves if leaf.width in (NARROW, HEADS)}
    return _is_narrow(ast.parse(text.strip(), mode="eval").body, known)


def reads_values(text: str, scalars: Iterable[str] = ("ps", "gs", "dt")) -> bool:
    """Whether an expression reads more than scalars."""
    tree = ast.parse(text.strip(), mode="eval")
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
    # The argument of a derivative is no value.
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return bool(names - arguments - {*scalars, *NUMBERS}) or makes_vectors(tree)


def makes_vectors(tree: ast.AST) -> bool:
    """Whether an expression makes a vector of numbers alone."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(each, ast.Name) and each.id in OF_WIDTHS for each in called)


def names_an_input(text: str, known: Iterable[str]) -> bool:
    """Whether an expression has one of the names in every turn of a loop: a choice may leave out the one it has."""
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(names.intersection(known)) and not any(isinstance(node, ast.IfExp) for node in nodes)


def _is_narrow(node: ast.expr, known: set[str]) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name() | ast.Subscript():
            return ast.unparse(node) in {*known, *NUMBERS}
        case ast.BinOp(_, ast.MatMult(), _):
            return False
        case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
            return _is_narrow(left, known) and _is_narrow(right, known)
        case ast.UnaryOp(_, operand):
            return _is_narrow(operand, known)
        case ast.IfExp(_, body, _):
            return _is_narrow(body, known)
        case ast.Call(ast.Name(name), arguments):
            if name in ("concat", "repeat", "split", "heads", *OF_WIDTHS):
                return False
            reduces = name in ("sum", "mean", "max", "min", "norm", "logsumexp") and len(arguments) == 1
            return reduces or all(_is_narrow(argument, known) for argument in arguments)
    return False
