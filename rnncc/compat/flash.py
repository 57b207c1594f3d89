"""FlashRNN's function and options on rnncc's cells. Facts from FlashRNN's documentation: Pöppel, Beck, Hochreiter,
"FlashRNN: I/O-Aware Optimization of Traditional RNNs on Modern Hardware", ICLR 2025, arXiv:2412.07752."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rnncc.compat import cells


@dataclass(frozen=True, slots=True)
class _Function:
    """One of FlashRNN's functions: the shipped cell, and where FlashRNN's gates stand in it.

    `recurrent`  R's gates, in the order of the cell's
    `added`      b's gates that are added to Wx, in the order of Wx's gates. That order is the cell's
    `inner`      b's gates that act within the step
    `fresh`      (n, m): where state n is 0, no step has been taken, and state m is the maximum of nothing
    """

    cell: str
    recurrent: tuple[int, ...]
    added: tuple[int, ...]
    inner: tuple[int, ...] = ()
    fresh: tuple[int, int] | None = None


_FUNCTIONS = {
    "lstm": _Function("LSTM", (0, 1, 2, 3), (0, 1, 2, 3)),  # i, f, z, o
    "slstm": _Function("sLSTM", (0, 1, 2, 3), (0, 1, 2, 3), fresh=(2, 3)),  # i, f, z, o
    "gru": _Function("GRU", (1, 2, 0), (1, 2, 3), (0,)),  # R: n, r, z; Wx: r, z, n; b: n (within), r, z, n
    "elman": _Function("Elman", (0,), (0,)),
}
_BACKENDS = {
    "cuda_fused": None,
    "cuda": None,
    "triton_fused": None,
    "vanilla": "reference",
    "vanilla_fwbw": "reference",
}
_DTYPES = {
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlashRNNConfig:
    """FlashRNN's options, those that mean something here.

    backend              "vanilla" and "vanilla_fwbw" run eager PyTorch, all others the kernels of the tensors' device
    function             lstm, slstm, gru, elman
    gradient_recurrent_cut       no gradient flows back through R
    gradient_recurrent_clipval   a bound, element by element, on the gradient that R hands back to h[t-1]
    hidden_dim, num_heads, head_dim   checked against the tensors where they are given; batch_size says nothing
    *_shape              the order of the axes: B batch, T time, G gate, H head, D unit, P unit of h[t-1], S state
    dtype                the dtype of the computation; None: Wx's. With 16 bits, sums and carried states are float32
    initial_val          the initial value of all states, or one per state

    Raises ValueError for values that mean nothing.
    """

    backend: str = "cuda_fused"
    function: str = "lstm"
    gradient_recurrent_cut: bool = False
    gradient_recurrent_clipval: float | None = None
    hidden_dim: int = -1
    num_heads: int = -1
    head_dim: int = -1
    batch_size: int = -1
    input_shape: str = "BTGHD"
    output_shape: str = "SBTHD"
    recurrent_shape: str = "GHDP"
    bias_shape: str = "GHD"
    dtype: str | None = None
    initial_val: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        options: tuple[tuple[str, tuple[str | None, ...]], ...] = (
            ("function", tuple(_FUNCTIONS)), ("backend", tuple(_BACKENDS)), ("dtype", (None, *_DTYPES)),
        )  # fmt: skip
        for name, known in options:
            if getattr(self, name) not in known:
                raise ValueError(f"flashrnn: {name} must be one of {known}, got {getattr(self, name)!r}")
        for name, axes in (
            ("input_shape", "BTGHD"), ("output_shape", "SBTHD"), ("recurrent_shape", "GHDP"), ("bias_shape", "GHD"),
        ):  # fmt: skip
            if sorted(getattr(self, name)) != sorted(axes):
                raise ValueError(f"flashrnn: {name} must be an order of the axes {axes}, got {getattr(self, name)!r}")


def flashrnn(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Tensor | None = None,
    function: str = "lstm",
    config: FlashRNNConfig | None = None,
    backend: str = "cuda_fused",
    dtype: str | None = None,
) -> tuple[Tensor, Tensor]:
    """FlashRNN's function: the loop over pre-activations, with heads.

    Args:
        Wx: [B, T, G, N, D], pre-activations of N heads with head_dim D; G gates: i, f, z, o (lstm, slstm), r, z, n
            (gru), 1.
        R: [G, N, D, D], the recurrent matrices, output before input; of gru the gates n, r, z.
        b: [G, N, D]; of gru four gates: n (added to R h, within the reset), r, z, n (added to Wx).
        states: [S, B, 1, N, D], the states before the first step: h; h, c; of slstm h, c, n, m. Zeros where None.
        config: all options; `function`, `backend` and `dtype` are those of `config` then.

    Returns:
        The states of all steps [S, B, T, N, D], and of the last [S, B, 1, N, D], the latter in the dtype of `states`.

    Raises:
        ValueError: for tensors of other shapes, and for options that mean nothing.
    """
    if config is None:
        config = FlashRNNConfig(function=function, backend=backend, dtype=dtype)
    chosen = _FUNCTIONS[config.function]
    op = cells.op(chosen.cell)
    kind = Wx.dtype if config.dtype is None else _DTYPES[config.dtype]
    inputs = _ordered("Wx", Wx, config.input_shape, "TBGHD").to(kind)
    recurrent = _ordered("R", R, config.recurrent_shape, "GHDP").to(kind)
    bias = _ordered("b", b, config.bias_shape, "GHD").to(kind)
    steps, batch, _, heads, head_dim = inputs.shape
    _check("Wx", inputs, (steps, batch, len(chosen.added), heads, head_dim), "T, B, gates, heads, head_dim")
    _check("R", recurrent, (len(chosen.recurrent), heads, head_dim, head_dim), "gates, heads, head_dim, head_dim")
    _check("b", bias, (len(chosen.added) + len(chosen.inner), heads, head_dim), "gates, heads, head_dim")
    for option, size in (("num_heads", heads), ("head_dim", head_dim), ("hidden_dim", heads * head_dim)):
        if getattr(config, option) not in (-1, size):
            raise ValueError(f"flashrnn: {option}={getattr(config, option)}, but that of Wx is {size}")

    if states is None:
        given = config.initial_val
        values = [*given] if isinstance(given, Sequence) else [given] * len(op.states)
        if len(values) != len(op.states):
            raise ValueError(f"flashrnn: initial_val must be a number, or one for each of {len(op.states)} states")
        # Filled on the device: a copy of numbers to a GPU would wait for it.
        initial = torch.stack([inputs.new_full((1, batch, heads, head_dim), value) for value in values])
    else:
        initial = _ordered("states", states, config.output_shape, "STBHD")
        _check("states", initial, (len(op.states), 1, batch, heads, head_dim), "states, 1, B, heads, head_dim")
    if torch.float64 in (kind, initial.dtype):
        initial = initial.to(kind)
    start = list(initial.reshape(len(op.states), batch, heads * head_dim))
    if chosen.fresh is not None:
        n, m = chosen.fresh
        start[m] = start[m].masked_fill(start[n] == 0, -torch.inf)
    stream = (inputs + _picked(bias, chosen.added)).reshape(steps, batch, -1)
    weights = [_picked(recurrent, chosen.recurrent).reshape(-1, head_dim)]
    weights += [_picked(bias, chosen.inner).reshape(-1)] if chosen.inner else []
    clip = 0.0 if config.gradient_recurrent_cut else config.gradient_recurrent_clipval
    _, last, sequences = op.run(
        stream, weights, start, hidden_size=heads * head_dim, num_heads=heads, return_sequences_of=op.states,
        recurrent_gradient_clip=clip, backend=_BACKENDS[config.backend],
    )  # fmt: skip
    final = torch.stack(list(last) if len(op.states) > 1 else [last])

    def returned(values: Tensor) -> Tensor:
        """[S, T, B, H] in the order of axes that is asked for."""
        return _ordered("", values.reshape(*values.shape[:-1], heads, head_dim), "STBHD", config.output_shape)

    return returned(torch.stack([sequences[name] for name in op.states])), returned(final.unsqueeze(1))


def _ordered(name: str, tensor: Tensor, axes: str, wanted: str) -> Tensor:
    if tensor.dim() != len(axes):
        raise ValueError(f"flashrnn: {name} must have {len(axes)} axes ({axes}), got {list(tensor.shape)}")
    return tensor.permute([axes.index(axis) for axis in wanted])


def _check(name: str, tensor: Tensor, wanted: tuple[int, ...], axes: str) -> None:
    if tuple(tensor.shape) != wanted:
        raise ValueError(f"flashrnn: {name} must be {list(wanted)} ({axes}), got {list(tensor.shape)}")


def _picked(tensor: Tensor, gates: tuple[int, ...]) -> Tensor:
    return tensor if gates == tuple(range(len(tensor))) else torch.stack([tensor[gate] for gate in gates])
