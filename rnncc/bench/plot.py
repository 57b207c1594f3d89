"""A picture of what was measured: bars of times, and the roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnncc.bench.parties import NAMES, OURS
from rnncc.bench.report import Report, machine_line, number, si
from rnncc.extras import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Ours is blue; the others are of one kind each. They differ in lightness too, for print and for every kind of sight.
_COLOURS = {
    OURS: "#1f5fae", "eager loop": "#d98c3f", "compiled loop": "#f0c27a",
    "nn.LSTM": "#3d3d3d", "nn.GRU": "#7a7a7a", "nn.RNN": "#b5b5b5",
}  # fmt: skip
_MARKS = {"forward": "o", "training": "s"}
# Where one time is so many times another, both are seen on a logarithmic axis alone.
_WIDE = 20.0


def check_matplotlib() -> None:
    """Raises RnnccError (RNN611) where there is no matplotlib."""
    with needs("plot", "rnncc bench --plot"):
        import matplotlib.figure  # noqa: F401


def plot(reports: list[Report], machine: dict[str, Any], path: Path) -> None:
    """Draw the reports into a PNG, one below the other. Raises RnnccError (RNN611) without matplotlib, OSError where
    the file cannot be written."""
    with needs("plot", "rnncc bench --plot"):
        from matplotlib.figure import Figure

    shown = [report for report in reports if report.rows]
    heights = [0.32 * len(report.rows) + 2.0 for report in shown]
    figure = Figure(figsize=(12, sum(heights) + 0.6), dpi=110, layout="constrained", facecolor="white")
    parts = figure.subfigures(len(shown), 1, squeeze=False, height_ratios=heights)
    for report, (part,) in zip(shown, parts, strict=True):
        part.suptitle(report.title, fontsize=11)
        bars, roofline = part.subplots(1, 2, width_ratios=(3, 2))
        _bars(bars, report)
        _roofline(roofline, report)
    figure.supxlabel(machine_line(machine), fontsize=8, color="#555555")
    figure.savefig(path, format="png")


def _bars(axes: Axes, report: Report) -> None:
    """A bar for every row, with the middle half of its calls; what is expected of ours as marks."""
    places: list[float] = []
    last = ""
    for row in report.rows:
        gap = 0.0 if not places else 1.0 if row.run == last else 1.7
        places.append((places[-1] if places else 0.0) + gap)
        last = row.run
    medians = [row.call.median for row in report.rows]
    errors = [
        [row.call.median - row.call.low for row in report.rows],
        [row.call.high - row.call.median for row in report.rows],
    ]
    colours = [_COLOURS[row.party] for row in report.rows]
    axes.barh(places, medians, 0.8, xerr=errors, color=colours, ecolor="#222222", capsize=2)
    for place, row in zip(places, report.rows, strict=True):
        over = "" if row.over is None or row.party == OURS else f"  {number(row.over)}x"
        axes.annotate(
            f"{number(row.call.median)} ms{over}", (row.call.high, place), (6, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    for each in report.expected:
        for place, row in zip(places, report.rows, strict=True):
            if (row.run, row.party) == (each.run, OURS):
                axes.plot([each.roofline], [place], "|", color="#c0392b", markersize=14, markeredgewidth=2)
                if each.total is not None:
                    axes.plot([each.total], [place], "D", color="white", markeredgecolor="#c0392b", markersize=6)
    words = {"forward": "forward", "training": "fw + bw"}
    axes.set_yticks(places, [f"{report.who(row.party)}, {words[row.run]}" for row in report.rows])
    axes.invert_yaxis()
    least = min([*medians, *(each.roofline for each in report.expected)])
    if max(medians) > _WIDE * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 2, max(medians) * 4)
    else:
        axes.set_xlim(0, max(medians) * 1.3)
    marks = [axes.plot([], [], "|", color="#c0392b", markersize=12, markeredgewidth=2, label="roofline")[0]]
    if any(each.total is not None for each in report.expected):
        label = "predicted by the schedule"
        marks += axes.plot([], [], "D", color="white", markeredgecolor="#c0392b", label=label)
    if report.expected:
        axes.legend(handles=marks, fontsize=8, loc="lower right")
    axes.set_xlabel("ms a call: median and middle half; 2x: twice as long as " + report.who(OURS))
    axes.spines[["top", "right"]].set_visible(False)


def _roofline(axes: Axes, report: Report) -> None:
    """The FLOPs a second that each row reached, by its FLOPs per byte, below what the machine does at most."""
    roofs = report.roofs
    points = [
        (row, work) for row in report.rows if (work := report.work.get((row.run, row.party))) is not None and work.flops
    ]
    if roofs is None or not points:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no matrix products to compare with a roofline", ha="center", fontsize=9)
        return
    ridge = roofs.flops / roofs.moved
    least, most = (f([ridge, *(work.intensity for _, work in points)]) for f in (min, max))
    edge = [least / 4, ridge, most * 4]
    axes.plot(edge, [min(roofs.flops, x * roofs.moved) for x in edge], color="#c0392b", linewidth=1.5)
    axes.annotate(f"{si(roofs.flops)}FLOP/s", (edge[2], roofs.flops), (0, 4), textcoords="offset points", ha="right",
                  fontsize=8)  # fmt: skip
    axes.annotate(f"{si(roofs.moved)}B/s", (edge[0], edge[0] * roofs.moved), (10, -8), textcoords="offset points",
                  fontsize=8)  # fmt: skip
    for row, work in points:
        rate = work.flops / (row.call.median / 1e3)
        axes.plot([work.intensity], [rate], _MARKS[row.run], color=_COLOURS[row.party], markeredgecolor="white")
    parties = [name for name in NAMES if any(row.party == name for row, _ in points)]
    runs = list(dict.fromkeys(row.run for row, _ in points))
    handles = [axes.plot([], [], "o", color=_COLOURS[name], label=report.who(name))[0] for name in parties]
    handles += [axes.plot([], [], _MARKS[run], color="none", markeredgecolor="#222222", label=run)[0] for run in runs]
    axes.legend(handles=handles, fontsize=8, loc="best")
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte that must be moved", ylabel="FLOP/s")
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
