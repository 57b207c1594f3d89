"""Follow one cell through every stage of the compiler and print each stage's value.

    python examples/walkthrough.py

What it prints is docs/pipeline.md; a test compares the two.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

import rnncc
from rnncc import verify
from rnncc.ir.problem import Problem
from rnncc.ir.request import Request
from rnncc.ir.target import GPUS
from rnncc.language.source import Source
from rnncc.pipeline import STAGES, compile_cells
from rnncc.show.explain import explain_words
from rnncc.show.stage import stage_text

CELL = Path(__file__).with_name("mycell.rnn")

HEAD = """\
# One cell through every stage

The cell is [examples/mycell.rnn](../examples/mycell.rnn), which [examples/char_lm.py](../examples/char_lm.py) trains:

{text}

The order of the stages stands in [rnncc/pipeline.py](../rnncc/pipeline.py) and nowhere else. Every stage is a function
from one immutable value to the next, and a `CompiledCell` ([rnncc/ir/compilation.py](../rnncc/ir/compilation.py)) has
all of them; `rnncc show examples/mycell.rnn --stage NAME` prints what is shown here. This page is printed by
[examples/walkthrough.py](../examples/walkthrough.py).
"""

PARSE = """\
## parse

Text becomes syntax: a `CellDecl` knows the place of every node. Nothing has a meaning yet: `W` is a name, `f, o = …`
one equation with two targets. Spaces and brackets that mean nothing are gone:

{value}
"""

CHECK = """\
## check

Is the text meaningful? Syntax becomes a `Typed` cell: names are resolved, and widths are solved for (everything is H
wide here, x is I wide). `f, o = …` is two equations, each with its own parameters from the groups W, R and b. Mistakes
in names, sizes and types have been reported. Nothing is placed yet, and an equation still says what the text says:

{value}
"""

PARTITION = """\
## partition

How is the cell placed? The equations are cut into nodes: products are nodes of their own, everything else is
elementwise. Each node gets its place, and a `Cell` is what comes out:

{value}

- `W_f @ x + b_f` depends on inputs only (X), so it leaves the loop: it is computed for all steps at once, before it.
- The three results lie side by side as one tensor [T, B, 3*H], the *stream* W, because one product makes them all.
- `R_f @ h__1` reads the state of the step before (`h__1` is `h[t-1]`), so it stays in the loop (S). None of the three
  waits for another: one *phase* per step.
- The parameters are packed the way torch.nn packs them, and `init b_f = 1` has become the initial value of its rows.
"""

REGULARISE = """\
## regularise

A layer may have zoneout and recurrent dropout. Then the cell is rewritten: the masks that the layer draws become
inputs. Without them the cell stays as it is. With both of them on h, these lines are new:

{value}
"""

CLASSIFY = """\
## classify

Each loop's recurrence class, and what keeps it from a better one. DENSE means a recurrent matrix: the loop has to be
run step by step.

{value}
"""

MASK = """\
## mask

Sequences of a batch may end early (`lengths`) and begin anew (`reset`). Loops that can do so belong to a second cell,
the masked one, which reads two more inputs. It goes through the next stages beside the plain one. Its new lines:

{value}
"""

DIFFERENTIATE = """\
## differentiate

The equations are reversed one by one, last first: `d_v` is the gradient of v. Derivatives stand in output form, such as
`f * (1 - f)` for the sigmoid, so they need what the forward pass computed anyway. sympy derives them; those of usual
equations come with rnncc (`known.json`), so that a load need not wait for sympy. The stage also chooses what training
saves: f, o and n, because computing them again would take the products once more; m and h are outputs already.

{value}

`d_h__carry` arrives from the step after, `d_h__1__recurrent__clipped` leaves to the step before: what the products hand
back to h[t-1], within the bound of the layer's `recurrent_gradient_clip` (infinity, if there is none). The gradients of
R are sums over all steps: one product after the loop. The gradient of the stream goes on, through torch's autograd, to
W, b and x.
"""

LOWER = """\
## lower

Equations become a plan for a kernel: which buffer each value lives in (a *slot*), and which of them run together (a
*stage*, with a barrier between threads where one needs what others made). In the forward loop one stage is enough: the
three products share one pass over `h__1`, and what follows is elementwise. (Each loop's masked twin goes the same
way and is left out here.)

MyCell's step is one product of x, then this loop, so one op runs a layer, or a single step. Where a cell needs more,
`single` ([rnncc/stages/single.py](../rnncc/stages/single.py)) rewrites it for one step alone: one loop that computes
all of it. `lower` makes a program of that too, and a CPU runs single steps by it.

`fused` is the same step once more, in the form from which the fastest GPU kernels are made: elementwise stages
(`start`, `finish`) around *phases*, before which the CTAs send each other operands, and the carries that stay in
registers. Who follows a product to its line of CUDA finds it here by the names that the line has.

{value}
"""

SCHEDULE = """\
## schedule

The fastest GPU kernels are made for one size. For each loop this stage chooses a family of kernels, and how many CTAs,
warps and registers share the work: a constraint solver finds the layouts, and a cost model compares them
([scheduling.md](scheduling.md)). CPUs and the general GPU kernels take every size at run time, and need no plan. For a
hidden size of 512 in bfloat16 on an H200:

{value}
"""

RENDER = """\
## render

The plan becomes C++. Headers under `templates/include` hold what is the same for every cell: the driver of the loop,
matrix products, vectors, exact elementwise functions. What is generated is tables and, for every stage, a function over
vectors of units. Stages that differ in names alone, such as the turns of a loop in the text, share one. Each statement
names the line it comes from:

{value}

Each function is compiled in float and in double. `rnncc build` compiles for three instruction sets, and the package
chooses one when it runs. `rnncc.load` compiles for this machine's processor alone. Loops in double, and loops that
take lengths and resets, are compiled when a call first needs them.
"""

BUILD = """\
## build and load

`build` compiles the files into a package in the cache, under a hash of everything that it depends on. The package holds

{files}

`load` imports it. The op of the loop is the same for every cell, one tensor for each stream, weight and state:

{schema}

and the layer is used like one of torch.nn:

{use}

## What it all amounts to

`rnncc explain` says it in words:

{words}

And `rnncc verify` shows that it is right, against the reference, which evaluates the cell in eager torch with
torch's own derivatives. Here for several shapes in float64; `ok` is a relative error below 1e-12:

{errors}
"""


def fenced(text: str) -> str:
    """Make a block of plain text in Markdown."""
    return "```\n" + text.strip("\n") + "\n```"


def without_masked(plan: str) -> str:
    """A plan's text without the loops that know resets and lengths."""
    kept, keep = [], True
    for line in plan.splitlines():
        if line.startswith("  segment "):
            keep = "_masked" not in line
        if keep:
            kept.append(line)
    return "\n".join(kept)


def new_lines(before: str, after: str) -> str:
    """The lines of a cell's text that another form of the cell does not have."""
    known = set(before.splitlines())
    return "\n".join(line.strip() for line in after.splitlines() if line not in known)


def elementwise(rendered: str) -> str:
    """The statements of the first generated function that come from the cell's text."""
    function = rendered.partition("static void function_0(")[2].partition("\n}\n")[0]
    return "\n".join(line.strip() for line in function.splitlines() if f"// {CELL.name}:" in line)


def page() -> str:
    """The whole document."""
    request = Request(Source(CELL.name, CELL.read_text(encoding="utf-8")), CELL.stem)
    (made,) = compile_cells(request, "differentiate").cells
    text = {stage: stage_text(request, stage) for stage in STAGES}
    regularised = stage_text(replace(request, zoneout=("h",), recurrent_dropout=True), "regularise")
    planned = stage_text(request, "schedule", (Problem(512, 1, "bf16"), GPUS["h200"]))
    package = rnncc.load(CELL)
    folder = Path(package.__file__ or "").parent
    files = sorted(
        path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if path.name != "__pycache__"
    )
    about = json.loads((folder / "_rnncc.json").read_text(encoding="utf-8"))
    operator = getattr(torch.ops, about["namespace"]).mycell_0_forward.default
    # The namespace holds a hash of the package's content, which is left out here.
    schema = textwrap.fill(str(operator._schema).partition("::")[2], 100, subsequent_indent="    ")

    torch.manual_seed(0)
    layer = package.MyCell(2, 3, dtype=torch.float64)
    output, (h, m) = layer(torch.randn(7, 3, 2, dtype=torch.float64))
    use = [
        ">>> layer = package.MyCell(2, 3, dtype=torch.float64)",
        ">>> output, (h, m) = layer(torch.randn(7, 3, 2, dtype=torch.float64))",
        ">>> output.shape, h.shape, m.shape",
        f"({', '.join(str(tensor.shape) for tensor in (output, h, m))})",
        ">>> {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}",
        str({name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}),
    ]
    rows = verify.verify(package.MyCell, made.cell, dtypes=(torch.float64,)).rows
    lines = [f"{row.quantity:8} {'ok' if row.error < 1e-12 else row.error}" for row in rows]
    return "\n".join(
        [
            HEAD.format(text=fenced(request.source.text)),
            PARSE.format(value=fenced(text["parse"])),
            CHECK.format(value=fenced(text["check"])),
            PARTITION.format(value=fenced(text["partition"])),
            REGULARISE.format(value=fenced(new_lines(text["partition"], regularised))),
            CLASSIFY.format(value=fenced(text["classify"])),
            MASK.format(value=fenced(new_lines(text["partition"], text["mask"]))),
            DIFFERENTIATE.format(value=fenced(text["differentiate"])),
            LOWER.format(value=fenced(without_masked(text["lower"]))),
            SCHEDULE.format(value=fenced(planned)),
            RENDER.format(value=fenced(elementwise(text["render"]))),
            BUILD.format(
                files=fenced("\n".join(files)),
                schema=fenced(schema),
                use=fenced("\n".join(use)),
                words=fenced(explain_words(made)),
                errors=fenced("\n".join(lines)),
            ),
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
