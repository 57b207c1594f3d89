"""State tracking: train on short sequences, test on much longer ones (the task of FlashRNN, Pöppel et al. 2024).

    python examples/state_tracking.py

Two problems. Parity: is the number of ones so far odd? Composition in A5: which of the 60 even permutations of five
things is the product of all permutations so far? A5 is the smallest group that is not solvable. Cells with a diagonal
affine recurrence are believed to be unable to compose in such a group (Merrill, Petty, Sabharwal, "The Illusion of
State in State-Space Models", 2024). The recurrent matrix of an LSTM or an sLSTM is enough: they learn it on at most 40
steps and still do it over 1,000. minGRU, which has no recurrent matrix, does not even learn parity here.
"""

from __future__ import annotations

import itertools
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import rnncc

TRAIN_STEPS, BATCH = 40, 64
TEST_STEPS = (40, 256, 1000)


class Group:
    """A finite group: its multiplication table [n, n] and the elements that sequences are made of."""

    def __init__(self, elements: list[tuple[int, ...]], generators: list[tuple[int, ...]]) -> None:
        place = {element: i for i, element in enumerate(elements)}
        # (a b)(i) = a(b(i))
        self.table = torch.tensor([[place[tuple(a[i] for i in b)] for b in elements] for a in elements])
        self.generators = torch.tensor([place[generator] for generator in generators])
        self.identity = place[tuple(range(len(elements[0])))]

    def draw(self, steps: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which generator comes at each step, and the product so far: both [steps, batch]."""
        inputs = torch.randint(len(self.generators), (steps, batch), generator=generator)
        product = torch.full((batch,), self.identity)
        products = []
        for step in inputs:
            product = self.table[self.generators[step], product]
            products.append(product)
        return inputs, torch.stack(products)


def is_even(permutation: tuple[int, ...]) -> bool:
    """Whether the permutation is a product of an even number of swaps."""
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


PARITY = Group([(0, 1), (1, 0)], [(0, 1), (1, 0)])
A5 = Group(
    [permutation for permutation in itertools.permutations(range(5)) if is_even(permutation)],
    # A turn of three and a turn of five: together they make all 60.
    [(1, 2, 0, 3, 4), (1, 2, 3, 4, 0)],
)


class Tracker(nn.Module):
    """Embedding, one recurrent layer, a linear layer that says at every step what the product is."""

    def __init__(self, group: Group, layer: type[nn.Module], hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(group.generators), hidden)
        self.recurrent = layer(hidden, hidden)
        self.answer = nn.Linear(hidden, len(group.table))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [T, B, elements]."""
        output, _ = self.recurrent(self.embed(inputs))
        logits: Tensor = self.answer(output)
        return logits


def train(group: Group, layer: type[nn.Module], hidden: int, steps: int) -> Tracker:
    """Train on sequences that grow from 2 to TRAIN_STEPS steps during the first half."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = Tracker(group, layer, hidden)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        length = min(TRAIN_STEPS, 2 + step * 2 * TRAIN_STEPS // steps)
        inputs, products = group.draw(length, BATCH, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), products.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model


def accuracy(model: Tracker, group: Group, steps: int) -> float:
    """How often the answer is right over the last 16 steps of sequences of that length."""
    inputs, products = group.draw(steps, 128, torch.Generator().manual_seed(2))
    with torch.no_grad():
        right = model(inputs).argmax(-1) == products
    return float(right[-16:].float().mean())


def main() -> None:
    """Train each cell on each problem, print a table."""
    layers = {
        "LSTM": rnncc.load("lstm").LSTM,
        "sLSTM": rnncc.load("slstm").sLSTM,
        "minGRU": rnncc.load("mingru").minGRU,
    }
    print(f"trained on up to {TRAIN_STEPS} steps; right answers at the end of sequences of so many steps:\n")
    print(f"{'':8} {'cell':8}" + "".join(f"{steps:>8}" for steps in TEST_STEPS) + "    trained in")
    for task, group, hidden, steps in (("parity", PARITY, 64, 300), ("A5", A5, 128, 600)):
        for name, layer in layers.items():
            started = time.perf_counter()
            model = train(group, layer, hidden, steps)
            seconds = time.perf_counter() - started
            found = "".join(f"{accuracy(model, group, length):8.1%}" for length in TEST_STEPS)
            print(f"{task:8} {name:8}{found} {seconds:9.1f} s", flush=True)


if __name__ == "__main__":
    main()
