"""What the compiler decided about a cell, in words and as data (`rnncc explain FILE`)."""

from __future__ import annotations

from typing import Any

from rnncc.ir.adjoint import Adjoint
from rnncc.ir.cell import Cell, Contraction, Placement, Segment, declared_names, is_per_sequence, value_table
from rnncc.ir.compilation import CompiledCell
from rnncc.ir.dim import show
from rnncc.ir.layout import GpuPlan
from rnncc.ir.recurrence import Recurrence
from rnncc.show.explain_plan import plan_facts, plan_words
from rnncc.show.values import show_constraint, show_start, show_value


def explain(compiled: CompiledCell, plan: GpuPlan | None = None) -> dict[str, Any]:
    """The facts of a cell by the keys of `rnncc explain --json`; segments in order, widths as text in I, H and dims."""
    cell = compiled.cell
    table = value_table(cell)

    streams = [
        {
            "name": stream.name,
            "gates": list(stream.members),
            "width": " + ".join(show(table[member].width) for member in stream.members),
            "per_sequence": is_per_sequence(stream, table),
        }
        for segment in cell.segments
        for stream in segment.streams
    ]
    saved = [
        {"name": name, "width": _width(cell, adjoint, name), "state": name in adjoint.saved_states}
        for adjoint in compiled.adjoints
        for name in (*adjoint.saved, *adjoint.saved_states)
    ]
    facts: dict[str, Any] = {
        "cell": cell.name,
        "states": [
            {
                "name": state.name,
                "width": show_value(state.width, state.grid),
                "initial": show_start(state) if state.initial is None or state.diagonal else state.initial,
            }
            for state in cell.states
            if state.delay_of is None
        ],
        "classes": [
            {
                "states": list(declared_names(cell, segment)),
                "class": recurrence.kind.value,
                "form": recurrence.form,
                "why": recurrence.why,
            }
            for segment, recurrence in zip(cell.segments, compiled.recurrences, strict=True)
        ],
        "phases": max((segment.phases for segment in cell.segments), default=0),
        "streams": streams,
        "weights": [
            {"name": weight.name, "members": list(weight.members)}
            for weight in {weight.name: weight for segment in cell.segments for weight in segment.weights}.values()
        ],
        "saved": saved,
        "outputs": [cell.output],
        "constraints": [show_constraint(constraint) for constraint in cell.constraints],
    }
    return facts | plan_facts(plan)


def explain_words(compiled: CompiledCell, plan: GpuPlan | None = None) -> str:
    """The same in sentences."""
    cell, facts = compiled.cell, explain(compiled)
    states = ", ".join(f"{state['name']} [{state['width']}]" for state in facts["states"])
    lines = [f"{cell.name}: states {states}; output {cell.output}"]
    if cell.constraints:
        needed = ", ".join(f"{show_constraint(constraint)} ({constraint.why})" for constraint in cell.constraints)
        lines.append(f"  sizes must fulfil: {needed}")
    if cell.prologue:
        lines.append(f"  once per call, from parameters (torch): {_targets(cell.prologue)}")
    loops = zip(cell.segments, compiled.recurrences, compiled.adjoints, strict=True)
    for index, (segment, recurrence, adjoint) in enumerate(loops):
        lines += _segment_words(index, segment, recurrence, adjoint, cell)
    if cell.epilogue:
        lines.append(f"  after the loops, over all steps (torch): {_targets(cell.epilogue)}")
    if plan:
        lines += plan_words(plan)
    return "\n".join(lines)


def _targets(nodes: tuple[Any, ...]) -> str:
    return ", ".join(node.target for node in nodes)


def _segment_words(index: int, segment: Segment, recurrence: Recurrence, adjoint: Adjoint, cell: Cell) -> list[str]:
    table = value_table(cell)
    form = f", {recurrence.form}" if recurrence.form else ""
    states = ", ".join(declared_names(cell, segment))
    lines = [f"  segment {index}: {states}: {recurrence.kind.value}{form}: {recurrence.why}"]
    once = tuple(node for node in segment.batched if table[node.target].placement is Placement.Q)
    if once:
        lines.append(f"    once per call, from inputs per sequence (torch): {_targets(once)}")
    if batched := tuple(node for node in segment.batched if node not in once):
        lines.append(f"    before the loop, over all steps (torch): {_targets(batched)}")
    products = [node for node in segment.nodes if isinstance(node, Contraction)]
    phases = "1 phase per step" if segment.phases == 1 else f"{segment.phases} phases per step"
    lines.append(f"    {len(products)} recurrent products in {phases}" if products else "    no recurrent product")
    for stream in segment.streams:
        width = " + ".join(show(table[member].width) for member in stream.members)
        steps = "" if is_per_sequence(stream, table) else "T, "
        lines.append(f"    reads stream {stream.name} [{steps}B, {width}]: {', '.join(stream.members)}")
    lines += [f"    reads weight {weight.name}: {', '.join(weight.members)}" for weight in segment.weights]
    values, sequences = (
        [f"{name} [{_width(cell, adjoint, name)}]" for name in group] for group in (adjoint.saved, adjoint.saved_states)
    )
    if values or sequences:
        lines.append(f"    training keeps {', '.join(values + sequences)}")
    if values:
        lines.append(f"    with recompute=True it keeps {', '.join(sequences) or 'nothing'}")
    lines.append(f"    returns {', '.join(segment.sequences)}")
    return lines


def _width(cell: Cell, adjoint: Adjoint, name: str) -> str:
    values = {value.name: value for value in (*cell.values, *adjoint.values)}
    return show_value(values[name].width, values[name].grid)
