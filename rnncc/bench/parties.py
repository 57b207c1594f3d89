"""Who is timed: the cell's op, its loop in eager torch, that loop under torch.compile, and the layers of torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rnncc.bench.timing import Function
from rnncc.verify.runner import FALLBACK, runner_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OURS, EAGER, COMPILED = "rnncc", "eager loop", "compiled loop"
# torch.nn's layers, and the gates of each.
PEERS: Mapping[str, tuple[Callable[..., nn.RNNBase], int]] = {
    "nn.LSTM": (nn.LSTM, 4),
    "nn.GRU": (nn.GRU, 3),
    "nn.RNN": (nn.RNN, 1),
}
NAMES = (OURS, EAGER, COMPILED, *PEERS)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One layer of a cell and the tensors that it is given: x [steps, batch, input]. `dtype`: one of DTYPES. `own`:
    sizes that the cell itself declares."""

    input: int
    hidden: int
    heads: int
    batch: int
    steps: int
    dtype: str
    device: str
    own: Mapping[str, int] = field(default_factory=dict)

    def x(self) -> Tensor:
        """Random numbers as input."""
        return torch.randn(self.steps, self.batch, self.input, device=self.device, dtype=DTYPES[self.dtype])

    def options(self) -> dict[str, Any]:
        """Where parameters lie, and their dtype."""
        return {"device": self.device, "dtype": DTYPES[self.dtype]}


@dataclass(frozen=True, slots=True)
class Case:
    """A cell of a loaded module, by its name, at some sizes."""

    module: ModuleType
    cell: str
    sizes: Sizes

    def layer(self, **options: Any) -> Any:
        """A layer of the cell."""
        make, sizes = getattr(self.module, self.cell), self.sizes
        return make(sizes.input, sizes.hidden, num_heads=sizes.heads, **sizes.options(), **sizes.own, **options)


@dataclass(frozen=True, slots=True)
class Party:
    """A layer, and how it is called: `forward()` gives the output. `inputs` are what the backward has gradients for
    besides the parameters. `label`: what it is called where it is not its name; the eager fallback is not called
    rnncc."""

    name: str
    layer: Any
    forward: Callable[[], Tensor]
    inputs: list[Tensor]
    label: str = ""

    @property
    def is_loop(self) -> bool:
        """Whether Python, or what torch.compile makes of it, launches the steps one by one."""
        return self.name in (EAGER, COMPILED)

    def call(self, run: str) -> Function:
        """The forward alone without gradients, or the forward and the backward to inputs and parameters."""
        if run == "forward":
            return torch.no_grad()(self.forward)
        leaves = [*self.inputs, *self.layer.parameters()]
        gradient = torch.randn_like(self.forward())

        def both() -> object:
            return torch.autograd.grad(self.forward(), leaves, gradient, allow_unused=True)

        return both


def makers(case: Case) -> dict[str, Callable[[], Party]]:
    """What makes each party, by its name, ours first: the eager loop and the compiled one have its parameters.

    Each of them raises ValueError or TypeError where the cell does not take the sizes, RuntimeError where torch does
    not do what is asked.
    """
    made: dict[str, Party] = {}
    sizes = case.sizes

    def ours() -> Party:
        layer = case.layer()
        runner = runner_of(layer)
        party = _party(OURS, layer, sizes)
        if runner.is_fallback:
            party = replace(party, label=FALLBACK)
        else:  # each call must run kernels: it raises where the eager fallback would run
            layer.backend = runner.device
        made[OURS] = party
        return party

    def eager() -> Party:
        layer = case.layer(backend="reference")
        if OURS in made:
            layer.load_state_dict(made[OURS].layer.state_dict())
        made[EAGER] = _party(EAGER, layer, sizes)
        return made[EAGER]

    def compiled() -> Party:
        party = made.get(EAGER) or eager()
        # Without `fullgraph`, what torch cannot compile would run as it is, under the wrong name.
        return Party(COMPILED, party.layer, torch.compile(party.forward, fullgraph=True), party.inputs)

    def peer(name: str) -> Callable[[], Party]:
        def make() -> Party:
            layer = PEERS[name][0](sizes.input, sizes.hidden, **sizes.options())
            x = sizes.x().requires_grad_()
            return Party(name, layer, lambda: layer(x)[0], [x])

        return make

    return {OURS: ours, EAGER: eager, COMPILED: compiled, **{name: peer(name) for name in PEERS}}


def _party(name: str, layer: Any, sizes: Sizes) -> Party:
    x = sizes.x().requires_grad_()
    extra = {}
    for item in layer.spec.inputs[1:]:
        steps = () if item.per_sequence else (sizes.steps,)
        sides = item.sides(layer._sizes[0])
        extra[item.name] = torch.rand(*steps, sizes.batch, *sides, **sizes.options()).requires_grad_()

    def forward() -> Tensor:
        output: Tensor = layer(x, **extra)[0]
        return output

    return Party(name, layer, forward, [x, *extra.values()])
