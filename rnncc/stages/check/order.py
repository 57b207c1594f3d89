"""The order of the equations: each after those whose values it needs in the same step; a cycle is an error."""

from __future__ import annotations

from collections.abc import Mapping

from rnncc.analysis import graph
from rnncc.ir.term import Equation, names
from rnncc.language.diagnostics import Label
from rnncc.language.report import Report, Reported


def order(
    equations: tuple[Equation, ...], delays: Mapping[str, int], report: Report
) -> tuple[tuple[Equation, ...], dict[str, Reported]]:
    """The equations, sorted by dependence and otherwise in the order of the text. Older values come after the value
    itself; `delays`: the largest k of `u[t-k]`. Also the targets that may be read before they are known, because there
    is a cycle; the order of the text stays then."""
    first: dict[str, Equation] = {}
    for equation in equations:
        first.setdefault(equation.target, equation)
    now = {f"{name}__{step}": name for name, steps in delays.items() for step in range(1, steps + 1)}
    reads = {
        target: tuple(dict.fromkeys(now.get(name, name) for name in names(equation.term)))
        for target, equation in first.items()
    }
    result = graph.sort(reads)
    if result is not None:
        return tuple(first[target] for target in result), {}
    early: dict[str, Reported] = {}
    for component in graph.components(reads):
        # A target that is written wrongly (`h[t+1] = …`, `x = …`) is the mistake, not the cycle that it makes.
        wrong = next(filter(None, (report.found_at(first[target].target_span) for target in component)), None)
        if wrong is None and (len(component) > 1 or component[0] in reads[component[0]]):
            wrong = _report_cycle(graph.cycle(reads, component), first, report)
        if wrong is not None:
            early = dict.fromkeys((*reads, *now), wrong)
    return tuple(first.values()), early


def _report_cycle(path: list[str], equations: dict[str, Equation], report: Report) -> Reported:
    start = equations[path[0]]
    shown = [equations[name].written for name in path]
    if len(shown) > 12:
        shown = [*shown[:6], "…", *shown[-5:]]
    notes = tuple(
        Label(equations[name].target_span, f"'{equations[name].written}' needs '{equations[after].written}'")
        for name, after in zip(path[1:-1][:8], path[2:], strict=False)
    )
    return report.error(
        "RNN209",
        f"these values need each other in the same step: {' -> '.join(shown)}",
        start.target_span,
        f"'{start.written}' needs '{equations[path[1]].written}'",
        "one of them must come from the step before: a state at [t-1]",
        notes,
    )
