"""Which batched nodes make a whole stream by one product.

The members of a packed stream are sums of the same groups of parameters: `i__x = W_i@x + b_i`, `f__x = W_f@x + b_f`, ….
Instead of one product per gate, the generated code makes the stream [T, B, Σwidth] by one product with the packed
parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rnncc.ir.cell import Cell, Contraction, Node, Placement, Pointwise, Role, Stream, Value, operands, value_table
from rnncc.ir.dim import add as add_dims
from rnncc.ir.expr import Apply, Expr, Ref
from rnncc.ir.structure import DENSE
from rnncc.stages.render.notation import python_dim
from rnncc.stages.render.python.code import MemberPlace, over_steps, variable


@dataclass(frozen=True, slots=True)
class StackedProduct:
    """The product of stacked matrices, one per member, with one operand."""

    operand: str
    matrices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackedStream:
    """A stream as a sum of products and vectors; each of these joins one vector per member. The stream replaces the
    nodes `absorbed`."""

    stream: Stream
    products: tuple[StackedProduct, ...]
    vectors: tuple[tuple[str, ...], ...]
    absorbed: tuple[str, ...]


def pack(cell: Cell, stream: Stream, nodes: Sequence[Node]) -> PackedStream | None:
    """The packed form of a stream, or None where its members are not sums of products and vectors alone."""
    table = value_table(cell)
    made = {node.target: node for node in nodes}
    rows = [_terms(member, made, table) for member in stream.members]
    first = rows[0]
    if first is None or not any(isinstance(term, Contraction) for term in first):
        return None
    products: list[list[str]] = []
    vectors: list[list[str]] = []
    product_operands: list[str] = []
    absorbed = list(stream.members)
    for row in rows:
        if row is None or len(row) != len(first):
            return None
    for column in zip(*(row for row in rows if row is not None), strict=True):
        contractions = [term for term in column if isinstance(term, Contraction)]
        if len(contractions) == len(column):
            if len({term.operand for term in contractions}) != 1:
                return None
            products.append([term.matrix for term in contractions])
            product_operands.append(contractions[0].operand)
            absorbed += [term.target for term in contractions]
        elif not contractions:
            vectors.append([term for term in column if isinstance(term, str)])
        else:
            return None
    return PackedStream(
        stream,
        tuple(
            StackedProduct(operand, tuple(matrices))
            for operand, matrices in zip(product_operands, products, strict=True)
        ),
        tuple(tuple(names) for names in vectors),
        tuple(dict.fromkeys(absorbed)),
    )


def _terms(member: str, made: Mapping[str, Node], table: Mapping[str, Value]) -> list[Contraction | str] | None:
    """A member's terms: dense contractions, and the names of vectors of full width that are the same at all steps."""
    node = made.get(member)
    found: list[Contraction | str] = []
    match node:
        case Contraction():
            leaves: list[str] = [member]
        case Pointwise(_, expr):
            flat = _sum(expr)
            if flat is None:
                return None
            leaves = flat
        case _:
            return None
    for leaf in leaves:
        term = made.get(leaf)
        if isinstance(term, Contraction) and not term.transposed:
            # A product that is narrower than the member is spread over its units.
            if table[term.matrix].structure != DENSE or table[leaf].width != table[member].width:
                return None
            found.append(term)
            continue
        value = table[leaf]
        is_vector = value.role is Role.PARAMETER or value.placement.value == "P"
        if not is_vector or value.role is Role.CONSTANT or value.width != table[member].width:
            return None
        found.append(leaf)
    return found


def _sum(expr: Expr) -> list[str] | None:
    match expr:
        case Ref(name):
            return [name]
        case Apply("add", (left, right)):
            a, b = _sum(left), _sum(right)
            return None if a is None or b is None else a + b
        case _:
            return None


def packed_text(packed: PackedStream, places: Mapping[str, MemberPlace], table: Mapping[str, Value]) -> str:
    """The stream as an expression: `tools.linear(x, parameters["weight_ih"], parameters["bias_ih"])`."""
    vectors = [stacked(names, places) for names in packed.vectors]
    bias = " + ".join(vectors)
    once = {product.operand for product in packed.products if table[product.operand].placement is Placement.Q}
    at_steps = [product for product in packed.products if product.operand not in once]
    text = ""
    # What is computed at every step comes first, so that the bias and further products cost no pass of their own.
    for product in (*at_steps, *(product for product in packed.products if product.operand in once)):
        matrix = stacked(product.matrices, places)
        extra = f", {bias}" if not text and bias else ""
        if text and product.operand in once and at_steps:
            text = f"{text} + {over_steps(f'tools.linear({variable(product.operand)}, {matrix})')}"
            continue
        start = f"tools.linear_onto({text}, " if text else "tools.linear("
        text = f"{start}{variable(product.operand)}, {matrix}{extra})"
    return text


def stacked(names: Sequence[str], places: Mapping[str, MemberPlace]) -> str:
    """Members (or other values) one below the other. Where they are neighbours in one packed parameter, it is a slice
    of that."""
    run = neighbours(names, places)
    if run is None:
        return variable(names[0]) if len(names) == 1 else f"torch.cat(({', '.join(variable(n) for n in names)}))"
    parameter = run[0].parameter
    whole = f'parameters["{parameter.attribute}"]'
    if len(run) == len(parameter.members):
        return whole
    start = python_dim(run[0].start) if run[0].index else ""
    return f"{whole}[{start}:{python_dim(add_dims(run[-1].start, run[-1].member.width))}]"


def loose_names(names: Sequence[str], places: Mapping[str, MemberPlace]) -> set[str]:
    """The names that `stacked` reads as variables."""
    return set(names) if neighbours(names, places) is None else set()


def neighbours(names: Sequence[str], places: Mapping[str, MemberPlace]) -> list[MemberPlace] | None:
    """The places of names that are members of one parameter and lie there one after the other, else None."""
    if any(name not in places for name in names):
        return None
    run = [places[name] for name in names]
    first = run[0]
    if any(place.parameter is not first.parameter for place in run):
        return None
    in_order = [place.index for place in run] == list(range(first.index, first.index + len(run)))
    return run if in_order else None


def reads(nodes: Sequence[Node]) -> set[str]:
    """Every name that the nodes read."""
    return {name for node in nodes for name in operands(node)}


def reached(nodes: Sequence[Node], names: Iterable[str]) -> set[str]:
    """The names, and all values from which the nodes make them."""
    made = {node.target: node for node in nodes}
    waiting, found = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += operands(made[name]) if name in made else ()
    return found
