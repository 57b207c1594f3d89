"""Single steps of every shipped cell on a CPU, ours beside eager torch: the cell's definition in tests/oracles.

    python benchmarks/steps.py [--cells gla,s6] [--threads N] [--out FILE]

A row is a cell without its further definitions, nor those that call autograd. Its sizes are those of the oracle, which
are small and differ from each other, times a factor that makes H about 64; the batch is 4; float32, in inference_mode.
`matrix`: a state is one. The two are called in turn; times are medians, and the ratio is the median of the ratios round
by round. The definition multiplies x by a matrix for each gate, as most definitions do, and so makes more products than
a step needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from measure import environment, interleaved, median_ms, output, ratio, write

import rnncc
from rnncc.language.read import read_source
from rnncc.machine.paths import locate
from tests.compiling import front
from tests.oracles import ORACLES, Oracle, draw

OUT = Path(__file__).parent / "results" / "steps.json"
BATCH, HIDDEN, SECONDS = 4, 64, 0.25
# Their definitions are gradients of a loss.
BY_AUTOGRAD = ("titans", "ttt_linear")


def oracles() -> dict[str, Oracle]:
    """A definition of each shipped cell as it is shipped."""
    found: dict[str, Oracle] = {}
    for oracle in ORACLES:
        if oracle.text is None and not oracle.shaping and oracle.cell not in BY_AUTOGRAD:
            found.setdefault(oracle.cell, oracle)
    return found


def calls(oracle: Oracle) -> dict[str, Callable[[], Any]]:
    """A step of ours, and one of the definition's, on tensors of the same sizes."""
    factor = max(1, HIDDEN // oracle.sizes["H"])
    # A size of 1 is a number of parts.
    larger = replace(oracle, sizes={name: size if size == 1 else factor * size for name, size in oracle.sizes.items()})
    case = draw(larger, seed=1, steps=1, batch=BATCH, states=True)
    ((cell, _),) = front(read_source(locate(oracle.cell)))
    dims = {name: larger.sizes[name] for name in oracle.dims}
    torch.manual_seed(0)
    step = getattr(rnncc.load(oracle.cell), f"{cell.name}Cell")(larger.sizes["I"], larger.sizes["H"], **dims).eval()
    plain = {name: value.detach().float() for name, value in case.parameters.items()}
    inputs = {name: value.detach().float() for name, value in case.inputs.items()}
    states = {name: value.detach().float() for name, value in (case.states or {}).items()}
    x, *others = ((name, value) for name, value in inputs.items())
    further = {name: value if name in oracle.per_sequence else value[0] for name, value in others}
    sizes = step._sizes[0]
    delays = [torch.zeros(BATCH, state.width(sizes)) for state in step.spec.delays()]
    hx = (*states.values(), *delays)
    eager = replace(case, parameters=plain, inputs=inputs, states=states)

    @torch.inference_mode()
    def ours() -> Any:
        return step(x[1][0], hx if len(hx) > 1 else hx[0], **further)

    @torch.inference_mode()
    def theirs() -> Any:
        return larger.run(eager)

    return {"rnncc": ours, "eager": theirs}


def measure(oracle: Oracle) -> dict[str, Any]:
    """A row."""
    times = interleaved(calls(oracle), seconds=SECONDS)
    one, other = (1000 * median_ms(times[name]) for name in ("rnncc", "eager"))
    return {
        "cell": oracle.cell,
        "matrix": any("," in width for width in oracle.states.values()),
        "us": one,
        "eager_us": other,
        "ratio": ratio(times["rnncc"], times["eager"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="", help="names with commas between them; every shipped cell")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=output, default=OUT)
    options = parser.parse_args()
    known = oracles()
    names = options.cells.split(",") if options.cells else sorted(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no cell {unknown[0]!r} with a definition")
    torch.set_num_threads(options.threads)
    rows = []
    for name in names:
        rows.append(measure(known[name]))
        print("{cell:24} {us:8.1f} us   eager {eager_us:8.1f} us   ratio {ratio:5.2f}".format(**rows[-1]), flush=True)
    slower = [row["cell"] for row in rows if row["ratio"] > 1.1]
    print(f"{len(rows)} cells; above 1.1 times eager: {', '.join(slower) or 'none'}")
    write(options.out, rows, environment() | {"threads": options.threads})


if __name__ == "__main__":
    main()
