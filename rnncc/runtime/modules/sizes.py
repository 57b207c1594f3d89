"""The sizes of one layer from what the constructor was given, and the checks that they fit the cell."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec import CellSpec, ConstraintSpec, SizeSpec


def resolve_sizes(
    cell: CellSpec, input_size: int, hidden_size: int, num_heads: int, dims: Mapping[str, int | None]
) -> dict[str, int]:
    """I, H, num_heads and every declared dim of one layer. Raises TypeError for a dim that is missing, ValueError for
    sizes that do not fit."""
    sizes = {"I": input_size, "H": hidden_size, "num_heads": num_heads}
    for size in cell.sizes:
        given = dims.get(size.name)
        if given is not None:
            sizes[size.name] = given
        elif size.solved is None and size.default is not None:
            sizes[size.name] = default_of(size, sizes, cell.name)
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


def default_of(size: SizeSpec, sizes: Mapping[str, int], cell: str) -> int:
    """The default of a size. `sizes`: those of I, H and num_heads that are known. Raises ValueError where there is no
    default at these sizes, or one of them is missing."""
    assert size.default is not None
    try:
        value = size.default(sizes)
    except ZeroDivisionError:
        raise ValueError(f"{cell}: give {size.name}, whose default divides by 0 at these sizes") from None
    except KeyError:
        raise ValueError(f"{cell}: give input_size, of which the default of {size.name} is made") from None
    if value < 1 and size.is_keyword:
        raise ValueError(f"{cell}: give {size.name}, whose default is {value} at these sizes")
    return value


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
        if state.matrix is None and state.width(sizes) % heads:
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
