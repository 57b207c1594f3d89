"""What benchmarks/gpu_sparse.py measures: the cases by axis, and the times that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from gpu_cases import PASSES

# What runs a case: the kernels that rnncc chooses for the cell, its kernels for zeros whatever they take, the kernels
# that rnncc chooses for the same cell with dense matrices, and a loop of torch's CSR products.
WHO = ("rnncc", "forced", "dense", "csr")
AXES = ("targets", "crossover")
STEPS, LOOP_STEPS = 1024, 16
EQUATIONS = {
    "lstm": """state h, c
{weights}i, f, o = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])
""",
    "elman": """state h
{weights}h[t] = tanh(W@x + R@h[t-1] + b)
""",
}
GATES = {"lstm": 4, "elman": 1}
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FEW_DENSITIES = (0.01, 0.05, 0.1, 0.3)
# By batch: the densities at each hidden size. At 8192 units there is room for the first two, and a dense step is long.
CROSSOVER: dict[int, dict[int, tuple[float, ...]]] = {
    4: {1024: DENSITIES, 2048: DENSITIES, 4096: DENSITIES, 8192: DENSITIES[:3]},
    16: dict.fromkeys((1024, 2048, 4096), FEW_DENSITIES),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A cell at a size. `density`: how many elements of R are not zero, in blocks of `block` by `block`. `rank`: that
    of R's factors. A dense R has density 1 and rank 0."""

    cell: str
    hidden: int
    batch: int
    density: float = 1.0
    block: int = 1
    rank: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether R has zeros."""
        return self.density < 1

    @property
    def weights(self) -> str:
        """R's type in the cell's text; empty for a dense one."""
        if self.rank:
            return f"lowrank({self.rank})"
        if not self.is_sparse:
            return ""
        blocks = f", block={self.block}" if self.block > 1 else ""
        return f"sparse(density={self.density}{blocks})"

    @property
    def dense(self) -> Shape:
        """The same with a dense R."""
        return Shape(self.cell, self.hidden, self.batch)

    def text(self, name: str) -> str:
        """The cell's text. The cell is called `name`."""
        weights = f"weights R: {self.weights}\n" if self.weights else ""
        return f"cell {name}\n{EQUATIONS[self.cell].format(weights=weights)}"

    def __str__(self) -> str:
        size = f"{self.cell} {self.hidden} B={self.batch}"
        return f"{size} {self.weights}" if self.weights else size


@dataclass(frozen=True, slots=True)
class SparseCase:
    """One row: `who` runs a shape over `steps` steps; `run` is one of PASSES. The dtype is bfloat16, but float32 for
    `csr`."""

    who: str
    cell: str
    hidden: int
    batch: int
    density: float
    block: int
    rank: int
    steps: int
    run: str

    @property
    def shape(self) -> Shape:
        """What is run."""
        return Shape(self.cell, self.hidden, self.batch, self.density, self.block, self.rank)

    @property
    def dense(self) -> SparseCase:
        """The dense kernel's case of the same size."""
        return case_of_shape("dense", self.shape.dense, self.run)


@dataclass(frozen=True, slots=True)
class SparseTarget:
    """Microseconds per step, forward: what must be reached, and what is aimed at. With backward MOST_TIMES as much.
    `who`: whose time counts."""

    must: float
    aim: float
    who: str = "rnncc"


MOST_TIMES = 3.0
TARGETS = {
    Shape("elman", 2304, 4, 0.3): SparseTarget(2.0, 1.2, "forced"),
    Shape("elman", 8192, 4, 0.1): SparseTarget(5.0, 3.5),
    Shape("lstm", 2304, 4, 0.1): SparseTarget(2.2, 1.7),
    Shape("lstm", 4096, 4, 0.05): SparseTarget(4.0, 2.5),
    Shape("lstm", 4096, 16, 0.05): SparseTarget(10.0, 7.0),
    Shape("lstm", 4096, 16, 0.1, block=16): SparseTarget(6.0, 4.5),
    Shape("lstm", 4096, 16, rank=256): SparseTarget(5.5, 4.0),
}


def target_of(case: SparseCase) -> SparseTarget | None:
    """What is asked of a case, in the case's pass."""
    target = TARGETS.get(case.shape)
    if target is None or target.who != case.who:
        return None
    times = 1.0 if case.run == PASSES[0] else MOST_TIMES
    return replace(target, must=times * target.must, aim=times * target.aim)


def select(words: Sequence[str], quick: bool) -> list[SparseCase]:
    """The cases of the axes, parties and cells named in `words`; where none of a kind is named, all of that kind. Each
    case once.

    Raises ValueError for a word that means nothing."""
    if unknown := set(words) - {*AXES, *WHO, *EQUATIONS}:
        raise ValueError(f"{', '.join(sorted(unknown))}: not one of {', '.join((*AXES, *WHO, *EQUATIONS))}")
    axes = [axis for axis in AXES if axis in words] or AXES
    who = [name for name in WHO if name in words] or WHO
    cells = [cell for cell in EQUATIONS if cell in words] or list(EQUATIONS)
    found = dict.fromkeys(case for axis in axes for case in cases_of(axis, quick))
    return [case for case in found if case.who in who and case.cell in cells]


def cases_of(axis: str, quick: bool) -> Iterator[SparseCase]:
    """The cases of one axis, in both passes."""
    match axis:
        case "targets":
            for shape in TARGETS:
                yield from everybody(shape)
                if shape.is_sparse:
                    yield case_of_shape("csr", shape, PASSES[0])
        case "crossover":
            for batch, sizes in CROSSOVER.items():
                for hidden, densities in sizes.items():
                    for density in densities:
                        if density in FEW_DENSITIES or not quick:
                            yield from everybody(Shape("lstm", hidden, batch, density))


def everybody(shape: Shape) -> Iterator[SparseCase]:
    """The shape by rnncc's choice, by the kernels for zeros, and without zeros."""
    for run in PASSES:
        yield case_of_shape("rnncc", shape, run)
        # Where R is stored in blocks or factors, what is chosen is not weighed against the dense kernel.
        if shape.is_sparse and shape.block == 1:
            yield case_of_shape("forced", shape, run)
        yield case_of_shape("dense", shape.dense, run)


def case_of_shape(who: str, shape: Shape, run: str) -> SparseCase:
    """A case. A few steps of torch's loop tell as much."""
    return SparseCase(who=who, run=run, steps=LOOP_STEPS if who == "csr" else STEPS, **asdict(shape))
