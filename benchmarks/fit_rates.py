"""Fits the rates of the cost model to the steps that were measured (measured_steps.py).

    python benchmarks/fit_rates.py                     # print each rate, what the steps say of it, and their errors
    python benchmarks/fit_rates.py --write             # also write what they say into rates_h200.toml; values stay
    python benchmarks/fit_rates.py --write --values    # write the fitted values, too

A step is a sum of parts, nearly linear in the rates. The *share* of a rate in a step: the step takes so many percent
longer where the rate is one percent larger. The fit changes the logarithms of all rates until the squares of the steps'
relative errors are the least (Gauss and Newton). A rate of which the steps say little stays where it is: its logarithm
is expected within `PRIOR` of the present one.

This takes a minute of a processor, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from measured_steps import Part, Step, assumed, measured_steps

from rnncc.stages.schedule.rates import TABLE, rates_of, read_table

PRIOR = 0.3
ROUNDS = 3
# The shares of a rate are seen by a change of it by this part.
CHANGE = 0.1
# A rate is held to the steps where one of them has a larger share of it.
WEIGHTY = 0.05
# By the first word of a rate, the kinds of the parts that have it. All parts may have the others.
SERVED: dict[str, tuple[str, ...]] = {
    "gather": ("gather",),
    "scatter": ("scatter",),
    "grid": ("grid", "sparse", "blocks"),
    "wide": ("wide",),
    "sparse": ("sparse", "blocks"),
    "blocks": ("blocks",),
    "alternating": ("alternating",),
    "stepwise": ("stepwise",),
    **dict.fromkeys(("copy", "product", "backward", "head"), ("gradients",)),
    **dict.fromkeys(("launch", "fill", "transposed"), ("launch",)),
}

Values = dict[str, float]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hold:
    """What the steps say of a rate while all other rates stay.

    share   its largest share of a step, either way: a bandwidth has a negative one
    groups  the groups of the steps of which its share is at least WEIGHTY
    off     by what part of it the steps would have it larger
    sure    the standard error of `off`
    """

    share: float
    groups: tuple[str, ...]
    off: float
    sure: float

    @property
    def is_weighty(self) -> bool:
        """Whether the steps hold the rate."""
        return self.share >= WEIGHTY


@dataclass(frozen=True)
class Fitted:
    """A rate's value that fits best, with all other rates fitted too, and its standard error as a part of it."""

    value: float
    error: float


def present_values() -> Values:
    """The values of the table, by name."""
    return {name: row["value"] for name, row in read_table().items()}


def apart(steps: Sequence[Step], values: Values) -> Array:
    """The logarithm of predicted by measured time of each step."""
    with assumed(rates_of(values)):
        return np.array([math.log(step.predicted_us / step.us) for step in steps])


def shares(steps: Sequence[Step], values: Values) -> Array:
    """The share of each rate in each step: [step, rate]."""
    found = np.zeros((len(steps), len(values)))
    with assumed(rates_of(values)):
        before = [[part.us() for part in step.parts] for step in steps]
    for column, (name, value) in enumerate(values.items()):
        # The least that a time may grow is a tenth of a nanosecond.
        larger = value + max(CHANGE * value, 0.1 if "_ns" in name else 0)
        with assumed(rates_of({**values, name: larger})):
            for row, (step, times) in enumerate(zip(steps, before, strict=True)):
                parts = zip(step.parts, times, strict=True)
                longer = sum(part.us() - us for part, us in parts if _may_have(part, name))
                found[row, column] = longer / sum(times) / (larger / value - 1)
    return found


def _may_have(part: Part, name: str) -> bool:
    kinds = SERVED.get(name.split("_")[0])
    return kinds is None or any(kind in kinds for kind in part.kinds)


def holds(steps: Sequence[Step], values: Values, own: Array, errors: Array) -> dict[str, Hold]:
    """What the steps say of each rate. `own`: the shares; `errors`: what `apart` gives."""
    found = {}
    for name, share in zip(values, own.T, strict=True):
        weight = float(share @ share)
        groups = (step.group for step, part in zip(steps, share, strict=True) if abs(part) >= WEIGHTY)
        off = math.expm1(-float(share @ errors) / weight) if weight else 0.0
        sure = float(errors.std()) / math.sqrt(weight) if weight else math.inf
        found[name] = Hold(float(np.abs(share).max()), tuple(dict.fromkeys(groups)), off, sure)
    return found


def fit(steps: Sequence[Step], present: Values, own: Array) -> dict[str, Fitted]:
    """The rates that fit best. `own`: the shares of the present ones."""
    values, prior, before = present, np.eye(len(present)) / PRIOR, apart(steps, present)
    for _ in range(ROUNDS):
        errors = apart(steps, values)
        grown = np.array([values[name] / present[name] for name in present])
        # A part of a step grows with its rate.
        parts = own * grown * np.exp(before - errors)[:, None]
        equations = np.vstack([parts / errors.std(), prior])
        wanted = np.concatenate([-errors / errors.std(), -np.log(grown) / PRIOR])
        change = np.linalg.lstsq(equations, wanted, rcond=None)[0]
        values = {name: value * math.exp(by) for (name, value), by in zip(values.items(), change, strict=True)}
    error = np.sqrt(np.diag(np.linalg.inv(equations.T @ equations)))
    return {name: Fitted(value, float(own)) for (name, value), own in zip(values.items(), error, strict=True)}


def errors_of(steps: Sequence[Step], errors: Array) -> dict[str, tuple[int, float, float]]:
    """The steps of each group: how many there are, and the mean and the largest relative error. A step
    that takes half as long as was predicted, or twice as long, has an error of 1."""
    found, relative = {}, np.expm1(np.abs(errors))
    for group in dict.fromkeys(step.group for step in steps):
        own = relative[[step.group == group for step in steps]]
        found[group] = (len(own), float(own.mean()), float(own.max()))
    return found


def report(steps: Sequence[Step], held: dict[str, Hold], fitted: dict[str, Fitted]) -> Iterator[str]:
    """A table of the rates, and one of the errors."""
    present = present_values()
    heads = "".join(f"{head:>7}" for head in ("by", "error", "off", "sure", "share"))
    yield f"{'rate':34} {'present':>8} {'fitted':>8}{heads}  steps of"
    for name, value in present.items():
        hold, best = held[name], fitted[name]
        if not hold.is_weighty:
            yield f"{name:34} {value:8g}   no measured step holds it"
            continue
        parts = (f"{best.value / value - 1:+.0%}", f"{best.error:.0%}", f"{hold.off:+.0%}", f"{hold.sure:.0%}")
        columns = "".join(f"{part:>7}" for part in (*parts, f"{hold.share:.0%}"))
        yield f"{name:34} {value:8g} {best.value:8.4g}{columns}  {', '.join(hold.groups)}"
    yield ""
    yield f"{'steps of':18} {'number':>6} {'mean':>6} {'worst':>6}   by the fitted rates: mean, worst"
    now = errors_of(steps, apart(steps, present))
    then = errors_of(steps, apart(steps, {name: each.value for name, each in fitted.items()}))
    for group, (number, mean, worst) in now.items():
        yield f"{group:18} {number:6} {mean:6.1%} {worst:6.1%}   {then[group][1]:6.1%} {then[group][2]:6.1%}"


def table_text(rows: dict[str, dict[str, Any]]) -> str:
    """The table with these rows, below the comment that it begins with."""
    text = TABLE.read_text(encoding="utf-8")
    (head, *_) = text.partition("\n[")
    lines = [head.rstrip()]
    for name, row in rows.items():
        lines.append(f"\n[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in row.items()]
    return "\n".join(lines) + "\n"


def fitted_row(row: dict[str, Any], hold: Hold, best: Fitted, *, values: bool) -> dict[str, Any]:
    """A row of the table with what the steps say of it."""
    kept = {key: value for key, value in row.items() if key not in ("share", "off", "error")}
    if not hold.is_weighty:
        return kept
    if values:
        kept["value"] = round(best.value, 1 if best.value > 1 else 2)
    kept["source"] = f"measured steps: {', '.join(hold.groups)}"
    return {**kept, "share": round(hold.share, 2), "off": round(hold.off, 2) + 0.0, "error": round(best.error, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits the rates of the cost model to the steps that were measured.")
    parser.add_argument("--write", action="store_true", help="write what the steps say into the table")
    parser.add_argument("--values", action="store_true", help="with --write: write the fitted values, too")
    given = parser.parse_args()
    steps, present, rows = measured_steps(), present_values(), read_table()
    own = shares(steps, present)
    held, best = holds(steps, present, own, apart(steps, present)), fit(steps, present, own)
    print(*report(steps, held, best), sep="\n")
    if given.write:
        written = {name: fitted_row(row, held[name], best[name], values=given.values) for name, row in rows.items()}
        TABLE.write_text(table_text(written), encoding="utf-8")


if __name__ == "__main__":
    main()
