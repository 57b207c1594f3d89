"""Train a character model whose heads are divided among processes: tensor parallelism for recurrent layers.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py [--steps N]

With num_heads the recurrent matrix is block-diagonal, so no head reads another one. A rank runs the whole loop of its
own heads without a word to the other ranks. It stores no weights, optimiser state or states of theirs. Ranks talk once
per block: the product after the loop, which mixes the heads, is a sum over ranks (Shoeybi et al. 2019,
arXiv:1909.08053, section 3, whose f and g are `copied` and `summed` here). On any number of processes the losses are
the same, up to rounding.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from char_lm import Text
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional

import rnncc
from rnncc.runtime.modules.layer import RecurrentLayer

WIDTH, HIDDEN, HEADS, BLOCKS = 64, 128, 4, 2


def copied(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """x, which every rank has; its gradient is the sum of what each rank's heads give."""
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    own: Tensor = whole.to_local(grad_placements=[Partial()])
    return own


def summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over ranks; every rank's x gets the sum's gradient."""
    whole = DTensor.from_local(x, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()])
    total: Tensor = whole.to_local()
    return total


def own_heads(layer: RecurrentLayer, mesh: DeviceMesh) -> RecurrentLayer:
    """A layer of this rank's heads alone, with their part of the values. By the names of the text, every parameter has
    the rows of one head after those of another: matrices [H, I], recurrent ones [heads, H/heads, H/heads], biases [H].
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    if layer.num_heads % ranks:
        raise ValueError(f"{layer.num_heads} heads cannot be divided among {ranks} processes")
    sizes = layer.input_size, layer.hidden_size // ranks
    # On the meta device no random number is drawn, which ranks in other numbers would draw otherwise.
    own = type(layer)(*sizes, num_heads=layer.num_heads // ranks, device="meta").to_empty(device="cpu")
    whole = layer.gate_parameters()
    with torch.no_grad():
        for name, value in own.gate_parameters().items():
            value.copy_(whole[name].chunk(ranks)[rank])
    return own


class Block(nn.Module):
    """x + mix(heads(norm(x))); a rank has its heads, and the columns of `mix` that read them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.norm = nn.LayerNorm(WIDTH)
        # Every rank draws the same values, whatever the number of ranks, and keeps its part.
        self.heads = own_heads(rnncc.load("slstm").sLSTM(WIDTH, HIDDEN, num_heads=HEADS), mesh)
        mix = nn.Linear(HIDDEN, WIDTH)
        self.mix = nn.Parameter(mix.weight.detach().chunk(mesh.size(), 1)[mesh.get_local_rank()].clone())
        self.bias = mix.bias

    def forward(self, x: Tensor) -> Tensor:
        """The result [T, B, WIDTH] is the same on every rank."""
        output, _ = self.heads(copied(self.norm(x), self.mesh))
        return x + summed(functional.linear(output, self.mix), self.mesh) + self.bias


class Model(nn.Sequential):
    """Indices [T, B] to logits [T, B, characters]."""

    def __init__(self, characters: int, mesh: DeviceMesh) -> None:
        blocks = [Block(mesh) for _ in range(BLOCKS)]
        super().__init__(nn.Embedding(characters, WIDTH), *blocks, nn.Linear(WIDTH, characters))


def train(model: nn.Module, text: Text, steps: int, device: str) -> None:
    """Every rank sees the same batches. Prints the loss, ten times at most."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(1, steps + 1):
        pieces = text.batch(generator).to(device)
        loss = functional.cross_entropy(model(pieces[:-1]).flatten(0, 1), pieces[1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if dist.get_rank() == 0 and step % max(1, steps // 10) == 0:
            print(f"step {step:4}  loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Join the other processes, train, say what a rank holds."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--steps", type=int, default=100)
    options = arguments.parse_args()
    if "WORLD_SIZE" not in os.environ:
        arguments.error("start it by torchrun: torchrun --nproc-per-node 2 examples/tensor_parallel.py")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(0)
    text = Text()
    model = Model(len(text.characters), mesh).to(device)
    if dist.get_rank() == 0:
        held = sum(parameter.numel() for parameter in model.parameters())
        print(f"{HEADS} heads on {mesh.size()} processes: each has {held:,} parameters", flush=True)
    train(model, text, options.steps, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
