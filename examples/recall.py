"""Associative recall: a cell whose memory is a matrix beside torch.nn.LSTM with as many parameters.

    python examples/recall.py [--steps N] [--seed N] [--pairs N] [--hidden N]

A sequence shows pairs, each a key and then its value, and then asks for all keys in another order. At each question
the model answers with the value. This is multi-query associative recall (Arora et al., "Zoology", 2023,
arXiv:2312.04927), without the filler between questions. Keys have new values in every sequence, so nothing can be
learned by heart: a model has to write the pairs down as they come. The delta rule does just that, because its state
is a matrix from keys to values (mydelta.rnn). An LSTM has a vector to keep them in, and must find out how.

Before it trains, the program compares the compiled layer with a loop in Python: the numbers, and the time. On a machine
that is busy with other things, OMP_NUM_THREADS=1 makes all of it faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from eager_loop import compare
from torch import Tensor, nn
from torch.nn import functional

import rnncc

KEYS, VALUES, EMBEDDING, BATCH = 64, 32, 64, 32


def draw(pairs: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences [3*pairs, batch] of tokens, keys before values, and the answers [pairs, batch] to their last part."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (batch, pairs), generator=generator)
    order = torch.rand(batch, pairs, generator=generator).argsort(1)
    shown = torch.stack([keys, KEYS + values], 2).flatten(1)
    asked, answers = keys.gather(1, order), values.gather(1, order)
    return torch.cat([shown, asked], 1).t(), answers.t()


class Model(nn.Module):
    """Embedding, one recurrent layer, a linear layer that answers: the recurrent layer is the only difference."""

    def __init__(self, layer: Callable[[int, int], nn.Module], hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(KEYS + VALUES, EMBEDDING)
        self.recurrent = layer(EMBEDDING, hidden)
        self.answer = nn.Linear(hidden, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [T/3, B, values]: those of the last third, which asks."""
        output, _ = self.recurrent(self.embed(tokens))
        logits: Tensor = self.answer(output[-(len(tokens) // 3) :])
        return logits


def size(model: nn.Module) -> int:
    """How many parameters it has."""
    return sum(parameter.numel() for parameter in model.parameters())


def lstm_hidden_size(goal: int) -> int:
    """The hidden size that gives nn.LSTM's model at most `goal` parameters."""
    hidden = 1
    with torch.device("meta"):  # no memory, no random numbers
        while size(Model(nn.LSTM, hidden + 1)) <= goal:
            hidden += 1
    return hidden


def accuracy(model: Model, pairs: int, seed: int) -> float:
    """The share of right answers, on sequences that training does not draw."""
    tokens, answers = draw(pairs, 256, torch.Generator().manual_seed(10_000 + seed))
    with torch.no_grad():
        return float((model(tokens).argmax(-1) == answers).float().mean())


def train(name: str, model: Model, pairs: int, steps: int, seed: int) -> float:
    """Train for a number of steps, print the accuracy ten times, return the last one."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps, pct_start=0.1)
    print(f"\n{name}: {size(model):,} parameters, {steps} steps", flush=True)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        tokens, answers = draw(pairs, BATCH, generator)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), answers.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % max(1, steps // 10) == 0:
            right, passed = accuracy(model, pairs, seed), time.perf_counter() - started
            print(f"  step {step:5}  loss {loss.item():.3f}  right {right:6.1%}  {passed:5.1f} s", flush=True)
    return accuracy(model, pairs, seed)


def main() -> None:
    """Parse the arguments, compare the compiled cell with a Python loop, train both models, print the comparison."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--steps", type=int, default=500, help="steps of training for each model (500)")
    arguments.add_argument("--seed", type=int, default=0, help="of the models' first values and of the data (0)")
    arguments.add_argument("--pairs", type=int, default=16, help=f"pairs in a sequence, at most {KEYS} (16)")
    arguments.add_argument("--hidden", type=int, default=64, help="the hidden size of the layer of mydelta.rnn (64)")
    options = arguments.parse_args()
    if options.steps < 1 or not 1 <= options.pairs <= KEYS:
        arguments.error(f"--steps is 1 or more, and --pairs is from 1 to {KEYS}")

    print(f"{options.pairs} pairs, then {options.pairs} questions: {3 * options.pairs} steps in time")
    print(f"an answer that is guessed among the {VALUES} values is right at {1 / VALUES:.1%}")
    layer = rnncc.load(Path(__file__).with_name("mydelta.rnn")).MyDelta
    torch.manual_seed(options.seed)
    ours = Model(layer, options.hidden)
    theirs = Model(nn.LSTM, lstm_hidden_size(size(ours)))

    tokens, _ = draw(options.pairs, BATCH, torch.Generator().manual_seed(options.seed))
    compare("MyDelta", ours.recurrent, ours.embed(tokens))

    right_ours = train("MyDelta", ours, options.pairs, options.steps, options.seed)
    right_theirs = train("nn.LSTM", theirs, options.pairs, options.steps, options.seed)
    print(f"\nright answers after {options.steps} steps each: MyDelta {right_ours:.1%}, nn.LSTM {right_theirs:.1%}")


if __name__ == "__main__":
    main()
