"""Models whose torch.nn modules were replaced: the oracle is the same model before."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from rnncc.compat.nn import Found, replace, survey

KINDS: tuple[tuple[str, Callable[[], nn.RNNBase]], ...] = (
    ("nn_LSTM", lambda: nn.LSTM(6, 8, 2, bidirectional=True, dropout=0.3, batch_first=True)),
    ("nn_LSTMP", lambda: nn.LSTM(6, 8, 2, proj_size=5, bidirectional=True)),
    ("nn_GRU", lambda: nn.GRU(6, 8, 3, dropout=0.5)),
    ("nn_RNN", lambda: nn.RNN(6, 8, bidirectional=True)),
    ("nn_RNN_relu", lambda: nn.RNN(6, 8, nonlinearity="relu", bias=False)),
)


class Tagger(nn.Module):
    """A model with every kind, one of them in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.encoder = nn.LSTM(6, 8, 2, bidirectional=True, dropout=0.3, batch_first=True)
        self.stack = nn.ModuleList(
            [nn.GRU(16, 9, batch_first=True), nn.LSTM(9, 8, proj_size=5, batch_first=True, bidirectional=True)]
        )
        self.decoder = nn.RNN(10, 7, nonlinearity="relu", batch_first=True, bias=False)
        self.last = nn.RNN(7, 7, batch_first=True)
        self.out = nn.Linear(7, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, 11]."""
        y = self.embedding(tokens)
        for layer in (self.encoder, *self.stack, self.decoder, self.last):
            y, _ = layer(y)
        logits: Tensor = self.out(y)
        return logits


def losses(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensor:
    """What 50 steps of training give, dropout included: counting in threes from any token."""
    torch.manual_seed(1)
    tokens = torch.Generator().manual_seed(2)
    values = []
    for _ in range(50):
        batch = (torch.randint(0, 11, (4, 1), generator=tokens) + 3 * torch.arange(13)) % 11
        loss = nn.functional.cross_entropy(model(batch)[:, :-1].transpose(1, 2), batch[:, 1:])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        values.append(loss.item())
    return torch.tensor(values)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_an_existing_model_trains_unchanged() -> None:
    torch.manual_seed(0)
    theirs = Tagger()
    ours = copy.deepcopy(theirs)
    # Both optimisers exist before: they hold the parameters that the layers take over.
    optimisers = [torch.optim.Adam(model.parameters(), 1e-2) for model in (theirs, ours)]
    assert replace(ours) is ours
    assert not survey(ours)
    before, after = losses(theirs, optimisers[0]), losses(ours, optimisers[1])
    assert before[-1] < before[0] - 0.1
    assert (before - after).abs().max() <= 1e-5


@pytest.mark.parametrize(("cell", "make"), KINDS, ids=[cell for cell, _ in KINDS])
def test_a_module_and_what_replaces_it(cell: str, make: Callable[[], nn.RNNBase]) -> None:
    theirs = make().double().eval()
    parameters = dict(theirs.named_parameters())
    generator = torch.get_rng_state()
    ours: Any = replace(theirs)
    assert torch.equal(generator, torch.get_rng_state())
    assert type(ours).__name__ == cell
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(parameters[name] is parameter for name, parameter in ours.named_parameters())
    assert not ours.training and ours.mode == theirs.mode
    x = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
    expected, states = theirs(x)
    got, own_states = ours(x)
    for a, b in zip((got, *own_states), (expected, *states), strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    weights = [x, *parameters.values()]
    pairs = zip(torch.autograd.grad(got.sum(), weights), torch.autograd.grad(expected.sum(), weights), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    # State dicts go both ways.
    again = make().double()
    again.load_state_dict(ours.state_dict())
    fresh = replace(make().double())
    fresh.load_state_dict(again.state_dict())
    assert torch.equal(fresh.eval()(x)[0], got)


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize(("cell", "make"), KINDS, ids=[cell for cell, _ in KINDS])
def test_packed_sequences(cell: str, make: Callable[[], nn.RNNBase], enforce_sorted: bool) -> None:
    theirs = make().double().eval()
    ours = replace(theirs)
    lengths = [5, 4, 2, 1] if enforce_sorted else [2, 5, 1, 4]
    x = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in (ours, theirs):
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=enforce_sorted)
        output, states = layer(packed)
        assert isinstance(output, PackedSequence)
        padded, again = pad_packed_sequence(output)
        assert again.tolist() == lengths
        values = [padded, *([states] if isinstance(states, Tensor) else states)]
        wanted = [x, *theirs.parameters()]
        found.append([*values, *torch.autograd.grad(sum(value.square().sum() for value in values), wanted)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_shared_modules_and_shared_weights_stay_shared() -> None:
    shared, other = nn.GRU(4, 4), nn.GRU(4, 4)
    other.weight_hh_l0 = shared.weight_hh_l0
    model = nn.Sequential(shared, shared, other)
    replace(model)
    assert model[0] is model[1] and model[0] is not model[2]
    assert model[2].weight_hh_l0 is model[0].weight_hh_l0
    assert len(list(model.parameters())) == 7


def test_what_was_set_on_a_module_goes_along() -> None:
    module = nn.LSTM(4, 4).eval()
    module.weight_hh_l0.requires_grad_(False)
    module.note = "the encoder"
    seen: list[str] = []
    pre = module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_forward_hook(lambda *_: seen.append("after"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    layer: Any = replace(module)
    assert not layer.training and not layer.weight_hh_l0.requires_grad and layer.note == "the encoder"
    x = torch.randn(3, 2, 4, requires_grad=True)
    layer(x)[0].sum().backward()
    assert seen == ["before", "after", "backward"]
    pre.remove()
    layer(x)
    assert seen == ["before", "after", "backward", "after"]
    assert layer.weight_ih_l0.grad is not None and layer.weight_hh_l0.grad is None


def test_hooks_of_loading_get_the_layer() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    seen: list[nn.Module] = []
    model[0].register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))  # type: ignore[no-untyped-call]
    given = model.state_dict()
    replace(model)
    gc.collect()
    model.load_state_dict(given)
    assert seen == [model[0]]


def test_a_replaced_model_pickles_and_copies() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    replace(model)
    x = torch.randn(3, 2, 4)
    expected = model[0](x)[0]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin[0](x)[0], expected)
        assert twin[0].weight_ih_l0 is not model[0].weight_ih_l0


def test_options_reach_every_layer_and_kept_modules_stay() -> None:
    model = nn.Sequential(nn.GRU(4, 4), nn.GRU(4, 4))
    kept = model[1]
    replace(model, keep=("1",), recompute=True)
    assert model[0].recompute and model[1] is kept
    assert survey(model) == (Found(("1",), "nn.GRU", "nn_GRU"),)
    assert str(survey(model)[0]) == "'1': nn.GRU -> nn_GRU"
    with pytest.raises(TypeError, match="speed"):
        replace(model, speed=11)
    assert model[1] is kept


class Derived(nn.LSTM):
    """A class whose own ways would be lost."""


def pruned(module: nn.Module, name: str) -> nn.Module:
    prune.random_unstructured(module, name, 0.5)  # type: ignore[no-untyped-call]
    return module


def with_forward(module: nn.LSTM) -> nn.LSTM:
    module.forward = lambda x: x  # type: ignore[assignment]
    return module


def with_buffer(module: nn.LSTM) -> nn.LSTM:
    module.register_buffer("mask", torch.ones(4))
    return module


CANNOT: tuple[tuple[Callable[[], nn.Module], str], ...] = (
    (lambda: Derived(4, 4), r"Derived stays: it derives from nn\.LSTM"),
    (lambda: parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"), "replace first, and parametrize the layer"),
    (lambda: pruned(nn.LSTM(4, 4), "weight_hh_l0"), "weight_hh_l0_mask, .*weight_hh_l0_orig"),
    (lambda: with_forward(nn.LSTM(4, 4)), "its forward is another"),
    (lambda: with_buffer(nn.LSTM(4, 4)), "not its class's: mask"),
)


@pytest.mark.parametrize(("make", "why"), CANNOT, ids=[why for _, why in CANNOT])
def test_what_cannot_be_replaced_is_said_and_nothing_changes(make: Callable[[], nn.Module], why: str) -> None:
    model = nn.Sequential(nn.LSTM(4, 4), make())
    before = list(model)
    with pytest.raises(ValueError, match=why) as caught:
        replace(model)
    assert "'1'" in str(caught.value) and "'0'" not in str(caught.value)
    assert list(model) == before
    replace(model, keep=("1",))
    assert model[1] is before[1] and model[0] is not before[0]


def test_a_subclass_is_replaced_on_demand() -> None:
    model = nn.Sequential(Derived(4, 4))
    assert survey(model)[0].cell == ""
    replace(model, subclasses=(Derived,))
    assert type(model[0]).__name__ == "nn_LSTM"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": "10"}, "keep should be several names, such as ('10',), got a str"),
        ({"num_heads": 2}, "replace() takes no num_heads: a layer has what its module has, and one head"),
        ({"device": "cpu", "dtype": torch.float32}, "replace() takes no device, dtype: a layer has"),
        ({"subclasses": (nn.Linear,)}, "subclasses should be classes derived from nn.LSTM, nn.GRU, nn.RNN or"),
        ({"subclasses": "Derived"}, "nn.RNN or their cells, got: 'D'"),
    ],
)
def test_arguments_of_other_kinds_change_nothing(given: dict[str, Any], message: str) -> None:
    model = nn.ModuleList([nn.LSTM(4, 4), nn.LSTM(4, 4)])
    with pytest.raises(TypeError, match=re.escape(message)):
        replace(model, **given)
    assert [type(module) for module in model] == [nn.LSTM, nn.LSTM]
    with pytest.raises(TypeError, match=r"model should be an nn.Module, got: <class 'torch.nn"):
        replace(nn.LSTM)  # type: ignore[arg-type]


def test_subclasses_may_be_a_list_or_one_class() -> None:
    class Derived(nn.LSTM):
        pass

    for named in ([Derived], Derived):
        assert type(replace(nn.Sequential(Derived(4, 4)), subclasses=named)[0]).__name__ == "nn_LSTM"  # type: ignore[index]


def test_an_unknown_name_to_keep_is_an_error() -> None:
    with pytest.raises(ValueError, match="no recurrent module 'encoder'"):
        replace(nn.Sequential(nn.LSTM(4, 4)), keep=("encoder",))


def test_layers_that_were_replaced_can_be_parametrized_and_pruned() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    replace(model)
    layer: Any = parametrizations.weight_norm(pruned(model[0], "weight_ih_l0"), "weight_hh_l0")
    layer(torch.randn(3, 2, 4))[0].sum().backward()
    assert layer.parametrizations.weight_hh_l0.original0.grad is not None
    assert (layer.weight_ih_l0_orig.grad[layer.weight_ih_l0_mask == 0] == 0).all()
