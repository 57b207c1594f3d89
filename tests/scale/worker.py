"""What every rank of a torchrun does: each case against one process with the batch of all ranks.

python -m torch.distributed.run --nproc-per-node 2 -m tests.scale.worker FOLDER cpu|cuda
Rank 0 writes FOLDER/results.json: a case's name and its complaint, empty where there is none.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

import rnncc
from tests.scale import sparse

T, BATCH, IN, H = 9, 6, 5, 24
# Float32 rounding: sums over batch entries are taken in another order.
CLOSE = 2e-6
CHECKPOINT = "checkpoint"
# A rank that failed leaves the others waiting.
PATIENCE = timedelta(minutes=1)


class Model(nn.Module):
    """Layers of two kinds, both directions, learned initial states among the parameters, and a readout."""

    def __init__(self) -> None:
        super().__init__()
        text = "cell Decay\nstate h = learned\nh[t] = tanh(W@x + R@h[t-1] + b)"
        self.first = rnncc.load("lstm").LSTM(IN, H, num_layers=2, bidirectional=True)
        self.second = rnncc.compile(text).Decay(2 * H, H, num_heads=2)
        self.readout = nn.Linear(H, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        first, _ = self.first(x, lengths=lengths)
        second, _ = self.second(first, lengths=lengths)
        result: Tensor = self.readout(second)
        return result


def batch(device: str, step: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks together at a step of training: x [T, ranks*BATCH, IN], lengths."""
    torch.manual_seed(100 + step)
    batch_size = BATCH * dist.get_world_size()
    return torch.randn(T, batch_size, IN).to(device), torch.randint(1, T + 1, (batch_size,)).to(device)


def own(tensor: Tensor, dim: int) -> Tensor:
    """This rank's batch entries."""
    return tensor.chunk(dist.get_world_size(), dim)[int(dist.get_rank())]


def loss_of(model: nn.Module, x: Tensor, lengths: Tensor) -> Any:
    output: Tensor = model(x, lengths)
    return output.float().square().sum((0, 2)).mean()


def make(device: str) -> Model:
    torch.manual_seed(0)
    return Model().to(device)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], bound: float) -> None:
    """Raises AssertionError where the largest difference, relative to the largest expected value, is over the bound."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = float((found[name] - value).abs().max() / value.abs().max())
        assert error <= bound, f"{name} is off by {error}"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name.removeprefix("module."): whole(tensor.grad)
        for name, tensor in model.named_parameters()
        if tensor.grad is not None
    }


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): whole(tensor.detach()) for name, tensor in model.named_parameters()}


def shard(model: Model, policy: MixedPrecisionPolicy | None = None) -> Model:
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return model


def backward(model: nn.Module, alone: nn.Module, device: str, step: int = 0, autocast: bool = False) -> None:
    """Gradients of `model` for this rank's batch entries, of `alone` for all."""
    x, lengths = batch(device, step)
    for m, given in ((model, (own(x, 1), own(lengths, 0))), (alone, (x, lengths))):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = loss_of(m, *given)
        loss.backward()


def train(model: nn.Module, alone: nn.Module, device: str) -> None:
    """Three steps with momentum of both; gradients and parameters are the same after each."""
    both = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, alone)]
    for step in range(3):
        backward(model, alone, device, step)
        compare(gradients(model), gradients(alone), CLOSE)
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        compare(parameters(model), parameters(alone), CLOSE)


def accumulate(model: nn.Module, device: str, unsynchronised: Callable[[], AbstractContextManager[None]]) -> None:
    """Two batches before one exchange of gradients."""
    alone = make(device)
    for step in range(2):
        x, lengths = batch(device, step)
        with unsynchronised() if step == 0 else nullcontext():
            loss_of(model, own(x, 1), own(lengths, 0)).backward()
        loss_of(alone, x, lengths).backward()
    compare(gradients(model), gradients(alone), CLOSE)


def ddp(device: str, folder: Path) -> None:
    train(DistributedDataParallel(make(device)), make(device), device)


def ddp_compiled(device: str, folder: Path) -> None:
    compiled: Any = torch.compile(DistributedDataParallel(make(device)), backend="aot_eager")
    alone = make(device)
    backward(compiled, alone, device)
    found = {name.removeprefix("_orig_mod.module."): value for name, value in gradients(compiled).items()}
    compare(found, gradients(alone), CLOSE)


def ddp_accumulates(device: str, folder: Path) -> None:
    model = DistributedDataParallel(make(device))
    accumulate(model, device, model.no_sync)


def ddp_autocast(device: str, folder: Path) -> None:
    # Each rank rounds its gradients of weights to bfloat16 before they are added.
    model, alone = DistributedDataParallel(make(device)), make(device)
    backward(model, alone, device, autocast=True)
    compare(gradients(model), gradients(alone), 2**-7)


def fsdp(device: str, folder: Path) -> None:
    train(shard(make(device)), make(device), device)


def fsdp_from_meta(device: str, folder: Path) -> None:
    """A layer that was made on the meta device gets its initial values in shards: also those of one gate, which a view
    of the whole would have lost. Views are refused."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layer: Any = fully_shard(rnncc.load("lstm").LSTM(IN, H, device="meta"), mesh=mesh)
    layer.to_empty(device=device)
    for tensor in layer.parameters():
        nn.init.constant_(tensor, torch.nan)
    layer.reset_parameters()
    for values in layer.parameters():
        whole = values.full_tensor()
        given = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
        dist.all_gather(given, whole.contiguous())
        assert all(torch.equal(each, whole) for each in given) and whole.isfinite().all()
    assert torch.equal(layer.bias_ih_l0.full_tensor()[H : 2 * H], torch.ones(H, device=device))
    try:
        layer.gate_parameters()
    except RuntimeError as found:
        assert "weight_ih_l0 is divided among processes" in str(found), found
        return
    raise AssertionError("no error")


def fsdp_accumulates(device: str, folder: Path) -> None:
    model: Any = shard(make(device))

    class Unsynchronised:
        def __enter__(self) -> None:
            model.set_requires_gradient_sync(False)

        def __exit__(self, *_: object) -> None:
            model.set_requires_gradient_sync(True)

    accumulate(model, device, Unsynchronised)


def fsdp_mixed_precision(device: str, folder: Path) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, alone = shard(make(device), policy), make(device)
    x, lengths = batch(device, 0)
    loss_of(model, own(x, 1), own(lengths, 0)).backward()
    rounded = copy.deepcopy(alone).bfloat16()
    loss_of(rounded, x.bfloat16(), lengths).backward()
    found = gradients(model)
    assert {value.dtype for value in found.values()} == {torch.float32}
    compare(found, {name: value.float() for name, value in gradients(rounded).items()}, 2**-6)


def fsdp_clips_the_norm(device: str, folder: Path) -> None:
    model, alone = shard(make(device)), make(device)
    backward(model, alone, device)
    norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (model, alone)]
    compare({"norm": whole(norms[0])}, {"norm": norms[1]}, CLOSE)
    compare(gradients(model), gradients(alone), CLOSE)


def checkpoint(device: str, folder: Path) -> None:
    """Saved in shards, loaded in shards; the test loads the same in one process."""
    model = shard(make(device))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1)
    state_dict_saver.save(get_model_state_dict(model), checkpoint_id=folder / CHECKPOINT)
    again = shard(make(device))
    state = get_model_state_dict(again)
    state_dict_loader.load(state, checkpoint_id=folder / CHECKPOINT)
    set_model_state_dict(again, state)
    compare(parameters(again), parameters(model), 0.0)


def distributed_tensors(device: str, folder: Path) -> None:
    """Replicated parameters, and a batch that is replicated or shared out, unevenly too."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for batch_first in (False, True):
        torch.manual_seed(0)
        alone = rnncc.load("lstm").LSTM(IN, H, num_layers=2, bidirectional=True, batch_first=batch_first).to(device)
        x, lengths = batch(device, 0)
        x, lengths = x[:, 1:], lengths[1:]
        given = {"x": x.transpose(0, 1) if batch_first else x, "h": torch.randn(4, x.shape[1], H, device=device),
                 "c": torch.randn(4, x.shape[1], H, device=device)}  # fmt: skip
        dims = {"x": int(not batch_first), "h": 1, "c": 1}
        for shared in (True, False):
            both = []
            for layer in (alone, distribute_module(copy.deepcopy(alone), mesh)):
                here, own_lengths = {key: value.clone().requires_grad_() for key, value in given.items()}, lengths
                if layer is not alone:
                    places: dict[str, list[Any]] = {k: [Shard(d) if shared else Replicate()] for k, d in dims.items()}
                    here = {k: distribute_tensor(v.detach(), mesh, places[k]).requires_grad_() for k, v in here.items()}
                    own_lengths = distribute_tensor(lengths, mesh, [Replicate()])  # placed as the input is
                output, (h, c) = layer(here["x"], (here["h"], here["c"]), lengths=own_lengths)
                layer.zero_grad()
                (output.square().sum() + h.sum() + c.square().sum()).backward()
                tensors = {"output": output.detach(), "h_n": h.detach(), "c_n": c.detach()}
                tensors |= {f"d_{k}": v.grad for k, v in here.items() if v.grad is not None}
                both.append({k: whole(v) for k, v in (tensors | gradients(layer)).items()})
            assert len(both[0]) == 3 + 3 + len(list(alone.parameters()))
            compare(both[1], both[0], CLOSE)


def distributed_tensors_of_a_step(device: str, folder: Path) -> None:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = rnncc.load("lstm").LSTMCell(IN, H).to(device)
    x = torch.randn(6, IN, device=device)
    layer = distribute_module(copy.deepcopy(alone), mesh)
    h, c = layer(distribute_tensor(x, mesh, [Shard(0)]))
    expected = alone(x)
    compare({"h": whole(h.detach()), "c": whole(c.detach())}, {"h": expected[0], "c": expected[1]}, CLOSE)


def distributed_buffers(device: str, folder: Path) -> None:
    """Buffers and masks are replicated as parameters are."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    text = "cell Echo\nstate h\nbuffer A: sparse(density=0.5) = spectral(0.9)\nh[t] = tanh(W@x + A@h[t-1] + b)\n"
    alone = rnncc.compile(text, "echo").Echo(IN, H).to(device)
    x, _ = batch(device, 0)
    layer = distribute_module(copy.deepcopy(alone), mesh)
    assert isinstance(layer.A_l0, DTensor)
    output, h = layer(distribute_tensor(x, mesh, [Shard(1)]))
    expected, last = alone(x)
    output.square().sum().backward()
    expected.square().sum().backward()
    found = {"output": output.detach(), "h_n": h.detach()} | gradients(layer)
    wanted = {"output": expected.detach(), "h_n": last.detach()} | gradients(alone)
    compare({k: whole(v) for k, v in found.items()}, wanted, CLOSE)


def distributed_tensors_per_sequence(device: str, folder: Path) -> None:
    """An input per sequence has the batch first, where other inputs have it second."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    text = "cell Given\ninput c: 3 per sequence\nstate h\nweights V: matrix\nh[t] = tanh(W@x + R@h[t-1] + V@c)\n"
    alone = rnncc.compile(text, "given").Given(IN, H).to(device)
    x, c = torch.randn(T, 5, IN, device=device), torch.randn(5, 3, device=device)
    layer = distribute_module(copy.deepcopy(alone), mesh)
    output, h = layer(distribute_tensor(x, mesh, [Shard(1)]), c=distribute_tensor(c, mesh, [Shard(0)]))
    expected = alone(x, c=c)
    compare({"y": whole(output.detach()), "h": whole(h.detach())}, {"y": expected[0], "h": expected[1]}, CLOSE)


def distributed_tensors_that_are_refused(device: str, folder: Path) -> None:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layer = rnncc.load("lstm").LSTM(IN, H).to(device)
    x, _ = batch(device, 0)
    given, states = distribute_tensor(x, mesh, [Shard(1)]), torch.zeros(1, x.shape[1], H, device=device)

    def refuses(call: Callable[[], Any], error: type[Exception], message: str) -> None:
        try:
            call()
        except error as found:
            assert message in str(found), found
            return
        raise AssertionError(f"no error that says {message}")

    refuses(lambda: layer(given), TypeError, "distribute_module(layer, mesh)")
    placed = distribute_module(copy.deepcopy(layer), mesh)
    refuses(lambda: placed(given.redistribute(mesh, [Shard(0)])), ValueError, "Shard(1), the batch, or Replicate()")
    refuses(lambda: placed(given, (states, states)), TypeError, "hx must be one of the same mesh")
    refuses(lambda: placed(given, lengths=[1] * x.shape[1]), TypeError, "lengths must be one of the same mesh")

    def shards(name: str, module: nn.Module, mesh: Any) -> None:
        for key, tensor in list(module.named_parameters(recurse=False)):
            module.register_parameter(key, nn.Parameter(distribute_tensor(tensor.data, mesh, [Shard(0)])))

    refuses(lambda: distribute_module(layer, mesh, shards)(given), ValueError, "takes replicated parameters")


def matrix_states(device: str, folder: Path) -> None:
    """A learned start that is a matrix; and matrices of hx, with which no loss depends on the start."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = rnncc.load("ttt_linear").TTT_Linear(IN, H, num_heads=2, bidirectional=True).to(device)
    x, _ = batch(device, 0)
    hx = tuple(torch.randn(2, x.shape[1], *shape, device=device) / 4 for shape in ((2, H // 2, H // 2), (H,)))
    ddp = DistributedDataParallel(copy.deepcopy(alone), find_unused_parameters=True)
    fsdp = fully_shard(copy.deepcopy(alone), mesh=mesh)
    tensors = distribute_module(copy.deepcopy(alone), mesh)
    for layer, given in ((layer, given) for layer in (ddp, fsdp, tensors) for given in ((), (hx,))):
        made = []
        for m in (layer, alone):
            split = own if m in (ddp, fsdp) else distribute_tensor
            rest = () if m is alone else (mesh, [Shard(1)]) if m is tensors else (1,)
            here = pytree.tree_map(lambda v, f=split, r=rest: f(v, *r) if r else v, (x, *given))
            m.zero_grad()
            output, last = m(*here)
            (output.square().sum() / output.numel()).backward()
            made.append(gradients(m) | ({"S": whole(last[0].detach())} if layer is tensors else {}))
        compare({key: whole(value) for key, value in made[0].items()}, made[1], CLOSE)


CASES = (
    distributed_tensors, distributed_tensors_of_a_step, distributed_buffers, distributed_tensors_per_sequence,
    distributed_tensors_that_are_refused, matrix_states,
    ddp, ddp_compiled, ddp_accumulates, ddp_autocast, fsdp, fsdp_from_meta, fsdp_accumulates, fsdp_mixed_precision,
    fsdp_clips_the_norm, checkpoint, sparse.sparse_ddp, sparse.sparse_fsdp, sparse.sparse_fsdp_mixed_precision,
    sparse.sparse_fsdp_from_meta, sparse.sparse_distributed_tensors,
)  # fmt: skip


def main(folder: Path, device: str) -> None:
    faulthandler.enable()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    results = {}
    for case in CASES:
        complaint = ""
        try:
            case(device, folder)
        except Exception:  # every rank goes on to the next case, and the test reads what was wrong
            complaint = traceback.format_exc()
        complaints: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(complaints, complaint)
        results[case.__name__] = "\n".join(filter(None, complaints))
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()
    # Some threads of torch 2.13 with gloo outlive its process groups. In 2 of 30 runs they aborted the interpreter's
    # exit, when the complaints of all ranks had long been gathered.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
