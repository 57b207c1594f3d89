"""Cases of layers that have masks, for every rank of a torchrun (worker.py)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import rnncc

T, BATCH, IN, H = 9, 3, 5, 24
CLOSE = 2e-6
TEXT = """
cell SparseLSTM
state h, c
weights R: sparse(density=0.25), W: mask
i, f, g, o = W@x + R@h[t-1] + b
c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g)
h[t] = sigmoid(o)*tanh(c[t])
"""


def make(device: str, seed: int, hidden: float = float("nan")) -> Any:
    """A layer whose masks the seed draws. What they leave out is NaN: who reads it gives NaN."""
    torch.manual_seed(seed)
    layer = rnncc.compile(TEXT, "sparse").SparseLSTM(IN, H, num_layers=2, device=device)
    layer.set_mask("W", torch.rand(4 * H, H, device=device) < 0.5, 1)
    with torch.no_grad():
        for name, mask in layer.named_buffers():
            layer.get_parameter(name.replace("_mask", ""))[~mask] = hidden
    return layer


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def masks_of(layer: Any) -> dict[str, Tensor]:
    return dict(layer.named_buffers())


def same_on_all_ranks(layer: Any) -> None:
    for name, mask in masks_of(layer).items():
        assert type(mask) is Tensor and mask.dtype == torch.bool
        others = [torch.empty_like(mask, dtype=torch.uint8) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mask.to(torch.uint8))
        assert all(torch.equal(other, others[0]) for other in others), f"{name} differs from rank to rank"


def step(model: nn.Module, layer: Any, alone: Any, device: str, number: int, bound: float = CLOSE) -> None:
    """Gradients of this rank's batch entries, and of all in one process; those of what masks leave out are zero."""
    torch.manual_seed(100 + number)
    x = torch.randn(T, BATCH * dist.get_world_size(), IN).to(device)
    own = x.chunk(dist.get_world_size(), 1)[dist.get_rank()]
    for m, given in ((model, own), (alone, x.to(next(alone.parameters()).dtype))):
        m.zero_grad()
        m(given)[0].float().square().sum((0, 2)).mean().backward()
    masks = masks_of(layer)
    for (name, tensor), wanted in zip(layer.named_parameters(), alone.parameters(), strict=True):
        found, expected = whole(tensor.grad), wanted.grad.float()
        error = float((found - expected).abs().max() / expected.abs().max())
        assert error <= bound, f"{name} is off by {error}"
        mask = masks.get(name.replace("_l", "_mask_l"))
        assert mask is None or (found[~mask] == 0).all(), name


def train(model: nn.Module, layer: Any, alone: Any, device: str) -> None:
    """Steps with momentum and decay. In the middle one mask becomes another."""
    both = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1) for m in (model, alone)]
    for number in range(4):
        if number == 2:
            other = masks_of(alone)["weight_hh_mask_l1"].roll(1, 0)
            for each in (layer, alone):
                each.set_mask("R", other, 1)
            for each in (layer, alone):
                assert not whole(each.weight_hh_l1.detach())[~other].any()
        step(model, layer, alone, device, number)
        for optimizer in both:
            optimizer.step()
    for (name, tensor), wanted in zip(layer.named_parameters(), alone.parameters(), strict=True):
        expected = wanted.detach()
        error = float((whole(tensor.detach()) - expected).abs().max() / expected.abs().max())
        assert error <= CLOSE, f"{name} is off by {error}"


def sparse_ddp(device: str, folder: Path) -> None:
    """Masks that ranks drew for themselves are those of rank 0 afterwards, as parameters are."""
    layer = make(device, seed=dist.get_rank())
    model = DistributedDataParallel(layer)
    same_on_all_ranks(layer)
    expected = make(device, seed=0)
    assert all(torch.equal(mask, masks_of(expected)[name]) for name, mask in masks_of(layer).items())
    step(model, layer, expected, device, 0)
    layer, alone = (make(device, seed, hidden=1.0) for seed in (dist.get_rank(), 0))
    model = DistributedDataParallel(layer)
    train(model, layer, alone, device)
    same_on_all_ranks(layer)
    again = DistributedDataParallel(make(device, seed=5))
    again.load_state_dict(model.state_dict())
    x = torch.randn(T, BATCH, IN, device=device)
    assert torch.equal(again(x)[0], model(x)[0])


def shard(layer: Any, device: str, policy: MixedPrecisionPolicy | None = None) -> Any:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    return fully_shard(layer, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())


def sparse_fsdp(device: str, folder: Path) -> None:
    """Parameters are in shards, and masks whole on every rank."""
    layer = shard(make(device, seed=0), device)
    step(layer, layer, make(device, seed=0), device, 0)
    layer = shard(make(device, seed=0, hidden=1.0), device)
    train(layer, layer, make(device, seed=0, hidden=1.0), device)
    same_on_all_ranks(layer)
    x = torch.randn(T, BATCH, IN, device=device)
    for options in (StateDictOptions(), StateDictOptions(full_state_dict=True)):
        again = shard(make(device, seed=5), device)
        set_model_state_dict(again, get_model_state_dict(layer, options=options), options=options)
        same_on_all_ranks(again)
        assert torch.equal(again(x)[0], layer(x)[0])
    # The whole dictionary loads in one process, where it is zeroed.
    alone = make(device, seed=5)
    alone.load_state_dict(get_model_state_dict(layer, options=StateDictOptions(full_state_dict=True)))
    assert torch.equal(alone(x)[0], layer(x)[0])
    assert all(
        not alone.get_parameter(name.replace("_mask", ""))[~mask].any() for name, mask in masks_of(alone).items()
    )


def sparse_fsdp_from_meta(device: str, folder: Path) -> None:
    """Made without memory, sharded, then drawn by a seed, or loaded from what rank 0 alone has."""
    alone = make(device, seed=0, hidden=0.0)
    x = torch.randn(T, BATCH, IN, device=device)
    with torch.device("meta"):
        layer = type(alone)(IN, H, num_layers=2)
    shard(layer, device)
    layer.to_empty(device=device)
    torch.manual_seed(3)
    layer.reset_parameters()
    same_on_all_ranks(layer)
    assert not whole(layer.weight_hh_l0.detach())[~layer.weight_hh_mask_l0].any()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(layer, alone.state_dict() if dist.get_rank() == 0 else {}, options=options)
    assert torch.equal(layer(x)[0], alone(x)[0])


def sparse_fsdp_mixed_precision(device: str, folder: Path) -> None:
    layer = shard(
        make(device, seed=0), device, MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    )
    step(layer, layer, copy.deepcopy(make(device, seed=0)).bfloat16(), device, 0, 2**-6)


def sparse_distributed_tensors(device: str, folder: Path) -> None:
    """Masks are replicated, as parameters are, and each rank reads its own copy."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layer: Any = distribute_module(make(device, seed=0), mesh)
    alone = make(device, seed=0)
    x = torch.randn(T, BATCH, IN, device=device)
    other = alone.gate_masks(1)["R_f"].roll(1, 1)
    for each in (layer, alone):
        each.set_mask("R_f", other, 1)
        with torch.no_grad():
            each.weight_hh_l1.nan_to_num_(0.1)
    output = layer(distribute_tensor(x, mesh, [Replicate()]))[0]
    torch.testing.assert_close(whole(output.detach()), alone(x)[0].detach(), rtol=0, atol=CLOSE)
    assert torch.equal(layer.gate_masks(1)["R_f"], other)
