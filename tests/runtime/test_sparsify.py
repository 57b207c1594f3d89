"""`layer.sparsify("R")`: a pruned layer becomes one of the same cell with masks, and goes on training."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import rnncc
from rnncc.compat.nn import replace
from rnncc.language.source import Source
from rnncc.language.types import with_types
from rnncc.runtime.modules.sparsify import planned
from rnncc.stages.parse import parse

pytestmark = pytest.mark.usefixtures("float64_first")
IN, H = 6, 16
x = torch.randn(7, 3, IN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def make(name: str = "LSTM", *, hidden: int = H, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(rnncc.load("lstm"), name)(IN, hidden, **{"dtype": torch.float64, **options})


def pruned(layer: Any, amount: float = 0.75, start: str = "weight_hh") -> Any:
    """A quarter of the elements of each recurrent matrix is left."""
    for name in [name for name, _ in layer.named_parameters() if name.startswith(start)]:
        prune.l1_unstructured(layer, name, amount)  # type: ignore[no-untyped-call]
    return layer


def results(layer: Any, given: Tensor = x) -> list[Tensor]:
    """The output, and gradients by name."""
    layer.zero_grad()
    output = layer(given)[0]
    output.square().sum().backward()
    return [output.detach(), *(tensor.grad for _, tensor in sorted(layer.named_parameters()))]


def masks_of(layer: Any) -> dict[str, Tensor]:
    return dict(layer.named_buffers())


def source_of(layer: Any) -> str:
    text: str = type(layer)._origin[1][0]
    return text


def test_a_pruned_layer_becomes_a_sparse_one() -> None:
    """With its values, options, attributes, hooks and Parameter objects; without the pruning."""
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5,
                               "recurrent_gradient_clip": 3.0, "recompute": True}  # fmt: skip
    layer = pruned(make(**options)).eval()
    layer.note, calls = "mine", []
    handle = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    layer.weight_ih_l0.requires_grad_(False)
    before = layer(x)[0].detach()
    masks = {name: mask.bool() for name, mask in layer.named_buffers()}
    objects = {name.removesuffix("_orig"): tensor for name, tensor in layer.named_parameters()}
    sparse = layer.sparsify("R")
    assert "\nweights R: mask(density=0.25)\nstate h, c\n" in source_of(sparse)
    assert repr(sparse) == repr(layer) and sparse.note == "mine" and not sparse.training
    assert dict(sparse.named_parameters()).keys() == objects.keys()
    assert all(tensor is objects[name] for name, tensor in sparse.named_parameters())
    assert masks_of(sparse).keys() == {name.replace("_l", "_mask_l").removesuffix("_mask") for name in masks}
    for name, mask in masks.items():
        assert torch.equal(mask, masks_of(sparse)[name.removesuffix("_mask").replace("_l", "_mask_l")])
    assert [*sparse.state_dict()] == [*type(sparse)(IN, H, 2, bidirectional=True).state_dict()]
    calls.clear()
    torch.testing.assert_close(sparse(x)[0], before, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x)[0], before, rtol=0, atol=1e-12)
    assert len(calls) == 2
    handle.remove()
    assert not sparse.weight_hh_l1[~sparse.weight_hh_mask_l1].any() and not sparse.weight_ih_l0.requires_grad


def test_against_torch_s_lstm_with_zeros() -> None:
    """Pruned over all matrices at once, the pruning removed, fine-tuned on both sides."""
    theirs = nn.LSTM(IN, H, 2, bidirectional=True, dtype=torch.float64)
    names = [name for name, _ in theirs.named_parameters() if name.startswith("weight_hh")]
    prune.global_unstructured([(theirs, name) for name in names], prune.L1Unstructured, amount=0.8)
    masks = {name: theirs.get_buffer(f"{name}_mask").bool() for name in names}
    for name in names:
        prune.remove(theirs, name)  # type: ignore[no-untyped-call]
    ours = rnncc.load("nn_lstm").nn_LSTM.from_torch(theirs).sparsify("R")
    assert all(torch.equal(mask, masks_of(ours)[name.replace("_l", "_mask_l")]) for name, mask in masks.items())
    both = [torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9) for layer in (ours, theirs)]
    for _ in range(3):
        for optimiser, layer in zip(both, (ours, theirs), strict=True):
            optimiser.zero_grad()
            layer(x)[0].square().mean().backward()
            for name, mask in masks.items():
                if layer is theirs:
                    theirs.get_parameter(name).grad.mul_(mask)
                else:
                    assert (ours.get_parameter(name).grad[~mask] == 0).all()
            optimiser.step()
    for name, tensor in theirs.named_parameters():
        torch.testing.assert_close(getattr(ours, name), tensor, rtol=0, atol=1e-12)
    # And back, to a module of torch's and to a layer without masks.
    back = nn.LSTM(IN, H, 2, bidirectional=True, dtype=torch.float64)
    back.load_state_dict(ours.to_torch())
    dense = rnncc.load("nn_lstm").nn_LSTM.from_torch(back)
    for module in (back, dense):
        torch.testing.assert_close(module(x)[0], ours(x)[0], rtol=0, atol=1e-12)


def test_a_pruned_module_of_torch_s_loads() -> None:
    """`_orig` and `_mask` of a pruned nn.LSTM, into the class of a sparse layer; a dense class says that it has no
    place for them."""
    theirs = pruned(nn.LSTM(IN, H, dtype=torch.float64))
    sparse = type(pruned(make()).sparsify("R"))
    torch.testing.assert_close(sparse.from_torch(theirs)(x)[0], theirs(x)[0], rtol=0, atol=1e-12)
    with pytest.raises(RuntimeError, match="weight_hh_l0_orig"):
        rnncc.load("lstm").LSTM.from_torch(theirs)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("heads", [1, 4])
def test_several_groups_and_masks_of_both_kinds(heads: int) -> None:
    """Zeros, pruning, and a mask of the layer's own that is pruned further; heads."""
    layer = pruned(make(num_heads=heads))
    pruned(layer, 0.5, "weight_ih")
    expected = results(layer)
    both = layer.sparsify("R", "W", "R")
    assert f"weights R: mask(density={densest(both, 'R'):g}), W: mask(density=0.5)\n" in source_of(both)
    for found, wanted, (name, _) in zip(
        results(both), expected, [("", None), *sorted(both.named_parameters())], strict=True
    ):
        mask = masks_of(both).get(name.replace("_l", "_mask_l"), torch.ones((), dtype=torch.bool))
        torch.testing.assert_close(found, torch.where(mask, wanted, 0) if name else wanted, rtol=0, atol=1e-10)
    further = pruned(copy.deepcopy(both), 0.9, "weight_ih")
    own = masks_of(both)["weight_ih_mask_l0"] & further.weight_ih_l0_mask.bool()
    before = further(x)[0]
    again = further.sparsify("W", "R")
    assert torch.equal(again.weight_ih_mask_l0, own)
    # 38 of the 384 elements of W are left.
    assert f"R: mask(density={densest(both, 'R'):g}), W: mask(density=0.098)\n" in source_of(again)
    torch.testing.assert_close(again(x)[0], before, rtol=0, atol=1e-12)


def densest(layer: Any, group: str) -> float:
    """What is planned for the head that has most elements in all gates together."""
    gates = torch.stack([mask for name, mask in layer.gate_masks().items() if name.startswith(f"{group}_")])
    return planned(gates.double().mean((0, 2, 3)).max().item())


@pytest.mark.parametrize(
    ("density", "said"),
    [(0.1, 0.1), (0.1009, 0.1), (0.1016, 0.11), (0.999, 0.99), (1.0, 1.0), (0.0213, 0.022), (0.25, 0.25), (0.0, 0.001)],
)
def test_densities_that_are_planned_for(density: float, said: float) -> None:
    assert planned(density) == said


def test_where_a_type_is_written() -> None:
    text = (
        "# A citation.\ncell A  # a\nstate h\nh[t] = tanh(R@h[t-1])\n"
        "cell B\n# Words.\n\nstate h\nweights Δ: matrix, U: sparse(density=0.5)\nparam V: matrix = orthogonal\n"
        "h[t] = tanh(W@x + Δ@h[t-1] + U@h[t-1] + V@h[t-1])\n"
    )
    a, b = parse(Source("both", text))
    assert with_types(a, {"R": "mask"}) == text.replace("state", "weights R: mask\nstate", 1)
    changed = with_types(b, {"Delta": "mask(density=0.1)", "V": "mask", "U": "mask", "W": "mask"})
    assert changed == text.replace("Δ: matrix, U: sparse(density=0.5)", "Δ: mask(density=0.1), U: mask").replace(
        "V: matrix", "V: mask"
    ).replace("\n\nstate", "\n\nweights W: mask\nstate")
    layer = rnncc.compile(changed, "both").B(IN, 8)
    assert set(masks_of(layer)) == {"weight_ih_mask_l0", "Delta_mask_l0", "U_mask_l0", "V_mask_l0"}


def test_programs_and_copies() -> None:
    """Zoneout goes along; layers pickle, copy, load whole by the allow-list, and have 16 bits."""
    sparse = pruned(make(zoneout={"h": 0.25})).sparsify("R")
    assert sparse.zoneout == {"h": 0.25}
    sparse.eval()
    file = io.BytesIO()
    torch.save(sparse, file)
    file.seek(0)
    with torch.serialization.safe_globals(rnncc.safe_globals()):
        loaded = torch.load(file, weights_only=True)
    for copied in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse)), loaded):
        assert type(copied) is type(sparse) and torch.equal(copied(x)[0], sparse(x)[0])
    half = copy.deepcopy(sparse).bfloat16()
    assert half.weight_hh_mask_l0.dtype == torch.bool
    torch.testing.assert_close(half(x.bfloat16())[0].double(), sparse(x)[0], rtol=0, atol=0.02)
    assert pruned(make().half()).sparsify("R").weight_hh_l0.dtype == torch.float16
    meta = copy.deepcopy(sparse).to("meta").to_empty(device="cpu")
    meta.load_state_dict(sparse.state_dict())
    assert torch.equal(meta(x)[0], sparse(x)[0])


def test_a_single_step() -> None:
    step = pruned(make("LSTMCell"))
    expected = step(x[0])[0]
    sparse = step.sparsify("R")
    assert type(sparse).__name__ == "LSTMCell" and sparse.weight_hh_mask.sum() == H * H
    torch.testing.assert_close(sparse(x[0])[0], expected, rtol=0, atol=1e-12)


@pytest.mark.long
def test_a_layer_that_compile_changed() -> None:
    """`layer.compile()` calls that layer; the sparse one runs itself, and compiles again."""
    layer = make()
    layer.compile(backend="eager")
    sparse = pruned(layer).sparsify("R")
    sparse.set_mask("R", torch.zeros(4 * H, H, dtype=torch.bool))
    expected = copy.deepcopy(sparse)(x)[0]
    with torch.no_grad():
        sparse.weight_hh_l0.fill_(1)
    assert torch.equal(sparse(x)[0], expected)
    sparse.compile(backend="eager")
    assert torch.equal(sparse(x)[0], expected)


def test_a_buffer() -> None:
    """The reservoir of a network that is not trained."""
    torch.manual_seed(0)
    layer = rnncc.load("leakyesn").LeakyESN(IN, H, dtype=torch.float64)
    with torch.no_grad():
        layer.A_l0[:, ::2] = 0
    sparse = layer.sparsify("A")
    assert sparse.A_l0 is layer.A_l0 and torch.equal(sparse.A_mask_l0, layer.A_l0 != 0)
    assert not any(name.startswith("A") for name, _ in sparse.named_parameters())
    torch.testing.assert_close(sparse(x)[0], layer(x)[0], rtol=0, atol=1e-12)


def test_instances_of_torch_s_class() -> None:
    class Derived(nn.LSTM):
        def twice(self, given: Tensor) -> Tensor:
            return self(self(given)[0])[0]  # type: ignore[no-any-return]

    for kind in (nn.LSTM, Derived):
        layer: Any = replace(kind(IN, IN, dtype=torch.float64), as_nn=True, subclasses=Derived)
        expected = pruned(layer)(x)[0]
        sparse: Any = layer.sparsify("R")
        assert issubclass(type(sparse), kind) and masks_of(sparse)["weight_hh_mask_l0"].sum() == IN * IN
        torch.testing.assert_close(sparse(x)[0], expected, rtol=0, atol=1e-12)
        assert kind is nn.LSTM or sparse.twice(x).shape == x.shape
    plain = pruned(replace(nn.LSTM(IN, IN, dtype=torch.float64), as_nn=True)).sparsify("R")
    assert isinstance(pickle.loads(pickle.dumps(plain)), nn.LSTM)


def test_what_cannot_become_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make()
    for groups in ((), (1,), ("R", None)):
        with pytest.raises(TypeError, match=r"takes names of groups, as sparsify\('R'\)"):
            layer.sparsify(*groups)
    for name in ("b", "R_i", "Q"):
        with pytest.raises(ValueError, match=f"LSTM has no matrices '{name}'; it has W, R"):
            layer.sparsify(name)
    derived: Any = type("Derived", (rnncc.load("lstm").LSTM,), {})
    with pytest.raises(TypeError, match="Derived derives from LSTM"):
        derived(IN, H).sparsify("R")
    with pytest.raises(ValueError, match="weight_hh_l0 has no values in this process"):
        make(device="meta").sparsify("R")
    normed = nn.utils.weight_norm(make(), "weight_hh_l0")
    with pytest.raises(ValueError, match="weight_hh_l0 is computed from other parameters"):
        normed.sparsify("R")
    typed = rnncc.compile("cell T\nstate h\nweights R: blockdiag(2)\nh[t] = tanh(W@x + R@h[t-1])", "typed").T(IN, H)
    with pytest.raises(ValueError, match=r"R of T is blockdiag\(2\): a matrix of that type takes no mask"):
        typed.sparsify("R")
    typed = rnncc.compile("cell T\nstate h\nweights R: lowrank(2)\nh[t] = tanh(W@x + R@h[t-1])", "factors").T(IN, H)
    with pytest.raises(ValueError, match="R of T is of low rank, and takes no mask"):
        typed.sparsify("R")
    with pytest.raises(ValueError, match=r"T has no matrices 'R__u'; it has W$"):
        typed.sparsify("R__u")
    monkeypatch.setitem(sys.modules, "rnncc.driver", None)
    with pytest.raises(ValueError, match=r"`weights R: mask\(density=0.25\)` is another program, for which rnncc must"):
        pruned(layer).sparsify("R")
    assert type(layer.weight_hh_l0_orig) is nn.Parameter  # as it was


def test_denser_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning in a layer's life. None for what is planned for, nor while gates are set one after another."""
    kind = type(pruned(make()).sparsify("R"))
    share = 0.25

    def mask(density: float, *shape: int) -> Tensor:
        return torch.rand(shape).flatten().argsort().view(shape) < density * torch.Size(shape).numel()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = kind(IN, H)
        for name in layer.gate_masks():
            layer.set_mask(name, mask(share, 1, H, H))
        # One gate has more, and the others have less.
        layer.set_mask("R_i", mask(0.1, 1, H, H))
        layer.set_mask("R_f", mask(0.4, 1, H, H))
        kind(IN, H).load_state_dict(layer.state_dict())
        monkeypatch.setenv("RNNCC_LOG", "error")
        layer.set_mask("R", mask(0.5, 4 * H, H))
        monkeypatch.delenv("RNNCC_LOG")
    said = r"LSTM: the mask of weight_hh_l0 has 50.0% of the elements, and the cell plans for 25.0%.*sparsify\('R'\)"
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda other: other.set_mask("R", mask(0.5, 4 * H, H)),
        lambda other: other.load_state_dict(layer.state_dict()),
    )
    for change in changes:
        with pytest.warns(UserWarning, match=said):
            change(other := kind(IN, H))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            change(other)
    with pytest.warns(UserWarning, match="has 100.0% of the elements"):
        kind.from_torch(nn.LSTM(IN, H))
    assert "weights R: mask(density=0.5)\n" in source_of(layer.sparsify("R"))


@pytest.mark.parametrize("compiled", [False, True])
def test_dynamic_masks(compiled: bool) -> None:
    """RigL: the smallest elements go, those of the largest gradient come, at zero. The optimiser keeps its state, and
    what was compiled stays."""
    layer = pruned(make()).sparsify("R")
    torch._dynamo.reset()
    run: Any = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    optimiser = torch.optim.Adam(layer.parameters(), 0.01)
    losses = []
    run(x)
    with torch.compiler.set_stance("fail_on_recompile" if compiled else "default"):
        for step in range(6):
            optimiser.zero_grad()
            loss = (run(x)[0] - 0.3).square().mean()
            loss.backward()
            losses.append(loss.item())
            optimiser.step()
            if step % 2 == 0:
                continue
            state = copy.deepcopy(optimiser.state_dict())
            old = layer.weight_hh_mask_l0.clone()
            new = rigl(layer)
            layer.set_mask("R", new)
            assert new.sum() == old.sum() and (new & ~old).any()
            assert not layer.weight_hh_l0[new & ~old].any() and not layer.weight_hh_l0[~new].any()
            for ours, before in zip(optimiser.state.values(), state["state"].values(), strict=True):
                assert torch.equal(ours["exp_avg"], before["exp_avg"])
            reference = copy.deepcopy(layer)
            reference.backend = "reference"
            torch.testing.assert_close(run(x)[0], reference(x)[0], rtol=0, atol=1e-12)
    assert losses[-1] < losses[0]


def rigl(layer: Any, share: float = 0.2) -> Tensor:
    """The mask after one step of Evci et al. 2020. The gradient of what is left out comes from a dense copy."""
    mask: Tensor = layer.weight_hh_mask_l0
    weight: Tensor = layer.weight_hh_l0.detach()
    dense = make()
    dense.load_state_dict(layer.to_torch())
    (dense(x)[0] - 0.3).square().mean().backward()
    moved = int(share * int(mask.sum()))
    left = torch.where(mask, weight.abs(), torch.inf).flatten().argsort()[:moved]
    found = torch.where(mask, -torch.inf, dense.weight_hh_l0.grad.abs()).flatten().argsort(descending=True)[:moved]
    new = mask.clone().flatten()
    new[left], new[found] = False, True
    return new.view_as(mask)


def test_hooks_of_dictionaries_know_the_new_layer() -> None:
    layer, seen = make(), []
    layer.register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))
    sparse = pruned(layer).sparsify("R")
    saved = sparse.state_dict()
    del layer
    sparse.load_state_dict(saved)
    assert seen == [sparse]
