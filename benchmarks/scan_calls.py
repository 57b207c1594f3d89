"""The calls that the scan benchmarks time: our ops on pre-activations, loops over steps in torch, and the peers of
affine recurrences, each in its own layout.

Nothing here is anyone else's code: the log-space minGRU is written after the equations of Feng et al., "Were RNNs All
We Needed?", 2024, arXiv:2410.01201, appendix B, and of Heinsen, "Efficient Parallelization of a Ubiquitous Sequential
Computation", 2023, arXiv:2311.06281.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from gpu_calls import passes
from measure import Function
from scan_cells import layer_class, op_of
from torch import Tensor
from torch.nn.functional import softplus

from rnncc.runtime.modules.function_inputs import taken_streams, taken_weights

# Steps that one compiled function of `Loop` takes: torch.compile unrolls loops, and takes minutes for 1024 steps.
UNROLLED = 16
Pair = tuple[Tensor, Tensor]
# Peers that are packages: the module and the function.
INSTALLED = {
    "accelerated warp": ("accelerated_scan.warp", "scan"),
    "accelerated scalar": ("accelerated_scan.scalar", "scan"),
    "fla recurrent": ("fla.ops.hgrn", "fused_recurrent_hgrn"),
    "fla chunk": ("fla.ops.hgrn", "chunk_hgrn"),
}


class Tensors:
    """What a cell's functional op is given, random.

    streams [T, B, width]: with `batch_first` views of [B, T, width]; weights as the layer has them; states [B, width]
    """

    def __init__(
        self, cell: str, batch: int, steps: int, channels: int, *, dtype: torch.dtype, device: str,
        trained: bool, batch_first: bool = False, newton: bool = False,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.cell, self.op, self.spec = cell, op_of(cell, newton), layer_class(cell).spec
        self.sizes = {"I": channels, "H": channels, "num_heads": 1}
        self.loops = self.spec.segments
        self.constants = {c.name: float(c.value) for c in self.spec.constants if not c.shaping}

        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().requires_grad_(trained)

        def normal(width: int) -> Tensor:
            shape = (batch, steps, width) if batch_first else (steps, batch, width)
            return torch.randn(*shape, device=device, dtype=dtype)

        def in_time(tensor: Tensor) -> Tensor:
            return tensor.transpose(0, 1) if batch_first else tensor

        given = taken_streams(self.spec)
        self.given = [stream.name for stream in given]
        self.leaves = [leaf(normal(stream.width(self.sizes))) for stream in given]
        if cell == "affine":
            # Coefficients of a stable recurrence: with normal ones its values would be infinities.
            self.leaves[0] = leaf(torch.sigmoid(self.leaves[0].detach()))
        self.streams = [in_time(tensor) for tensor in self.leaves]
        self.weights = [leaf(weight.to(device, dtype)) for weight in self._weights(channels)]
        self.states = [
            leaf(torch.full((batch, s.width(self.sizes)), s.initial or 0.0, device=device, dtype=dtype))
            for s in self.spec.visible_states()
        ]
        self.carried = [state.name for state in self.spec.visible_states()]
        self.gradient = in_time(normal(channels))

    def _weights(self, channels: int) -> list[Tensor]:
        """The parameters that the loops read, or read functions of."""
        layer = layer_class(self.cell)(channels, channels)
        self.names = [parameter.attribute for parameter in taken_weights(self.spec, False)]
        return [getattr(layer, f"{name}_l0") for name in self.names]

    def by_op(self, **options: Any) -> Tensor:
        """The output by our op."""
        options = {"backend": self.gradient.device.type, **options}
        output: Tensor = self.op(self.streams, self.weights, self.states, **options)[0]
        return output

    def timed(self, forward: Callable[[], Tensor], run: str) -> Function:
        """A pass, fw or fw+bw, through `forward`, which gives the output."""
        return passes(forward, [*self.leaves, *self.weights, *self.states], self.gradient, run)


class Loop:
    """All loops of a cell as one loop over steps in torch, as one would write it, in the streams' dtype; compiled,
    UNROLLED steps at a time."""

    def __init__(self, tensors: Tensors, *, compiled: bool) -> None:
        self.tensors = tensors
        self.stretch = torch.compile(self._stretch) if compiled else self._stretch

    def _stretch(
        self, streams: Sequence[Tensor], states: Mapping[str, Tensor], weights: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Some steps: the output, and the states after them."""
        here = self.tensors
        steps = [
            loop.make_step(own, loop.numbers(here.constants, here.sizes, None), here.sizes)
            for loop, own in zip(here.loops, weights, strict=True)
        ]
        outputs = []
        for rows in zip(*(stream.unbind(0) for stream in streams), strict=True):
            states, values = self._step(steps, rows, states)
            outputs.append(values[self.tensors.spec.output])
        return torch.stack(outputs), states

    def _step(
        self, steps: Sequence[Any], rows: Sequence[Tensor], states: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        after: dict[str, Tensor] = {}
        values: dict[str, Tensor] = dict(zip(self.tensors.given, rows, strict=True))
        for loop, step in zip(self.tensors.loops, steps, strict=True):
            read = [values[stream.name] for stream in loop.streams]
            new, made = step(read, [states[state.name] for state in loop.states])
            after |= {state.name: value for state, value in zip(loop.states, new, strict=True)}
            values |= {sequence.name: value for sequence, value in zip(loop.sequences, made, strict=True)}
        return after, values

    def __call__(self) -> Tensor:
        here = self.tensors
        pieces = zip(*(torch.split(stream, UNROLLED) for stream in here.streams), strict=True)
        outputs: list[Tensor] = []
        states: Mapping[str, Tensor] = dict(zip(here.carried, here.states, strict=True))
        parameters, values = dict(zip(here.names, here.weights, strict=True)), dict[str, Tensor]()
        here.spec.derive(values, parameters, here.constants, here.sizes)
        weights = [[weight.tensor(parameters, values) for weight in loop.plain.weights] for loop in here.loops]
        for piece in pieces:
            output, states = self.stretch(piece, states, weights)
            outputs.append(output)
        return torch.cat(outputs)


def log_space_mingru(gates: Tensor) -> Tensor:
    """minGRU in log space from h = 0, batch first: gates [B, T, 2 D], first those of z, then candidates. [B, T, D].

    log(1-z) = -softplus(k), log z = -softplus(-k), log g(v) = log(v + 1/2) where v >= 0, else -softplus(-v); the
    recurrence h[t] = a[t] h[t-1] + b[t] is exp(A + logcumsumexp(log b - A)) with A the cumulative sum of log a."""
    k, v = gates.chunk(2, -1)
    log_g = torch.where(v >= 0, torch.log(torch.relu(v) + 0.5), -softplus(-v))
    decay = torch.cumsum(-softplus(k), 1)
    return torch.exp(decay + torch.logcumsumexp(-softplus(-k) + log_g - decay, 1))


def compose(earlier: Pair, later: Pair) -> Pair:
    """Two affine maps h -> a h + b, one after the other."""
    return earlier[0] * later[0], later[0] * earlier[1] + later[1]


def generic_scan(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """h[t] = a[t] h[t-1] + b[t] from 0 along `dim` by torch's associative_scan.

    Forward alone: its 'pointwise' mode neither runs uncompiled nor differentiates pairs (the gradient of `a` is
    silently zero, torch issue 172568), and that of either mode keeps T x T numbers."""
    from torch._higher_order_ops.associative_scan import associative_scan

    composed: Any = associative_scan(compose, (a, b), dim=dim, combine_mode="generic")
    result: Tensor = composed[1]
    return result


@cache
def peer(who: str) -> Callable[..., Any]:
    """The function of a package that may not be installed. Raises ImportError, or what else its import raises."""
    module, name = INSTALLED[who]
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def peer_call(who: str, batch: int, steps: int, channels: int, dtype: torch.dtype, device: str, run: str) -> Function:
    """A peer's pass over random numbers of its own layout: [B, D, T] for accelerated-scan, else [B, T, D]."""
    torch.manual_seed(0)
    shape = (batch, channels, steps) if who.startswith("accelerated") else (batch, steps, channels)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=dtype)

    trained = run == "fw+bw"
    gradient = normal(*shape)
    if who.startswith("log"):
        gates = normal(batch, steps, 2 * channels).requires_grad_(trained)
        function = torch.compile(log_space_mingru) if who == "log compiled" else log_space_mingru
        return passes(lambda: function(gates), [gates], gradient, run)
    a, b = torch.sigmoid(normal(*shape)), normal(*shape)
    if who == "torch scan":
        return passes(lambda: generic_scan(a, b, 1), [], gradient, run)
    function = peer(who)
    if who.startswith("fla"):
        log_a = torch.log(a).requires_grad_(trained)
        b.requires_grad_(trained)
        return passes(lambda: function(b, log_a)[0], [log_a, b], gradient, run)
    a.requires_grad_(trained)
    b.requires_grad_(trained)
    return passes(lambda: function(a, b), [a, b], gradient, run)
