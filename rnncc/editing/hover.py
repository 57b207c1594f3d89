"""What a name is: its class, its width, where it is computed, its gradient; as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnncc.editing.analysis import Analysis
from rnncc.editing.names import Mention, Symbol
from rnncc.ir import dim as dims
from rnncc.ir.cell import Cell, Placement
from rnncc.ir.typed import Typed
from rnncc.language.functions import MATRIX_FUNCTIONS, OF_VECTORS_TOO, OF_WIDTHS, PER_HEAD, ROW_FUNCTIONS
from rnncc.language.operators import OPERATORS
from rnncc.language.source import fenced, line_and_column, line_span
from rnncc.show.typed import shown_shape
from rnncc.show.values import show_node, show_number, show_start

_PLACES = {
    Placement.P: "computed once per call, from parameters (P)",
    Placement.Q: "computed once per call, for each sequence (Q)",
    Placement.X: "computed for all steps at once, before the loop (X)",
    Placement.S: "computed step by step, in the loop (S)",
    Placement.Y: "computed for all steps at once, after the loop (Y)",
}
_KINDS = {
    "value": "gate",
    "time": "time: the step that is computed",
    "size": "size of the layer",
}
# Loops may have hundreds of turns.
_MOST_TURNS = 8


def describe(analysis: Analysis, mention: Mention) -> str:
    """What is known of a name. Widths, places and gradients are known where the text has no mistake."""
    symbol = mention.symbol
    parts = [_definition(analysis, symbol)] if symbol.definition is not None else []
    if symbol.kind == "function of the language":
        return "\n\n".join([*parts, _function(symbol.name)])
    made = analysis.made
    lines = [f"**{_KINDS.get(symbol.kind, symbol.kind)}** `{mention.whole}`"]
    if made is not None and symbol.kind not in ("argument", "loop variable", "cell", "function"):
        typed, cell = made.cells[symbol.cell].typed, made.cells[symbol.cell].cell
        lines = [*_facts(mention, typed, cell)] or lines
        gradient = _gradient(analysis, mention, _values(mention, typed), cell)
        parts += [fenced("text", "\n".join(gradient))] if gradient else []
    return "\n\n".join([*parts[:1], "  \n".join(lines), *parts[1:]]) if parts else "  \n".join(lines)


def _definition(analysis: Analysis, symbol: Symbol) -> str:
    assert symbol.definition is not None
    span = line_span(analysis.source, line_and_column(analysis.source, symbol.definition.start)[0])
    return fenced("rnn", analysis.source.text[span.start : span.end].strip())


def _function(name: str) -> str:
    row = OPERATORS.get(name)
    if row is not None and row.user:
        arguments = ["v"] if row.arity == 1 else ["a", "b", "c"][: row.arity]
        same = row.meaning or f"in torch: `{row.torch.format(*arguments)}`"
        kink = "" if row.smooth else "; its derivative is 0 almost everywhere"
        return f"**function** `{name}({', '.join(arguments)})`, element by element{kink}  \n{same}"
    kind = "of matrices" if name in MATRIX_FUNCTIONS and name not in ROW_FUNCTIONS else "across units"
    kind = "across units, or of a matrix" if name in OF_VECTORS_TOO else kind
    kind = "of a width: a vector of numbers alone" if name in OF_WIDTHS else kind
    kind = "of values that no state reaches: a copy for each head" if name in PER_HEAD else kind
    return f"**function** `{name}` {kind}"


def _values(mention: Mention, typed: Typed) -> list[str]:
    """The values that a name stands for: one for each turn of a loop."""
    name = mention.whole
    targets = [equation.target for equation in typed.equations]
    turns = [each for each in targets if each.rpartition("_")[0] == name and each.rpartition("_")[2].isdigit()]
    return [name] if name in typed.shapes else turns[:_MOST_TURNS]


def _facts(mention: Mention, typed: Typed, cell: Cell) -> Iterator[str]:
    symbol, name = mention.symbol, mention.whole
    if symbol.kind == "group" and name == symbol.name:
        members = [member for member in typed.members if member.written == name]
        yield f"**group** `{name}`: a parameter for each equation that names it"
        yield ", ".join(f"`{each.name}`: {shown_shape(typed.shapes[each.name])}" for each in members)
        return
    for constant in typed.constants:
        if constant.name == name:
            value = constant.value if isinstance(constant.value, str) else show_number(constant.value)
            yield f"**constant** `{name}` = {value}, a keyword of the constructor"
            return
    for size in typed.sizes:
        if size.name == name:
            solved = "" if size.solved is None else f" = {dims.show(size.solved)}"
            yield f"**dim** `{name}`{solved if size.default is None else f' = {dims.show(size.default)}'}"
            return
    values = _values(mention, typed)
    if not values:
        return
    member = next((each for each in typed.members if each.name == name), None)
    kind = f"parameter, the {member.written} of {member.target}" if member else _KINDS.get(symbol.kind, symbol.kind)
    shapes = ", ".join(f"`{value}`: {shown_shape(typed.shapes[value])}" for value in values)
    yield f"**{kind}** {shapes}"
    for state in typed.states:
        if state.name == name:
            yield "starts as a parameter" if state.initial is None else f"starts at {show_start(state)}"
    placed = next((each.placement for each in cell.values if each.name == values[0]), None)
    if placed is not None and symbol.kind in ("value", "state"):
        yield _PLACES[placed]
    own = [f"`{each.name}`: {shown_shape(typed.shapes[each.name])}" for each in typed.members if each.target in values]
    if own:
        yield f"parameters {', '.join(own[: 4 * _MOST_TURNS])}"


def _gradient(analysis: Analysis, mention: Mention, values: Sequence[str], cell: Cell) -> list[str]:
    """The equations of the backward pass that make the gradients of the values of a loop."""
    in_loops = {node.target for segment in cell.segments for node in segment.nodes}
    if mention.symbol.kind not in ("value", "state") or in_loops.isdisjoint(values):
        return []
    nodes = [node for adjoint in analysis.adjoints[mention.symbol.cell] for node in adjoint.nodes]
    wanted = {f"d_{name}{ending}" for name in values for ending in ("", "__in")}
    return [show_node(node) for node in nodes if node.target in wanted]
