"""The calls of benchmarks/gpu_sparse.py: a shape's tensors, what float32 gives for them, and what is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from gpu_calls import passes
from gpu_cases import PASSES
from measure import Function
from sparse_cases import GATES, Shape, SparseCase
from sparse_packages import cell_name, package_name
from torch import Tensor

# The steps over which results are compared, and the largest error that counts as right: |ours - float32| / |float32|,
# norms of all elements. Ours is in bfloat16, which has 8 binary digits.
CHECKED_STEPS, MOST_WRONG = 12, 0.02
DTYPE = torch.bfloat16


class WrongError(Exception):
    """A kernel's result is not that of float32."""


class Numbers:
    """What a shape's op is given: `weights`, R or its factors V and U, whose sums have a variance of about 1; streams
    and states as they are asked for. `mask`: where R may have other elements than zero, None for all."""

    def __init__(self, shape: Shape, device: str = "cuda", dtype: torch.dtype = DTYPE) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.gates, hidden = GATES[shape.cell], shape.hidden
        torch.manual_seed(0)
        self.mask = self._mask() if shape.is_sparse else None
        if shape.rank:
            down, up = self._normal(self.gates * shape.rank, hidden), self._normal(self.gates * hidden, shape.rank)
            self.weights = [(down / hidden**0.5).to(dtype), (up / shape.rank**0.5).to(dtype)]
        else:
            matrix = self._normal(self.gates * hidden, hidden) / (shape.density * hidden) ** 0.5
            self.weights = [(matrix if self.mask is None else matrix * self.mask).to(dtype)]

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(*size, device=self.device)

    def _mask(self) -> Tensor:
        """As many blocks in each row of blocks as the density says."""
        block, hidden = self.shape.block, self.shape.hidden
        rows, columns = self.gates * hidden // block, hidden // block
        count = max(1, round(self.shape.density * columns))
        chosen = torch.rand(rows, columns, device=self.device).topk(count, 1).indices
        mask = torch.zeros(rows, columns, dtype=torch.bool, device=self.device).scatter_(1, chosen, True)
        return mask.repeat_interleave(block, 0).repeat_interleave(block, 1)

    def inputs(self, steps: int, trained: bool) -> list[Tensor]:
        """Pre-activations [T, B, gates * H], the weights, and states [B, H], which are zero."""
        batch, hidden = self.shape.batch, self.shape.hidden
        states = 2 if self.shape.cell == "lstm" else 1
        stream = self._normal(steps, batch, self.gates * hidden).to(self.dtype)
        zeros = (torch.zeros(batch, hidden, device=self.device, dtype=self.dtype) for _ in range(states))
        return [each.detach().requires_grad_(trained) for each in (stream, *self.weights, *zeros)]

    def gradient(self, steps: int) -> Tensor:
        """The gradient of the output, [T, B, H]."""
        return self._normal(steps, self.shape.batch, self.shape.hidden).to(self.dtype)

    def matrix(self, weights: Sequence[Tensor]) -> Tensor:
        """R [gates * H, H]."""
        if not self.shape.rank:
            return weights[0]
        down, up = (each.reshape(self.gates, -1, each.shape[1]) for each in weights)
        return torch.bmm(up, down).flatten(0, 1)


def op_of(case: SparseCase) -> tuple[Any, Any]:
    """The functional op that runs a case, and its layer's class. Raises ValueError where no package has them."""
    package, name = package_name(case.shape), cell_name(case)
    try:
        module = import_module(package)
        return getattr(module, name.lower()), getattr(module, name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"no package {package} with {name} was built: {error}") from error


def run_op(case: SparseCase, inputs: Sequence[Tensor]) -> Tensor:
    """The output [T, B, H] by the case's op."""
    op, layer_class = op_of(case)
    (segment,) = layer_class.spec.segments
    count = len(segment.plain.weights)
    given = inputs[:1], inputs[1 : 1 + count], inputs[1 + count :]
    output: Tensor = op(*given, num_heads=1, backend=inputs[0].device.type)[0]
    return output


def kernels_of(case: SparseCase) -> str:
    """The families of the kernels that run the case's pass, as the package's library chooses them: `grid`; with
    backward `forward grid, backward alternating`."""
    _, layer_class = op_of(case)
    (segment,) = layer_class.spec.segments
    fused = import_module(f"{package_name(case.shape)}._runtime.kernels.fused")
    device = torch.cuda.current_device()
    wanted = fused.Wanted(layer_class.spec, segment.name, case.hidden, 1, DTYPE, fused.gpu_of(device))
    words: str = fused.chosen(wanted, case.batch, device, denser=False)
    both, _, alone = words.partition(", without gradients ")
    return alone if case.run == PASSES[0] else both


def step(cell: str, pre: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The cell's states after a step, h first. `pre`: the sums of its gates [B, gates * H]."""
    if cell == "elman":
        return (torch.tanh(pre),)
    i, f, o, g = pre.chunk(4, 1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def reference(numbers: Numbers, inputs: Sequence[Tensor]) -> Tensor:
    """The output [T, B, H] by torch, in the inputs' dtype."""
    states_from = 1 + len(numbers.weights)
    matrix, states = numbers.matrix(inputs[1:states_from]).t(), tuple(inputs[states_from:])
    outputs = []
    for row in inputs[0]:
        states = step(numbers.shape.cell, row + states[0] @ matrix, states)
        outputs.append(states[0])
    return torch.stack(outputs)


@dataclass(frozen=True, slots=True)
class Known:
    """A shape's inputs over some steps, and what float32 gives: the output, and the gradients of streams and weights
    for `gradient`, those of R where it may have elements."""

    inputs: list[Tensor]
    gradient: Tensor
    output: Tensor
    gradients: list[Tensor]


def known(numbers: Numbers) -> Known:
    """What is right."""
    inputs, gradient = numbers.inputs(CHECKED_STEPS, trained=True), numbers.gradient(CHECKED_STEPS)
    exact = [each.detach().float().requires_grad_() for each in inputs]
    output = reference(numbers, exact)
    found = torch.autograd.grad(output, exact[: 1 + len(numbers.weights)], gradient.float())
    return Known(inputs, gradient, output.detach(), masked(numbers, found))


def masked(numbers: Numbers, gradients: Sequence[Tensor]) -> list[Tensor]:
    """The gradients without those of elements that are zero: what an op gives there counts for nothing."""
    first, *others = gradients
    return [first, *(each if numbers.mask is None else each * numbers.mask for each in others)]


def errors(case: SparseCase, numbers: Numbers, right: Known) -> dict[str, float]:
    """How far the case's op is from float32, over CHECKED_STEPS. Raises WrongError where that is too far."""
    if case.run == PASSES[0]:
        with torch.no_grad():
            found = {"output": relative(run_op(case, right.inputs), right.output)}
    else:
        output = run_op(case, right.inputs)
        count = len(right.gradients)
        gradients = masked(numbers, torch.autograd.grad(output, right.inputs[:count], right.gradient))
        found = {"output": relative(output, right.output)}
        names = ("streams", "R") if count == 2 else ("streams", "V", "U")
        found |= {name: relative(a, b) for name, a, b in zip(names, gradients, right.gradients, strict=True)}
    if not all(error <= MOST_WRONG for error in found.values()):
        raise WrongError("wrong: " + ", ".join(f"{name} is off by {error:.2g}" for name, error in found.items()))
    return found


def relative(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|."""
    return float((found.detach().float() - wanted).norm() / wanted.norm())


def timed(case: SparseCase, numbers: Numbers) -> Function:
    """The case's passes, from pre-activations to the output, and back to the gradients of all inputs."""
    if case.who == "csr":
        return csr_loop(case, numbers)
    inputs = numbers.inputs(case.steps, trained=case.run != PASSES[0])
    return passes(lambda: run_op(case, inputs), inputs, numbers.gradient(case.steps), case.run)


def csr_loop(case: SparseCase, numbers: Numbers) -> Callable[[], Tensor]:
    """A loop over steps in torch, in float32: R as torch.sparse_csr times the state. It gives the output."""
    stream, matrix, *states = (each.float() for each in numbers.inputs(case.steps, trained=False))
    rows = matrix.to_sparse_csr()

    def loop() -> Tensor:
        own, outputs = tuple(states), []
        with torch.no_grad():
            for row in stream:
                own = step(case.cell, row + (rows @ own[0].t()).t(), own)
                outputs.append(own[0])
            return torch.stack(outputs)

    return loop
