"""A program that runs a shipped cell, for its page. A test runs every one."""

from __future__ import annotations

from rnncc.ir.cell import Cell, Input
from rnncc.ir.dim import evaluate

_STEPS, _BATCH = 100, 32
# I and H, of which the first are taken that the cell allows; and what a dim without a default is.
_SIZES = ((64, 128), (128, 128))
_OWN = 32


def in_python(cell: Cell, file: str) -> str:
    """The program that makes a layer and calls it."""
    sizes = sizes_of(cell)
    required = [f"{size.name}={sizes[size.name]}" for size in cell.sizes if _is_required(size.name, cell)]
    arguments = ", ".join([str(sizes["I"]), str(sizes["H"]), *required])
    own = [each for each in cell.inputs[1:] if each.default is None]
    lines = [
        "import torch",
        "import rnncc",
        "",
        f'layer = rnncc.load("{file}").{cell.name}({arguments})',
        f"x = torch.randn({_STEPS}, {_BATCH}, {sizes['I']})  # [steps, batch, input_size]",
        *(_drawn(each, sizes) for each in own),
        f"output, {_last(cell)} = layer({', '.join(['x', *(f'{each.name}={each.name}' for each in own)])})",
    ]
    return "\n".join(lines) + "\n"


def sizes_of(cell: Cell) -> dict[str, int]:
    """I, H, num_heads and every dim of the program."""
    for inputs, hidden in _SIZES:
        sizes = {"I": inputs, "H": hidden, "num_heads": 1}
        for size in cell.sizes:
            if size.solved is None:
                sizes[size.name] = _OWN if size.default is None else evaluate(size.default, sizes)
        sizes |= {each.name: evaluate(each.solved, sizes) for each in cell.sizes if each.solved is not None}
        pairs = [(evaluate(each.left, sizes), evaluate(each.right, sizes), each.divides) for each in cell.constraints]
        if all(left % right == 0 if divides else left == right for left, right, divides in pairs):
            return sizes
    raise ValueError(f"{cell.name} takes other sizes: add them to _SIZES")


def _is_required(name: str, cell: Cell) -> bool:
    return any(size.name == name and size.solved is None and size.default is None for size in cell.sizes)


def _drawn(given: Input, sizes: dict[str, int]) -> str:
    width = evaluate(given.width, sizes)
    steps, words = ("", "batch") if given.per_sequence else (f"{_STEPS}, ", "steps, batch")
    return f"{given.name} = torch.rand({steps}{_BATCH}, {width})  # [{words}, width]"


def _last(cell: Cell) -> str:
    """Names for the last values of the states: one, or a tuple."""
    names = [f"{state.name}_n" for state in cell.states if state.delay_of is None]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
