"""The sizes of one layer from what the constructor was given, and the checks that they fit the cell."""

from __future__ import annotations

from collections.abc import Mapping
from sys import float_info

from torch import SymInt, Tensor

from .spec import CellSpec, ConstraintSpec


def resolve_sizes(
    cell: CellSpec, input_size: int, hidden_size: int, num_heads: int, dims: Mapping[str, int | None]
) -> dict[str, int]:
    """I, H, num_heads and every declared dim of one layer. Raises TypeError for a dim that is missing, ValueError for
    sizes that do not fit."""
    sizes = {"I": input_size, "H": hidden_size, "num_heads": num_heads}
    for size in cell.sizes:
        given = dims.get(size.name)
        if given is not None:
            check_size(size.name, given)
            sizes[size.name] = given
        elif size.solved is None and size.default is not None:
            sizes[size.name] = size.default
        elif size.solved is None:
            hint = " (or proj_size)" if size.name == "P" else ""
            raise TypeError(
                f"{cell.name} needs the keyword argument {size.name}{hint}: a size that nothing else determines"
            )
    # A solved dim may depend on another that stands behind it.
    waiting = [size for size in cell.sizes if size.name not in sizes]
    while waiting:
        ready = []
        for size in waiting:
            try:
                assert size.solved is not None
                sizes[size.name] = size.solved(sizes)
                ready.append(size)
            except KeyError:
                continue
        if not ready:
            raise TypeError(f"{cell.name} needs the keyword argument {waiting[0].name}")
        waiting = [size for size in waiting if size not in ready]
    for size in cell.sizes:
        if size.solved is not None and not size.is_keyword and sizes[size.name] < 1:
            group = size.name.removesuffix("__rank")
            raise ValueError(f"{cell.name}: the rank of {group} must be at least 1; at these sizes it is 0")
    check_heads(cell, sizes)
    for constraint in cell.constraints:
        _check(constraint, sizes)
    return sizes


def check_clip(value: object) -> None:
    """Raises TypeError, ValueError for what is no `recurrent_gradient_clip`."""
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"recurrent_gradient_clip should be a number or None, got: {type(value).__name__}")
    if isinstance(value, int) and value > float_info.max:
        raise ValueError("recurrent_gradient_clip is a whole number that is too large for a float; None is off")
    if not value >= 0:
        raise ValueError(f"recurrent_gradient_clip should not be negative, nor NaN, got: {value}")


def check_probability(name: str, value: object) -> None:
    """Raises ValueError for what is no number from 0 to 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(
            f"{name} should be a number in range [0, 1] representing the probability of an element being zeroed"
        )


def check_int(name: str, value: object) -> None:
    """Raises TypeError for what is no int."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")


def check_constant(name: str, value: object) -> float:
    """The value of a constant. Raises TypeError, ValueError for what is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} should be a number, got: {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is an integer beyond the range of float64") from None


def check_flags(**flags: object) -> None:
    """Raises TypeError for what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")


def check_size(name: str, value: int) -> None:
    """Raises TypeError, ValueError for what is no whole number above 0."""
    check_int(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be greater than zero")


def check_given_size(name: str, value: object) -> None:
    """As `check_size`, of a size that may come from a tensor's shape: exporters and tracers have symbols and tensors
    there."""
    if not isinstance(value, SymInt | Tensor):
        check_size(name, value)  # type: ignore[arg-type]


def check_backend(value: object) -> None:
    """Raises ValueError for what is no backend."""
    if value not in (None, "cpu", "cuda", "reference"):
        raise ValueError(f"backend must be None, 'cpu', 'cuda' or 'reference', got {value!r}")


def _check(constraint: ConstraintSpec, sizes: Mapping[str, int]) -> None:
    left, right = constraint.left(sizes), constraint.right(sizes)
    if constraint.divides:
        if right == 0 or left % right:
            raise ValueError(
                f"{constraint.left_text} must be a multiple of {constraint.right_text} because of {constraint.why}; "
                f"got {left}, {right} [RNN701]"
            )
    elif left != right:
        raise ValueError(
            f"{constraint.left_text} must equal {constraint.right_text} because of {constraint.why}; "
            f"got {left}, {right} [RNN701]"
        )


def check_heads(cell: CellSpec, sizes: Mapping[str, int]) -> None:
    """Raises ValueError where num_heads does not divide what it must."""
    heads = sizes["num_heads"]
    if heads > 1 and cell.single_head_because:
        raise ValueError(f"{cell.name} takes num_heads=1 only: {cell.single_head_because}; got {heads} [RNN703]")
    if sizes["H"] % heads:
        raise ValueError(f"num_heads must divide hidden_size; got num_heads {heads}, hidden_size {sizes['H']} [RNN702]")
    for state in cell.states:
        if state.width(sizes) % heads:
            raise ValueError(
                f"num_heads must divide the width of {state.name}; got {heads}, {state.width(sizes)} [RNN702]"
            )
    for parameter in cell.parameters:
        if parameter.columns is None or parameter.blocks is None:
            continue
        blocks, columns = parameter.blocks(sizes), parameter.columns(sizes)
        if columns % blocks or any(member.width(sizes) % blocks for member in parameter.members):
            widths = ", ".join(str(member.width(sizes)) for member in parameter.members)
            raise ValueError(
                f"num_heads (or the number of blocks) must divide the sizes of {parameter.name}; got {blocks} blocks, "
                f"{columns} columns, rows {widths} [RNN702]"
            )
