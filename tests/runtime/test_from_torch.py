"""What comes from torch.nn is taken by the cells that compute the same, and by no others; torch.nn is the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rnncc
from rnncc.language.read import read_request
from rnncc.language.source import Source
from tests.packages import reference_module
from tests.runtime.test_layers import DOUBLE, IN, H, close, sample, tuple_of

pytestmark = pytest.mark.usefixtures("float64_first")
# Which weights a layer takes is no matter of kernels, so most of these packages have none.

FROM_TORCH: list[tuple[str, Any, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ("tanh", nn.RNN, {}, ("nn_RNN", "Elman"), ("nn_RNN_relu", "IRNN", "ATR", "LIF", "MiRU2", "SGRN")),
    ("relu", nn.RNN, {"nonlinearity": "relu"}, ("nn_RNN_relu", "IRNN"), ("nn_RNN", "Elman", "ATR", "MiRU2")),
    ("gru", nn.GRU, {}, ("nn_GRU", "GRU"), ("GRUv3", "CIFG", "LSTM")),
    ("lstm", nn.LSTM, {}, ("nn_LSTM", "LSTM"), ("GRU", "PeepholeLSTM")),
    ("projected", nn.LSTM, {"proj_size": 3}, ("nn_LSTMP", "LSTMP"), ()),
]


@cache
def layer_class(file: str, name: str) -> Any:
    """A shipped cell's layer."""
    return getattr(reference_module(read_request(file).source, file), name)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("twin", "options", "equal", "others"), [row[1:] for row in FROM_TORCH], ids=[row[0] for row in FROM_TORCH]
)
def test_from_torch_takes_the_cell_that_the_module_is(
    twin: Any, options: dict[str, Any], equal: tuple[str, ...], others: tuple[str, ...], bias: bool
) -> None:
    theirs = twin(IN, H, 2, bias=bias, bidirectional=True, **options, **DOUBLE)
    x, states = sample(theirs)
    expected, expected_last = theirs(x, states[0] if len(states) == 1 else tuple(states))
    for name in equal:
        ours = layer_class(name.lower(), name).from_torch(theirs, backend="reference")
        got, last = ours(x, states[0] if len(states) == 1 else tuple(states))
        close(got, expected)
        for a, b in zip(tuple_of(last), tuple_of(expected_last), strict=True):
            close(a, b)
    for name in others:
        with pytest.raises(ValueError, match=f"^{name} computes something else than nn.{twin.__name__}.*{equal[0]}"):
            layer_class(name.lower(), name).from_torch(theirs)


def test_from_torch_with_options_of_the_layer() -> None:
    theirs = nn.LSTM(IN, H, **DOUBLE)
    x, states = sample(theirs)
    ours = layer_class("lstm", "LSTM").from_torch(theirs, zoneout={"h": 0.5}, recurrent_dropout=0.5).eval()
    close(ours(x[:1], tuple(states))[0], (states[0] + theirs(x[:1], tuple(states))[0]) / 2)

    class Derived(layer_class("lstm", "LSTM")):  # type: ignore[misc]
        def forward(self, *given: Any, **options: Any) -> Any:
            return super().forward(*given, **options)[0]

    close(Derived.from_torch(theirs)(x, tuple(states)), theirs(x, tuple(states))[0])


def test_a_state_dict_that_is_surely_nn_s_goes_to_nn_s_cells() -> None:
    # Two biases a gate, for a cell that has one: nn's, whose reset gate acts elsewhere than GRUv3's.
    for file, name, theirs in (
        ("gruv3", "GRUv3", nn.GRU(IN, H)),
        ("atr", "ATR", nn.RNN(IN, H)),
        ("sgrn", "SGRN", nn.RNN(IN, H, nonlinearity="relu")),
    ):
        with pytest.raises(RuntimeError, match=f"{name} computes something else than nn"):
            layer_class(file, name)(IN, H).load_state_dict(theirs.state_dict())
    # nn.RNN's dictionary does not tell its nonlinearity.
    layer_class("elman", "Elman")(IN, H).load_state_dict(nn.RNN(IN, H, nonlinearity="relu").state_dict())


def test_a_cell_of_more_inputs_is_refused_as_others_are() -> None:
    """It has nn.LSTM's parameters, and could be loaded."""
    text = (
        "cell Timed\ninput x, dt: 1\nstate h, c\ni, f, g, o = W@x + R@h[t-1] + b\n"
        "c[t] = exp(-dt)*sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)\nh[t] = sigmoid(o)*tanh(c[t])"
    )
    timed, theirs = rnncc.compile(text).Timed, nn.LSTM(IN, H)
    with pytest.raises(ValueError, match="Timed computes something else"):
        timed.from_torch(theirs)
    with pytest.raises(RuntimeError, match="Timed computes something else"):
        timed(IN, H).load_state_dict(theirs.state_dict())


# nn.LSTM's gates in another order, with its names alone or with more; a second bias as nn has it.
ORDERS = """
cell Other
state h, c
i, f, o, g = W@x + R@h[t-1] + b
c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)
h[t] = sigmoid(o)*tanh(c[t])

cell Twice
state h, c
i, f, o, g = W@x + b + R@h[t-1] + bR
c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)
h[t] = sigmoid(o)*tanh(c[t])

cell Nested
state h, c, d
weights V: matrix, U: matrix
i, f, o, g = W@x + R@h[t-1] + b
s, p, q = V@c[t-1] + U@g
d[t] = sigmoid(s)*d[t-1] + sigmoid(p)*tanh(q)
c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(d[t])
h[t] = sigmoid(o)*tanh(c[t])
"""
COPIES: dict[str, Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]] = {
    "plain": lambda a, _: dict(a),
    "copied": lambda a, _: {name: value.clone() for name, value in a.items()},
    "averaged": lambda a, b: {name: (3 * value + b[name]) / 4 for name, value in a.items()},
    "moving average": lambda a, b: {
        name: value.detach().clone().mul_(0.9).add_(b[name], alpha=0.1) for name, value in a.items()
    },
    "half": lambda a, _: {name: value.half() for name, value in a.items()},
}


class Around(nn.Module):
    """A model around a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = layer, nn.Linear(H, 2)


def orders(name: str, **options: Any) -> Any:
    """A layer of a cell whose gates are in another order than nn's."""
    if name in ("MUT2", "MUT3", "ParaGRU"):
        return layer_class(name.lower(), name)(IN, H, **options)
    return getattr(package_of_orders(), name)(IN, H, **options)


@cache
def package_of_orders() -> Any:
    return reference_module(Source("orders", ORDERS), "orders")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("name", ["Other", "Twice", "Nested", "MUT2", "ParaGRU"])
def test_a_layer_takes_its_own_dictionary_however_it_was_copied(name: str, options: dict[str, Any], copy: str) -> None:
    models = [Around(orders(name, **options)) for _ in range(3)]
    for part in ("", "inner"):
        a, b, c = (model.get_submodule(part) for model in models)
        c.load_state_dict(COPIES[copy](a.state_dict(), b.state_dict()))
        for key, value in COPIES[copy](dict(a.named_parameters()), dict(b.named_parameters())).items():
            assert torch.equal(c.get_parameter(key), value.float())


@pytest.mark.parametrize("name", ["Other", "Twice"])
@pytest.mark.parametrize("strict", [True, False])
def test_rows_of_another_order_are_refused_without_metadata_too(name: str, strict: bool) -> None:
    ours = orders(name, bias=False)
    twin, single = nn.LSTM(IN, H, bias=False), layer_class("lstm", "LSTM")(IN, H, bias=False)
    normed = nn.utils.parametrizations.weight_norm(nn.LSTM(IN, H, bias=False), "weight_hh_l0")
    own = nn.utils.parametrizations.weight_norm(orders(name, bias=False), "weight_hh_l0")
    for module, other in ((ours, twin), (ours, single), (own, normed)):
        with pytest.raises(RuntimeError, match="the rows would land in the wrong gates"):
            module.load_state_dict(dict(other.state_dict()), strict=strict)
    with pytest.raises(RuntimeError, match=rf"a {name}'s own, add the buffer 'rnncc_gates_i_f_o_g'"):
        ours.load_state_dict(dict(ours.named_parameters()), strict=strict)
    with pytest.raises(RuntimeError, match="the rows would land in the wrong gates"):
        orders(name).load_state_dict(dict(nn.LSTM(IN, H).state_dict()), strict=strict)
    # And the other way; nn.LSTM does not know the entry.
    with pytest.raises(RuntimeError, match="the saved layer are i, f, o, g; those of LSTM are i, f, g, o"):
        single.load_state_dict(dict(ours.state_dict()), strict=strict)
    if strict:
        with pytest.raises(RuntimeError, match="rnncc_gates_i_f_o_g"):
            twin.load_state_dict(dict(ours.state_dict()))
    else:
        ours.load_state_dict({}, strict=False)


def test_a_single_step_tells_the_order_as_its_layer_does() -> None:
    layer = orders("Other", bias=False)
    step = package_of_orders().OtherCell(IN, H, bias=False)
    step.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    with pytest.raises(RuntimeError, match="the rows would land in the wrong gates"):
        step.load_state_dict(nn.LSTMCell(IN, H, bias=False).state_dict())
    assert list(layer_class("lstm", "LSTM")(IN, H).state_dict()) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]


def test_the_mark_of_the_order_is_a_buffer_whatever_its_value() -> None:
    """Tools know buffers: exported and traced programs take weights again, and averages have it."""
    model, x = nn.Sequential(orders("Other")).eval(), torch.randn(5, 3, IN)
    others = Around(orders("Other")).inner
    values = {f"0.{key}": value for key, value in others.state_dict().items()}
    expected = others(x)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are checked
        trace = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    for program in (torch.export.export(model, (x,)).module(), trace):
        program.load_state_dict(values)
        assert torch.equal(program(x)[0], expected)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(nn.Sequential(others))
    model.load_state_dict(dict(average.module.named_parameters()) | dict(average.module.named_buffers()))
    empty = nn.Sequential(orders("Other", device="meta")).to_empty(device="cpu")
    with torch.no_grad():
        for buffer in empty.buffers():
            buffer.fill_(torch.nan)
        for parameter in empty.parameters():
            parameter.zero_()
    model.load_state_dict(dict(empty.half().state_dict()))
    with pytest.raises(RuntimeError, match=r"add the buffer '0\.rnncc_gates_i_f_o_g'"):
        model.load_state_dict(dict(model.named_parameters()))


def test_an_extra_state_of_a_derived_class_stays_its_own() -> None:
    class Derived(layer_class("lstm", "LSTM")):  # type: ignore[misc]
        taken: Any = None

        def get_extra_state(self) -> Tensor:
            return torch.arange(4.0)

        def set_extra_state(self, state: Tensor) -> None:
            self.taken = state

    layer = Derived(IN, H)
    layer.load_state_dict(dict(layer.state_dict()))
    assert torch.equal(layer.taken, torch.arange(4.0))
