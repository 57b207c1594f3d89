"""Sparse weights: masks are drawn, set, saved and loaded, and what they leave out is neither read nor trained."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from tests.packages import float64_package, text_of

pytestmark = pytest.mark.usefixtures("float64_first")
TEXT = """
cell SparseLSTM
state h, c
weights R: sparse(density=0.25)
i, f = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
o = sigmoid(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])

cell MaskedLSTM
state h, c
weights R: mask
i, f = sigmoid(W@x + R@h[t-1] + b)
g = tanh(W@x + R@h[t-1] + b)
o = sigmoid(W@x + R@h[t-1] + b)
c[t] = f*c[t-1] + i*g
h[t] = o*tanh(c[t])

cell BlockSparse
state h
weights R: sparse(density=0.5, block=2), W: mask
param V: sparse(density=0.5)
local u: 2*H
u = sigmoid(V@h[t-1])
z, r = split(u)
h[t] = z*tanh(W@x + R@h[t-1] + b) + r*h[t-1]
"""
x = torch.randn(7, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@cache
def package() -> Any:
    return float64_package(TEXT, "sparsity")


def layer_of(name: str = "SparseLSTM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(package(), name)(6, 8, dtype=torch.float64, **options)


def sparse_lstm() -> Any:
    """A package of SparseLSTM alone: what pickles or becomes another program is compiled anew, with all of its text."""
    return float64_package(text_of("SparseLSTM", TEXT), "sparse_lstm")


def dense_of(layer: Any) -> nn.LSTM:
    """torch's LSTM with the weights of a layer of one head; masks are applied by hand."""
    dense = nn.LSTM(6, 8, layer.num_layers, bidirectional=layer.bidirectional, dtype=torch.float64)
    with torch.no_grad():
        for name, tensor in dense.named_parameters():
            if name.startswith("bias_hh"):
                tensor.zero_()
                continue
            tensor.copy_(getattr(layer, name))
            mask = getattr(layer, name.replace("_l", "_mask_l", 1), None)
            if mask is not None:
                tensor.mul_(mask)
    return dense


@pytest.mark.parametrize("heads", [1, 2])
def test_each_row_has_as_many_elements_as_the_density_says(heads: int) -> None:
    """In each gate and head; different draws for different layers, gates and heads; a seed gives the same ones."""
    layer = layer_of(num_heads=heads, num_layers=2)
    masks = layer.gate_masks()
    assert list(masks) == ["R_i", "R_f", "R_g", "R_o"]
    for name, mask in masks.items():
        assert mask.shape == layer.gate_parameters()[name].shape
        assert (mask.sum(-1) == round(0.25 * 8 / heads)).all()
        assert not layer.gate_parameters()[name][~mask].any()
    assert not torch.equal(masks["R_i"], masks["R_f"])
    assert not torch.equal(masks["R_i"], layer.gate_masks(1)["R_i"])
    again = layer_of(num_heads=heads, num_layers=2)
    assert torch.equal(again.weight_hh_mask_l0, layer.weight_hh_mask_l0)
    before = layer.weight_hh_mask_l0.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.weight_hh_mask_l0)


@pytest.mark.parametrize("heads", [1, 2])
def test_blocks_are_there_as_a_whole(heads: int) -> None:
    layer = layer_of("BlockSparse", num_heads=heads)
    mask = layer.gate_masks()["R_h"].view(heads, 4 // heads, 2, 4 // heads, 2)
    whole = mask.all(dim=4).all(dim=2)
    assert torch.equal(whole, mask.any(dim=4).any(dim=2))
    assert (whole.sum(-1) == round(0.5 * 4 / heads)).all()


def test_a_mask_of_two_parts() -> None:
    """A matrix of 2*H rows has an axis of sections in `gate_parameters()`; its mask has, too, and is a view."""
    layer = layer_of("BlockSparse", num_heads=2)
    mask = torch.rand(2, 2, 4, 4) < 0.5
    layer.set_mask("V", mask)
    assert torch.equal(layer.gate_masks()["V"], mask)
    layer.gate_masks()["V"][1, 0] = False
    mask[1, 0] = False
    layer._zero_masked()
    assert torch.equal(layer.V_mask_l0, mask.flatten(0, 2))
    assert not layer.gate_parameters()["V"][~mask].any()


def test_sizes_that_do_not_suit() -> None:
    with pytest.raises(ValueError, match="R_h is 7 x 7 in each head, which blocks of 2 do not divide"):
        package().BlockSparse(6, 7)
    with pytest.raises(ValueError, match=r"a density of 0\.25 leaves nothing of a row of 1 elements"):
        package().SparseLSTM(6, 8, num_heads=8)


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_is_the_dense_one_with_zeros(backend: str | None, bidirectional: bool) -> None:
    """Values and gradients are those of nn.LSTM whose matrices were multiplied by the masks; gradients of what masks
    leave out are zero, also where the parameter itself is not."""
    layer = layer_of(backend=backend, num_layers=2, bidirectional=bidirectional)
    dense = dense_of(layer)
    with torch.no_grad():
        layer.weight_hh_l0[~layer.weight_hh_mask_l0] = float("nan")
    output, ours = layer(x), dense(x)
    torch.testing.assert_close(output[0], ours[0], rtol=0, atol=1e-12)
    output[0].square().sum().backward()
    ours[0].square().sum().backward()
    for name, tensor in layer.named_parameters():
        wanted = dense.get_parameter(name).grad
        assert wanted is not None
        mask = getattr(layer, name.replace("_l", "_mask_l", 1), None)
        if mask is not None:
            wanted = torch.where(mask, wanted, 0)
            assert (tensor.grad[~mask] == 0).all()
        torch.testing.assert_close(tensor.grad, wanted, rtol=0, atol=1e-10)


def test_another_mask() -> None:
    """set_mask takes a group's or a gate's, of each layer and direction. The next call reads it, compiled ones too."""
    layer = layer_of("MaskedLSTM", num_heads=2, num_layers=2, bidirectional=True)
    assert layer.weight_hh_mask_l0.all()
    compiled: Any = torch.compile(layer, backend="eager")
    before = compiled(x)[0]
    mask = torch.rand(2, 4, 4) < 0.5
    layer.set_mask("R_f", mask, 1, reverse=True)
    assert torch.equal(layer.gate_masks(1, reverse=True)["R_f"], mask)
    assert layer.gate_masks(1, reverse=True)["R_i"].all() and layer.gate_masks(1)["R_f"].all()
    assert not layer.gate_parameters(1, reverse=True)["R_f"][~mask].any()
    assert not torch.equal(compiled(x)[0], before)
    assert torch.equal(compiled(x)[0], layer(x)[0])
    layer.set_mask("R", torch.zeros(32, 4, dtype=torch.bool))
    assert not layer.weight_hh_l0.any()


@pytest.mark.parametrize(
    ("name", "mask", "said"),
    [
        ("W", torch.ones(32, 6, dtype=torch.bool), "no sparse weights 'W'; the sparse weights are R, R_i, R_f, R_g,"),
        ("R", torch.ones(32, 8), r"must be torch.bool \[32, 8\], got: torch.float32"),
        ("R_i", torch.ones(32, 8, dtype=torch.bool), r"R_i must be torch.bool \[1, 8, 8\]"),
        ("R", [True], r"got: \[True\]"),
    ],
)  # fmt: skip
def test_masks_that_do_not_fit(name: str, mask: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layer_of().set_mask(name, mask)
    with pytest.raises(ValueError, match="there is no layer 1"):
        layer_of().set_mask("R", torch.ones(32, 8, dtype=torch.bool), 1)


def test_copies_and_state_dicts() -> None:
    layer = sparse_lstm().SparseLSTM(6, 8, num_layers=2, dtype=torch.float64)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x)[0], layer(x)[0])
    torch.manual_seed(9)
    other = package().SparseLSTM(6, 8, num_layers=2, dtype=torch.float64)
    assert not torch.equal(other.weight_hh_mask_l1, layer.weight_hh_mask_l1)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight_hh_mask_l1, layer.weight_hh_mask_l1)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert layer.half().weight_hh_mask_l0.dtype == torch.bool


def test_pruned_layers() -> None:
    """A dictionary of a pruned nn.LSTM loads; and pruning a layer that has a mask multiplies both."""
    dense = nn.LSTM(6, 8, dtype=torch.float64)
    prune.random_unstructured(dense, "weight_hh_l0", 0.7)  # type: ignore[no-untyped-call]
    kept = dense.get_buffer("weight_hh_l0_mask").bool()
    layer = layer_of("MaskedLSTM")
    layer.load_state_dict(dense.state_dict())
    assert torch.equal(layer.weight_hh_mask_l0, kept)
    torch.testing.assert_close(layer(x)[0], dense(x)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        layer_of("MaskedLSTM").from_torch(nn.LSTM(6, 8)).weight_hh_mask_l0.sum(), torch.tensor(256)
    )
    own = torch.rand(32, 8) < 0.5
    layer.set_mask("R", own)
    prune.custom_from_mask(layer, "weight_hh_l0", torch.rand(32, 8) < 0.5)  # type: ignore[no-untyped-call]
    expected = dense_of(layer)(x)[0]
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-12)


def test_training_keeps_zeros() -> None:
    """After steps of an optimiser with weight decay and momentum, masked elements are still zero."""
    layer = layer_of()
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        layer(x)[0].square().sum().backward()
        optimiser.step()
    assert not layer.weight_hh_l0[~layer.weight_hh_mask_l0].any()
    assert layer.to_torch()["weight_hh_l0"].count_nonzero() == layer.weight_hh_mask_l0.sum()


def test_a_single_step_has_a_mask() -> None:
    layer, step = layer_of(), package().SparseLSTMCell(6, 8, dtype=torch.float64)
    step.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in layer.state_dict().items()})
    states = (torch.zeros(3, 8, dtype=torch.float64), torch.zeros(3, 8, dtype=torch.float64))
    for row in x:
        states = step(row, states)
    torch.testing.assert_close(states[0], layer(x)[0][-1])


def test_explain_says_how_dense() -> None:
    assert "weight_hh: sparse, 25.0% of the elements, planned for 25.0%\n" in layer_of().explain()
    assert "weight_hh: sparse, planned for 25.0%" in package().SparseLSTM(6, 8, device="meta").explain()
    assert "weight_hh: sparse, 100.0% of the elements\n" in layer_of("MaskedLSTM").explain()


PLANNED = """
cell Planned
state h
weights R: mask(density=0.25)
h[t] = tanh(W@x + R@h[t-1] + b)
"""
SPARSE, DENSE = torch.arange(64).view(8, 8) % 4 == 0, torch.ones(8, 8, dtype=torch.bool)


def planned_layer(**options: Any) -> Any:
    return float64_package(PLANNED, "planned").Planned(6, 8, dtype=torch.float64, **options)


def test_masks_of_params_and_buffers_in_a_loop() -> None:
    """Also where no group has one."""
    text = "cell Alone\nstate h\nbuffer A: sparse(density=0.25)\nparam V: mask\nh[t] = tanh(W@x + A@h[t-1] + V@h[t-1])"
    layer = float64_package(text, "alone").Alone(6, 8, dtype=torch.float64)
    layer.set_mask("V", torch.rand(1, 8, 8) < 0.3)
    h, outputs = torch.zeros(3, 8, dtype=torch.float64), []
    for row in x:
        h = torch.tanh(row @ layer.weight_ih_l0.T + h @ (layer.A_l0 + layer.V_l0 * layer.V_mask_l0).T)
        outputs.append(h)
    torch.testing.assert_close(layer(x)[0], torch.stack(outputs), rtol=0, atol=1e-12)
    found = torch.autograd.grad(layer(x)[0].square().sum(), layer.V_l0)[0]
    wanted = torch.autograd.grad(torch.stack(outputs).square().sum(), layer.V_l0)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_an_ensemble_under_vmap() -> None:
    """Of layers whose masks differ, as torch.func's guide makes it; and a gradient of one of them."""
    layers = [planned_layer() for _ in range(3)]
    for i, layer in enumerate(layers):
        layer.set_mask("R", SPARSE.roll(i, 1))
    values = torch.func.stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")

    def run(parameters: Any, masks: Any) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(base, (parameters, masks), (x,))[0]
        return output

    together = torch.func.vmap(run)(*values)
    for found, layer in zip(together, layers, strict=True):
        torch.testing.assert_close(found, layer(x)[0], rtol=0, atol=1e-12)
    own = [{name: tensor[1] for name, tensor in part.items()} for part in values]
    gradient = torch.func.grad(lambda parameters: run(parameters, own[1]).sum())(own[0])["weight_hh_l0"]
    wanted = torch.autograd.grad(layers[1](x)[0].sum(), layers[1].weight_hh_l0)[0]
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Planned. the mask")
def test_what_comes_back_in_a_pruned_layer_begins_at_zero() -> None:
    layer = planned_layer()
    prune.custom_from_mask(layer, "weight_hh_l0", DENSE)  # type: ignore[no-untyped-call]
    layer.set_mask("R", SPARSE)
    assert not layer.weight_hh_l0[~SPARSE].any() and not layer.weight_hh_l0_orig[~SPARSE].any()
    before = layer.weight_hh_l0_orig.clone()
    layer.set_mask("R", DENSE)
    layer(x)
    assert torch.equal(layer.weight_hh_l0, before)
    layer.reset_parameters()
    layer(x)
    assert layer.weight_hh_l0.all()


def test_a_mask_may_be_a_view_of_the_one_that_it_replaces() -> None:
    layer = layer_of("MaskedLSTM")
    before = layer.gate_masks()["R_f"].copy_(torch.rand(1, 8, 8) < 0.5).clone()
    layer.set_mask("R_f", layer.gate_masks()["R_f"].transpose(1, 2))
    assert torch.equal(layer.gate_masks()["R_f"], before.transpose(1, 2))


def test_what_is_no_mask() -> None:
    """In the buffer's place: an error that names it. In a dictionary: what is not zero exists."""
    saved = layer_of().state_dict()
    saved["weight_hh_mask_l0"] = saved["weight_hh_mask_l0"] * 0.5
    for assign in (False, True):
        layer = layer_of()
        layer.load_state_dict(saved, assign=assign)
        assert torch.equal(layer(x)[0], layer_of()(x)[0])
    for wrong in (torch.ones(8, dtype=torch.bool), torch.ones(32, 8), None):
        layer = layer_of()
        layer._buffers["weight_hh_mask_l0"] = wrong
        with pytest.raises(RuntimeError, match=r"SparseLSTM: weight_hh_mask_l0 must be torch.bool \[32, 8\], got: "):
            layer(x)
    with pytest.raises(ValueError, match=r"weight_hh_mask_l0 is a mask and must be torch\.bool, got: torch\.uint8"):
        layer.register_buffer("weight_hh_mask_l0", torch.ones(32, 8, dtype=torch.uint8))
    normed = nn.utils.spectral_norm(nn.LSTM(6, 8), "weight_hh_l0")
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"weight_hh_l0_orig", "weight_hh_l0_u"'):
        layer_of("MaskedLSTM").load_state_dict(normed.state_dict())


def test_a_single_step_with_a_mask_is_not_pruned() -> None:
    """torch.nn.utils.prune would put its mask in the place of the step's own. The step stays as it was."""
    step = sparse_lstm().SparseLSTMCell(6, 8, dtype=torch.float64)
    before, mask = step(x[0])[0], step.weight_hh_mask.clone()
    with pytest.raises(ValueError, match=r"weight_hh_mask is a mask.*cannot prune this matrix of a single step"):
        prune.random_unstructured(step, "weight_hh", 0.5)  # type: ignore[no-untyped-call]
    assert torch.equal(step.weight_hh_mask, mask) and torch.equal(step(x[0])[0], before)
    assert isinstance(step.weight_hh, nn.Parameter)
    assert torch.equal(step.sparsify("R")(x[0])[0], before)
