"""Runs generated cells: through check and the torch code without kernels, or compiled, against the interpreter."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rnncc.ir.cell import Cell
from rnncc.ir.verify import verify
from rnncc.language.source import Source
from rnncc.verify import reference
from tests.generated import cells, grid_cells, grids
from tests.generated.records import Generated
from tests.language.loop import BATCH, HIDDEN, INPUT, compare
from tests.packages import float64_package, reference_package
from tests.runtime.test_whole import LongWay, flat

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is `ok`, `differs` (`detail` has the differences) or `error` (`detail` has the end of the traceback)."""

    seed: int
    kind: str
    detail: str = ""


def run(seeds: Sequence[int], compiled: bool, matrices: bool = False) -> list[Outcome]:
    """The outcomes of the seeds' cells, or of those with matrices. All are in one package; where that cannot be made,
    each gets a package of its own."""
    drawn = [(grid_cells if matrices else cells).generate(seed) for seed in seeds]
    try:
        package, found = make(drawn, compiled)
    except Exception:
        if len(drawn) == 1:
            return [Outcome(seeds[0], "error", traceback.format_exc(limit=-3))]
        return [outcome for seed in seeds for outcome in run([seed], compiled, matrices)]
    return [judge(each, package, found.get(each.name)) for each in drawn]


def make(drawn: Sequence[Generated], compiled: bool) -> tuple[Any, dict[str, Cell]]:
    """A package of all the cells. Where it is not compiled, also the cells by name."""
    text = "\n".join(each.text for each in drawn)
    stem = f"generated_{drawn[0].name.lower()}"
    if compiled:
        return float64_package(text, stem), {}
    package, checked = reference_package(Source(f"{stem}.rnn", text), stem)
    for cell in checked:
        verify(cell)
    return package, {cell.name: cell for cell in checked}


def judge(each: Generated, package: Any, cell: Cell | None) -> Outcome:
    """The outcome of one cell. Without kernels there is no zoneout: a layer compiles a program of its own for it."""
    step = each.case.step
    if cell is not None and isinstance(step, grids.GridStep) and step.kept:
        arguments = {name: value for name, value in each.case.arguments.items() if name != "zoneout"}
        each = replace(each, case=replace(each.case, arguments=arguments, step=grids.GridStep(step.program, {})))
    try:
        found: dict[str, float] = {}
        for number, setting in enumerate(each.settings):
            differences = compare(
                getattr(package, each.name), each.case, setting, each.seed + number, kernels=cell is None
            )
            found |= {f"{name} ({number})": value for name, value in differences.items()}
        if cell is not None:
            found |= evaluated(each, getattr(package, each.name), cell)
        else:
            found |= stepped(each, getattr(package, f"{each.name}Cell"))
    except Exception:
        return Outcome(each.seed, "error", traceback.format_exc(limit=-3))
    # `not <=`: a NaN is no agreement.
    wrong = {name: value for name, value in found.items() if not value <= TOLERANCE}
    return Outcome(each.seed, "differs", str(wrong)) if wrong else Outcome(each.seed, "ok")


def stepped(each: Generated, step_class: Callable[..., Any]) -> dict[str, float]:
    """How far a single step by one op is from one that goes the long way, which layers are compared with."""
    found: dict[str, float] = {}
    generator = torch.Generator().manual_seed(each.seed)
    arguments = {name: value for name, value in each.case.arguments.items() if name != "recompute"}
    for heads in sorted({setting.heads for setting in each.settings}):
        width = HIDDEN if each.case.square else INPUT
        step = step_class(width, HIDDEN, num_heads=heads, dtype=torch.float64, **arguments).eval()

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).tanh()

        sizes = step._sizes[0]
        further = {item.name: draw(BATCH, item.width(sizes)).abs() for item in step.spec.inputs[1:]}
        x, hx = draw(BATCH, width), tuple(draw(BATCH, *state.shape(sizes)) for state in step.spec.carried(True))
        with torch.no_grad():
            ours = [value.detach() for value in flat(step(x, hx if len(hx) > 1 else hx[0], **further))]
            with LongWay():
                theirs = [value.detach() for value in flat(step(x, hx if len(hx) > 1 else hx[0], **further))]
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            scale = max(1.0, float(other.abs().nan_to_num().max()))
            difference = (one - other).abs().where(one.isfinite() | other.isfinite(), 0.0)
            found[f"step {number} ({heads} heads)"] = float(difference.max()) / scale
    return found


def evaluated(each: Generated, layer_class: Callable[..., Any], cell: Cell) -> dict[str, float]:
    """The layer's outputs against those of the eager evaluation of the cell, with heads and both masks."""
    torch.manual_seed(each.seed)
    sizes, heads = each.sizes, each.case.heads
    layer = layer_class(sizes["I"], sizes["H"], num_heads=heads, dtype=torch.float64, **each.case.arguments)
    inputs = {"x": torch.rand(4, 2, sizes["I"], dtype=torch.float64)}
    for name, width in each.case.extra.items():
        steps = () if name in each.case.per_sequence else (4,)
        inputs[name] = torch.rand(*steps, 2, width, dtype=torch.float64)
    mask: dict[str, Any] = {"lengths": torch.tensor([4, 2]), "reset": torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]])}
    with torch.no_grad():
        extra = {name: value for name, value in inputs.items() if name != "x"}
        output, last = layer(inputs["x"], **extra, **mask)
        given = reference.Arguments(layer.gate_parameters(), inputs, {}, each.constants, sizes, heads, **mask)
        values, finals = reference.run(cell, given)
    expected = values[cell.output].clone()
    expected[2:, 1] = 0
    found = {"evaluated output": (output - expected).abs().max().item()}
    visible = [state.name for state in cell.states if state.delay_of is None]
    for name, state in zip(visible, last if isinstance(last, tuple) else (last,), strict=True):
        # Blocks of a matrix follow each other.
        last_one = state[0].reshape(finals[name].shape)
        found[f"evaluated {name}"] = (last_one - finals[name]).abs().max().item()
    return found
