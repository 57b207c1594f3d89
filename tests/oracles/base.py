"""The shape of an oracle, and random cases for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sequences:
    """What a cell returns: `output` [T, B, width] and the final value of each state, by name: [B, width], or
    [B, N, P/N, Q/N] for a matrix of N heads."""

    output: Tensor
    finals: dict[str, Tensor]


# (parameters, inputs [T, B, width] or [B, width], initial states) -> Sequences
Forward = Callable[[Tensors, Tensors, Tensors], Sequences]


class ForwardOfHeads(Protocol):
    """A `Forward` that must be told how many heads there are."""

    def __call__(self, parameters: Tensors, inputs: Tensors, states: Tensors, /, *, heads: int) -> Sequences: ...


@dataclass(frozen=True, slots=True)
class Oracle:
    """One independent implementation of one cell.

    cell        name of the shipped file, without `.rnn`
    source      where the implementation comes from
    forward     the implementation; differentiable in everything it is given
    parameters  "W:i,f R:i,f b:i,f p[H]:i,f beta[1]": groups with their gates, and params; shapes are written in the
                sizes below and num_heads, and default to [H,I] for W, [H,H] for R, [H] for b and bR. A matrix in
                blocks says them: A[num_heads,H/num_heads,K/num_heads]
    states      name -> width in declaration order; "H,K" is a matrix [B, num_heads, H/num_heads, K/num_heads]
    num_heads   the numbers of heads to compare at, where `forward` has the keyword `heads`
    defaults    initial values other than zero
    learned     the states whose own initial value is the parameter of that name with a 0 behind it
    sizes       I, H, the cell's dims and what else the shapes are written in
    dims        those of `sizes` that are keywords of the module
    inputs      extra inputs: name -> width
    per_sequence
                those of `inputs` that are the same at all steps: [B, width]
    constants   numbers that differ from the file's defaults, passed at run time
    shaping     constants that shape the program (a loop bound, a delay, a function), passed to `check`
    ranges      name -> (low, high) where U(-1, 1) will not do
    buffers     those of `parameters` that are not trained
    text        equations that replace the file's where the oracle deviates from it; `deviation` says in what
    """

    cell: str
    source: str
    forward: Forward | ForwardOfHeads
    parameters: str
    states: dict[str, str]
    num_heads: tuple[int, ...] = ()
    defaults: dict[str, float] = field(default_factory=dict)
    learned: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=lambda: {"I": 4, "H": 6})
    dims: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    per_sequence: tuple[str, ...] = ()
    constants: dict[str, float] = field(default_factory=dict)
    shaping: dict[str, int | str] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    text: str | None = None
    deviation: str = ""

    def __str__(self) -> str:
        return f"{self.cell}-{self.source}"

    def sizes_of(self, heads: int) -> dict[str, int]:
        """The sizes, and how many heads there are."""
        return {**self.sizes, "num_heads": heads}

    def shapes(self, heads: int = 1) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape under its name in the language."""
        sizes = self.sizes_of(heads)
        result: dict[str, tuple[int, ...]] = {}
        for token in self.parameters.split():
            match = re.fullmatch(r"(\w+?)(?:\[([^\]]*)\])?(?::([\w,]+))?", token)
            assert match is not None, token
            name, shape, gates = match.groups()
            shape = shape or {"W": "H,I", "R": "H,H"}.get(name, "H")
            widths = tuple(_size(width, sizes) for width in shape.split(","))
            for full in [f"{name}_{gate}" for gate in gates.split(",")] if gates else [name]:
                result[full] = widths
        return result

    def run(self, case: Case, heads: int = 1) -> Sequences:
        """The implementation's results; the cell's own initial states are spelled out for it."""
        states = self._own(case, heads) if case.states is None else case.states
        if not self.num_heads:
            return cast(Forward, self.forward)(case.parameters, case.inputs, states)
        return cast(ForwardOfHeads, self.forward)(case.parameters, case.inputs, states, heads=heads)

    def _own(self, case: Case, heads: int) -> dict[str, Tensor]:
        x = case.inputs["x"]
        own: dict[str, Tensor] = {}
        for name, width in self.states.items():
            shape = _state(width, self.sizes_of(heads))
            if name in self.learned:
                own[name] = case.parameters[f"{name}0"].expand(x.shape[1], *shape)
            else:
                own[name] = x.new_full((x.shape[1], *shape), self.defaults.get(name, 0.0))
        return own


@dataclass(frozen=True, slots=True)
class Case:
    """Tensors that go to both sides; all but buffers require gradients. `states` is None where the cell's own are
    meant."""

    parameters: dict[str, Tensor]
    inputs: dict[str, Tensor]
    states: dict[str, Tensor] | None

    def leaves(self) -> dict[str, Tensor]:
        """Everything a gradient is compared for."""
        initial = {f"{name}[0]": value for name, value in (self.states or {}).items()}
        trained = {name: value for name, value in self.parameters.items() if value.requires_grad}
        return {**trained, **self.inputs, **initial}


def draw(oracle: Oracle, *, seed: int, steps: int = 5, batch: int = 3, states: bool, heads: int = 1) -> Case:
    """A float64 case: parameters U(-1, 1) or as the oracle's `ranges` say, x and initial states alike."""
    generator = torch.Generator().manual_seed(seed)
    sizes = oracle.sizes_of(heads)

    def tensor(name: str, *shape: int) -> Tensor:
        low, high = oracle.ranges.get(name, (-1.0, 1.0))
        value = torch.rand(*shape, generator=generator, dtype=torch.float64)
        return (low + (high - low) * value).requires_grad_(name not in oracle.buffers)

    widths = {"x": "I", **oracle.inputs}
    return Case(
        {name: tensor(name, *shape) for name, shape in oracle.shapes(heads).items()},
        {
            name: tensor(name, *(() if name in oracle.per_sequence else (steps,)), batch, _size(width, sizes))
            for name, width in widths.items()
        },
        {name: tensor(name, batch, *_state(width, sizes)) for name, width in oracle.states.items()} if states else None,
    )


def relative_error(value: Tensor, reference: Tensor) -> float:
    """‖value - reference‖ / ‖reference‖; the plain norm where the reference is zero."""
    scale = float(reference.detach().norm())
    return float((value - reference).detach().norm()) / (scale or 1.0)


def observed(sequences: Sequences, *, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Output and final states by name, and a random weighted sum of all of them."""
    values = {"output": sequences.output, **{f"{k}[T]": v for k, v in sequences.finals.items()}}
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64)
    for value in values.values():
        loss = loss + (value * torch.randn(value.shape, generator=generator, dtype=value.dtype)).sum()
    return {name: value.detach() for name, value in values.items()}, loss


def results(sequences: Sequences, case: Case, *, seed: int) -> dict[str, Tensor]:
    """What `observed` says, and the gradient `d NAME` of everything in the case; zero where there is none."""
    values, loss = observed(sequences, seed=seed)
    leaves = case.leaves()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {
        f"d {name}": torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }
    return {**values, **found}


def _size(text: str, sizes: Mapping[str, int]) -> int:
    """`4*H`, `P`, `1`, `H/num_heads` in numbers."""
    product, *divisors = text.split("/")
    size = 1
    for factor in product.split("*"):
        size *= int(factor) if factor.isdigit() else sizes[factor]
    for divisor in divisors:
        assert size % sizes[divisor] == 0, text
        size //= sizes[divisor]
    return size


def _state(width: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A state's shape behind the batch: its width, or the blocks of a matrix."""
    rows, *columns = (_size(part, sizes) for part in width.split(","))
    heads = sizes["num_heads"]
    return (heads, rows // heads, columns[0] // heads) if columns else (rows,)
