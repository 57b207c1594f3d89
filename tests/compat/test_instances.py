"""`replace(…, as_nn=True)`: layers that are instances of torch.nn's classes."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rnncc.compat.nn import replace, survey
from tests.fresh import run_fresh

T, B, IN, H = 6, 3, 4, 5
TWINS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(IN, H, 2, bidirectional=True),
    "projected": lambda: nn.LSTM(IN, H, proj_size=3, batch_first=True),
    "gru": lambda: nn.GRU(IN, H, bias=False),
    "relu": lambda: nn.RNN(IN, H, nonlinearity="relu"),
}


class Ragged(nn.LSTM):
    """A class with ways of its own around nn.LSTM's, as packages have them."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._factor = 2.0

    def forward(self, input: Tensor, hx: Any = None, *, keep: Tensor | None = None) -> Any:  # type: ignore[override]
        output, states = super().forward(input, hx)
        return self._factor * (output if keep is None else output * keep.unsqueeze(-1)), states

    def first_state(self) -> Tensor:
        return torch.zeros(self.num_layers, 1, self.hidden_size)


class Plain(nn.GRU):
    """A class that adds nothing but a constructor."""

    def __init__(self) -> None:
        super().__init__(IN, H)


def instance(twin: Any, **options: Any) -> Any:
    model: Any = replace(nn.Sequential(copy.deepcopy(twin)), as_nn=True, **options)
    return model[0]


def flat(result: Any) -> list[Tensor]:
    """The output and the final states."""
    output, states = result
    return [output, states] if isinstance(states, Tensor) else [output, *states]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", TWINS)
def test_the_layer_is_one_of_torch_s_class(kind: str) -> None:
    twin = TWINS[kind]()
    layer, x = instance(twin), torch.randn(T, B, IN)
    expected = flat(twin(x))
    assert isinstance(layer, type(twin)) and type(layer).__name__.startswith("nn_")
    for name in ("_all_weights", "_flat_weights_names", "mode", "num_layers", "batch_first"):
        assert getattr(layer, name) == getattr(twin, name)
    for own, other in zip(layer._flat_weights, twin._flat_weights, strict=True):
        assert torch.equal(own, other)
    layer.flatten_parameters()
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    again = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)]
    for own in (layer, *again, layer.double().float()):
        assert type(own) is type(layer) and own._flat_weights[0] is own.weight_ih_l0
        for value, other in zip(flat(own(x)), expected, strict=True):
            torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-5)
    twin.load_state_dict(layer.state_dict())
    # It is not found again.
    model = nn.Sequential(layer)
    assert survey(model) == () and replace(model) is model and model[0] is layer


def test_what_is_kept_of_the_weights_follows_them() -> None:
    layer = instance(TWINS["lstm"]())
    layer.weight_hh_l1 = nn.Parameter(torch.zeros(4 * H, H))
    assert layer._flat_weights[layer._flat_weights_names.index("weight_hh_l1")] is layer.weight_hh_l1
    assert layer.to("meta")._flat_weights[0].is_meta


def test_initialisers_and_code_that_calls_torch_s_loop_itself() -> None:
    model = nn.Sequential(nn.LSTM(IN, H))

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            for _, parameter in module.named_parameters():
                nn.init.constant_(parameter, 0.25)

    replace(model, as_nn=True).apply(initialise)
    layer: Any = model[0]
    assert all(parameter.eq(0.25).all() for parameter in layer.parameters())
    x, zeros = torch.randn(T, B, IN), torch.zeros(1, B, H)
    layer.check_forward_args(x, (zeros, zeros), None)
    output, *_ = torch.lstm(x, (zeros, zeros), layer._flat_weights, True, 1, 0.0, False, False, False)
    torch.testing.assert_close(output, layer(x)[0])


def test_a_derived_class_keeps_its_methods_around_the_layer() -> None:
    twin: Any = Ragged(IN, H)
    layer: Any = instance(twin, subclasses=(Ragged,))
    x, keep = torch.randn(T, B, IN), torch.rand(T, B)
    assert "CPU kernels" in layer.explain()
    for own in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(own, Ragged) and own.first_state().shape == (1, 1, H)
        for value, other in zip(flat(own(x, keep=keep)), flat(twin(x, keep=keep)), strict=True):
            torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-5)


def test_a_class_with_methods_of_its_own_is_replaced_as_itself_or_not_at_all() -> None:
    model = nn.Sequential(Ragged(IN, H), Plain())
    with pytest.raises(
        ValueError, match=r"give its class in subclasses= and as_nn=True, which keeps first_state, forward"
    ):
        replace(model)
    with pytest.raises(ValueError, match=r"'0': .* would lose first_state, forward: as_nn=True keeps them") as caught:
        replace(model, subclasses=(Ragged, Plain))
    assert "'1'" not in str(caught.value) and type(model[0]) is Ragged
    replace(model, subclasses=(Plain,), keep=("0",))
    assert type(model[1]).__name__ == "nn_GRU"


@pytest.mark.long
def test_torch_compile_takes_it_as_it_takes_nn_lstm() -> None:
    layer, x = instance(TWINS["lstm"]()), torch.randn(T, B, IN)
    expected, dynamo = layer(x)[0], cast(Any, torch._dynamo)
    compiled: Any = torch.compile(layer, backend="aot_eager")
    assert torch.equal(compiled(x)[0], expected)
    dynamo.reset()
    with dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x)[0], expected)


def test_an_instance_is_parametrized_as_any_module() -> None:
    layer: Any = parametrizations.weight_norm(instance(TWINS["gru"]()), "weight_hh_l0")
    layer(torch.randn(T, B, IN))[0].sum().backward()
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(layer)


def test_importing_it_brings_in_no_compiler_of_torch_s() -> None:
    """torch._dynamo takes about as long to import as torch."""
    done = run_fresh(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import rnncc.compat.nn\n"
        "print([name for name in sys.modules.keys() - before if name.startswith('torch.')])"
    )
    assert done.stdout == "[]\n", done.stderr
