"""Haste's PyTorch layers on rnncc's cells: their arguments, parameters and results.

Source: the documentation of haste_pytorch 0.5 (LMNT, https://github.com/lmnt-com/haste). Matrices are [in, out] there,
and gates stand side by side: i, g, f, o (LSTM), z, r, g (GRU).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rnncc.compat import cells
from rnncc.runtime.eager import rows

States = Tensor | tuple[Tensor, ...]
# Parameters beside the kernels: the shape, the last axis in multiples of H, and the initial value.
Constants = tuple[tuple[str, tuple[int, ...], float], ...]
EPSILON = 1e-5  # of layer norms, Haste's as torch's
NativeWeights = tuple[nn.Parameter, nn.Parameter, nn.Parameter, nn.Parameter]


class _Layer(nn.Module, ABC):
    """One layer, one direction.

    forward(input, state=None, lengths=None): input [T, B, input_size] ([B, T, input_size] with batch_first), state
    [1, B, hidden_size] (LSTMs: a pair), lengths [B]. Returns the output [T, B, hidden_size], zero past an entry's
    length, and the final states in the form of `state`; with return_state_sequence the states of all steps,
    [1, T, B, hidden_size] ([1, B, T, hidden_size] with batch_first). Raises ValueError for other shapes.
    """

    cell: ClassVar[str]
    act: ClassVar[str] = ""
    # Where each gate of the cell stands in Haste's matrices.
    gates: ClassVar[tuple[int, ...]]
    constants: ClassVar[Constants]

    kernel: nn.Parameter
    bias: nn.Parameter

    def __init__(
        self, input_size: int, hidden_size: int, batch_first: bool, zoneout: float, return_state_sequence: bool
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.batch_first = input_size, hidden_size, batch_first
        self.zoneout, self.return_state_sequence = self._probability("zoneout", zoneout), return_state_sequence
        width = len(self.gates) * hidden_size
        self.kernel = nn.Parameter(torch.empty(input_size, width))
        for name, shape in self._recurrent_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for name, shape, _ in self.constants:
            self.register_parameter(name, nn.Parameter(torch.empty(*shape[:-1], shape[-1] * hidden_size)))
        self.reset_parameters()

    def _probability(self, name: str, value: float) -> float:
        if not 0 <= value <= 1:
            raise ValueError(f"{type(self).__name__}: {name} must be in [0.0, 1.0], got {value}")
        return value

    def _recurrent_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"recurrent_kernel": (self.hidden_size, len(self.gates) * self.hidden_size)}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give every parameter a new initial value: Haste's, gate by gate."""
        for part in self.kernel.chunk(len(self.gates), 1):
            nn.init.xavier_uniform_(part)
        for name, _, value in self.constants:
            nn.init.constant_(self.get_parameter(name), value)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}"

    def forward(self, input: Tensor, state: States | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """See the class."""
        if input.dim() != 3 or input.shape[2] != self.input_size:
            raise ValueError(f"{type(self).__name__}: input must be [.., .., {self.input_size}], got {[*input.shape]}")
        x = input.transpose(0, 1) if self.batch_first else input
        # Drawn before the mask of the matrix, as Haste does: the same seed gives the same masks.
        kept = self._kept(x)
        op = cells.op(self.cell, self.act, kept is not None)
        streams, weights = self._operands(x)
        output, last, sequences = op.run(
            streams if kept is None else [*streams, kept], weights, self._states(state, len(op.states), x.shape[1]),
            hidden_size=self.hidden_size, lengths=lengths, return_sequences_of=op.states,
        )  # fmt: skip
        finals = (last,) if isinstance(last, Tensor) else last
        if self.return_state_sequence:
            finals = tuple(self._permuted(sequences[name]) for name in op.states)
        found = tuple(final.unsqueeze(0) for final in finals)
        return self._permuted(output), found[0] if len(found) == 1 else found

    def _permuted(self, sequence: Tensor) -> Tensor:
        return sequence.transpose(0, 1) if self.batch_first else sequence

    def _kept(self, x: Tensor) -> Tensor | None:
        """Which part of its old value h keeps, [T, B, H]: 0 or 1 in training, the expectation else."""
        if not self.zoneout:
            return None
        renewed = x.new_empty(x.shape[0], x.shape[1], self.hidden_size)
        # Haste draws what is not kept.
        return 1 - (renewed.bernoulli_(1 - self.zoneout) if self.training else renewed.fill_(1 - self.zoneout))

    def _states(self, state: States | None, count: int, batch: int) -> list[Tensor] | None:
        if state is None:
            return None
        given = (state,) if isinstance(state, Tensor) else tuple(state)
        wanted = [1, batch, self.hidden_size]
        if len(given) != count or any([*tensor.shape] != wanted for tensor in given):
            shapes = ", ".join(str([*tensor.shape]) for tensor in given)
            raise ValueError(f"{type(self).__name__}: state must be {count} tensor(s) {wanted}, got {shapes}")
        return [tensor[0] for tensor in given]

    def _ordered(self, packed: Tensor) -> Tensor:
        """Haste's gates, side by side on the last axis, in the order of the cell's; or back: an order that swaps two
        is its own inverse."""
        if self.gates == tuple(range(len(self.gates))):
            return packed
        parts = packed.chunk(len(self.gates), -1)
        return torch.cat([parts[gate] for gate in self.gates], -1)

    def _norm(self, product: Tensor, gain: Tensor) -> Tensor:
        """The layer norm over all gates of the input's product."""
        return rows.layer_norm(product, 1, 1, EPSILON, gain, None)

    @abstractmethod
    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The op's streams and weights for x [T, B, input_size]."""


class _Dense(_Layer):
    """A layer that has a recurrent matrix, and DropConnect on it (`dropout`)."""

    recurrent_kernel: nn.Parameter

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool,
        dropout: float,
        zoneout: float,
        return_state_sequence: bool,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first, zoneout, return_state_sequence)
        self.dropout = self._probability("dropout", dropout)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give every parameter a new initial value: Haste's, gate by gate."""
        super().reset_parameters()
        for part in self.recurrent_kernel.chunk(len(self.gates), 1):
            nn.init.orthogonal_(part)

    def _recurrent(self) -> Tensor:
        """[gates * H, H]."""
        return self._ordered(F.dropout(self.recurrent_kernel, self.dropout, self.training)).t()


class _Lstm(_Dense):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        forget_bias: float = 1.0,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        return_state_sequence: bool = False,
    ) -> None:
        self.forget_bias = forget_bias
        super().__init__(input_size, hidden_size, batch_first, dropout, zoneout, return_state_sequence)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give every parameter a new initial value: Haste's, gate by gate."""
        super().reset_parameters()
        nn.init.constant_(self.bias.chunk(4)[2], self.forget_bias)


class _Gru(_Dense):
    recurrent_bias: nn.Parameter

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        return_state_sequence: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first, dropout, zoneout, return_state_sequence)


class LSTM(_Lstm):
    """haste_pytorch.LSTM: kernel [I, 4H], recurrent_kernel [H, 4H], bias [4H]. Call: see `_Layer`."""

    cell, gates, constants = "LSTM", (0, 2, 1, 3), (("bias", (4,), 0.0),)

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [x @ self._ordered(self.kernel) + self._ordered(self.bias)], [self._recurrent()]

    def to_native_weights(self) -> NativeWeights:
        """weight_ih_l0, weight_hh_l0, bias_ih_l0 and bias_hh_l0 of an nn.LSTM; each bias is half of this one's."""
        half = self._ordered(self.bias) / 2
        return _native(self._ordered(self.kernel).t(), self._ordered(self.recurrent_kernel).t(), half, half)

    def from_native_weights(
        self, weight_ih_l0: Tensor, weight_hh_l0: Tensor, bias_ih_l0: Tensor, bias_hh_l0: Tensor
    ) -> None:
        """Take over an nn.LSTM's values."""
        bias = self._ordered(bias_ih_l0 + bias_hh_l0)
        matrices = self._ordered(weight_ih_l0.t()), self._ordered(weight_hh_l0.t())
        self.kernel, self.recurrent_kernel, self.bias, _ = _native(*matrices, bias, bias)


class GRU(_Gru):
    """haste_pytorch.GRU, which resets after the product: kernel [I, 3H], recurrent_kernel [H, 3H], bias [3H],
    recurrent_bias [3H]. Call: see `_Layer`."""

    cell, gates, constants = "GRU", (1, 0, 2), (("bias", (3,), 0.0), ("recurrent_bias", (3,), 0.0))

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        # The candidate's recurrent bias alone acts within the step.
        added, inner = torch.split(self._ordered(self.recurrent_bias), [2 * self.hidden_size, self.hidden_size])
        bias = self._ordered(self.bias) + F.pad(added, (0, self.hidden_size))
        return [x @ self._ordered(self.kernel) + bias], [self._recurrent(), inner]

    def to_native_weights(self) -> NativeWeights:
        """weight_ih_l0, weight_hh_l0, bias_ih_l0 and bias_hh_l0 of an nn.GRU."""
        biases = self._ordered(self.bias), self._ordered(self.recurrent_bias)
        return _native(self._ordered(self.kernel).t(), self._ordered(self.recurrent_kernel).t(), *biases)

    def from_native_weights(
        self, weight_ih_l0: Tensor, weight_hh_l0: Tensor, bias_ih_l0: Tensor, bias_hh_l0: Tensor
    ) -> None:
        """Take over an nn.GRU's values."""
        matrices = self._ordered(weight_ih_l0.t()), self._ordered(weight_hh_l0.t())
        biases = self._ordered(bias_ih_l0), self._ordered(bias_hh_l0)
        self.kernel, self.recurrent_kernel, self.bias, self.recurrent_bias = _native(*matrices, *biases)


class LayerNormLSTM(_Lstm):
    """haste_pytorch.LayerNormLSTM: LSTM's parameters; gamma [2, 4H], the gains of the norms of the input's and the
    recurrent product; gamma_h [H] and beta_h [H], those of the cell state's on its way to h. Call: see `_Layer`."""

    cell, gates = "LayerNormLSTM", (0, 1, 2, 3)
    constants = (("bias", (4,), 0.0), ("gamma", (2, 4), 1.0), ("gamma_h", (1,), 1.0), ("beta_h", (1,), 0.0))
    gamma: nn.Parameter
    gamma_h: nn.Parameter
    beta_h: nn.Parameter

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        stream = self._norm(x @ self.kernel, self.gamma[0]) + self.bias
        return [stream], [self._recurrent(), self.gamma[1], self.gamma_h, self.beta_h]


class LayerNormGRU(_Gru):
    """haste_pytorch.LayerNormGRU: GRU's parameters; gamma [2, 3H], the gains of the norms of the input's and the
    recurrent product. Call: see `_Layer`."""

    cell, gates = "LayerNormGRU", (0, 1, 2)
    constants = (("bias", (3,), 0.0), ("recurrent_bias", (3,), 0.0), ("gamma", (2, 3), 1.0))
    gamma: nn.Parameter

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        stream = self._norm(x @ self.kernel, self.gamma[0]) + self.bias
        # The cell packs both biases as one.
        biases = torch.cat([self.bias, self.recurrent_bias])
        return list(stream.chunk(3, -1)), [self._recurrent(), self.gamma[1], biases]


class IndRNN(_Layer):
    """haste_pytorch.IndRNN, with tanh: kernel [I, H], recurrent_scale [H], bias [H]. Call: see `_Layer`."""

    cell, gates, act = "IndRNN", (0,), "tanh"
    constants: ClassVar[Constants] = (("bias", (1,), 0.0),)
    recurrent_scale: nn.Parameter

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        zoneout: float = 0.0,
        return_state_sequence: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first, zoneout, return_state_sequence)

    def _recurrent_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"recurrent_scale": (self.hidden_size,)}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give every parameter a new initial value: Haste's."""
        super().reset_parameters()
        nn.init.uniform_(self.recurrent_scale, -0.5, 0.5)

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [x @ self.kernel + self.bias], [self.recurrent_scale]


class LayerNormIndRNN(IndRNN):
    """haste_pytorch.LayerNormIndRNN, of Haste's unreleased sources: IndRNN's parameters; gamma [2, H], the gain of the
    norm of the input's product, and one that Haste has and does not use. Call: see `_Layer`."""

    constants = (("bias", (1,), 0.0), ("gamma", (2, 1), 1.0))
    gamma: nn.Parameter

    def _operands(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [self._norm(x @ self.kernel, self.gamma[0]) + self.bias], [self.recurrent_scale]


def _native(weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> NativeWeights:
    """Parameters of their own."""

    def own(tensor: Tensor) -> nn.Parameter:
        return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format))

    return own(weight_ih), own(weight_hh), own(bias_ih), own(bias_hh)
