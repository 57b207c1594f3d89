"""Train a character model with a cell of your own, beside torch.nn.LSTM with the same budget, on a real text.

    python examples/char_lm.py [--cell FILE.rnn] [--hidden N] [--heads N] [--steps N] [--seed N] [--eager-loop]
    python examples/char_lm.py --cell examples/mydelta.rnn --hidden 128 --heads 4 --eager-loop

The text is CPython's language reference as `pydoc` carries it (`pydoc_data.topics`, about 460,000 characters, Python
Software Foundation License Version 2): it is on every machine with Python. The last tenth is for validation. Both
models see the same batches for the same number of steps, start from their own default values, and have about the same
number of parameters. The second line trains a cell whose state is a matrix, and first compares it with a loop in
Python: the numbers, and the time.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from eager_loop import compare
from torch import Tensor, nn
from torch.nn import functional

import rnncc

BATCH, STEPS_IN_TIME, EMBEDDING = 32, 64, 64
VALIDATION_COLUMNS = 64


class Text:
    """The text as indices of characters, cut into a part to train on and one to validate with."""

    def __init__(self) -> None:
        topics = pydoc_data.topics.topics
        text = "\n\n".join(topics[name].strip() for name in sorted(topics))
        text = text.encode("ascii", "replace").decode("ascii")
        self.characters = sorted(set(text))
        self.index = {character: i for i, character in enumerate(self.characters)}
        data = torch.tensor([self.index[character] for character in text])
        cut = len(data) * 9 // 10
        self.train, self.validation = data[:cut], data[cut:]

    def batch(self, generator: torch.Generator) -> Tensor:
        """Random pieces of the training part: [STEPS_IN_TIME + 1, BATCH]."""
        starts = torch.randint(len(self.train) - STEPS_IN_TIME, (BATCH,), generator=generator)
        return torch.stack([self.train[start : start + STEPS_IN_TIME + 1] for start in starts.tolist()], 1)

    def held_out(self) -> Tensor:
        """The validation part side by side: [T, VALIDATION_COLUMNS]."""
        steps = len(self.validation) // VALIDATION_COLUMNS
        return self.validation[: steps * VALIDATION_COLUMNS].view(VALIDATION_COLUMNS, steps).t().contiguous()


class Model(nn.Module):
    """Embedding, a recurrent layer, a linear layer: the layer is the only thing that differs."""

    def __init__(self, characters: int, hidden: int, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, EMBEDDING)
        self.recurrent = layer(EMBEDDING, hidden)
        self.predict = nn.Linear(hidden, characters)

    def forward(self, indices: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits [T, B, characters] and the state after the last step."""
        output, state = self.recurrent(self.embed(indices), state)
        return self.predict(output), state


def bits_per_character(model: Model, pieces: Tensor) -> float:
    """The loss on [T, B] indices, in bits."""
    with torch.no_grad():
        logits, _ = model(pieces[:-1])
        nats = functional.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten())
    return nats.item() / math.log(2)


def train(name: str, model: Model, text: Text, steps: int, seed: int = 0) -> float:
    """Train for a number of steps, print the validation loss five times, return the last one (bits a character)."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps, pct_start=0.1)
    held_out = text.held_out()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: {parameters:,} parameters, {steps} steps", flush=True)
    started = time.perf_counter()
    loss_bits = math.nan
    for step in range(1, steps + 1):
        pieces = text.batch(generator)
        logits, _ = model(pieces[:-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), pieces[1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            loss_bits = bits_per_character(model, held_out)
            seconds = time.perf_counter() - started
            print(f"  step {step:5}  validation {loss_bits:.3f} bits per character  {seconds:5.1f} s", flush=True)
    return loss_bits


def sample(model: Model, text: Text, prompt: str, length: int) -> str:
    """Continue the prompt, one character at a time: the state goes in and comes out."""
    generator = torch.Generator().manual_seed(1)
    written = list(prompt)
    state = None
    indices = torch.tensor([text.index[character] for character in prompt]).unsqueeze(1)
    with torch.no_grad():
        for _ in range(length):
            logits, state = model(indices, state)
            # Temperature 0.6: mostly likely characters.
            weights = functional.softmax(logits[-1, 0] / 0.6, -1)
            indices = torch.multinomial(weights, 1, generator=generator).view(1, 1)
            written.append(text.characters[int(indices)])
    return "".join(written)


def lstm_hidden_size(characters: int, goal: int) -> int:
    """The hidden size that gives nn.LSTM's model at most `goal` parameters."""
    hidden = 1
    # Two biases a gate, W and R; the linear layer; the embedding.
    while 4 * (hidden + 1) * (EMBEDDING + hidden + 3) + (hidden + 2) * characters + characters * EMBEDDING <= goal:
        hidden += 1
    return hidden


def main() -> None:
    """Parse the arguments, train both models, print the comparison and a sample."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mycell = Path(__file__).with_name("mycell.rnn")
    arguments.add_argument("--cell", type=Path, default=mycell, help="a file with a cell (mycell.rnn beside this file)")
    arguments.add_argument("--hidden", type=int, default=224, help="the hidden size of the cell's layer (224)")
    arguments.add_argument("--heads", type=int, default=1, help="heads of the cell's layer; they divide --hidden (1)")
    arguments.add_argument("--steps", type=int, default=400, help="steps of training for each model (400)")
    arguments.add_argument("--seed", type=int, default=0, help="of the models' first values and of the batches (0)")
    compares = "first compare the layer with a loop in Python (mycell.rnn and mydelta.rnn)"
    arguments.add_argument("--eager-loop", action="store_true", help=compares)
    options = arguments.parse_args()

    text = Text()
    print(f"text: {len(text.train):,} characters to train on, {len(text.validation):,} to validate with")
    started = time.perf_counter()
    package = rnncc.load(options.cell)
    name = package.__all__[0]
    print(f"{name} loaded from {options.cell.name} in {time.perf_counter() - started:.1f} s")

    # The state that goes on to the next character holds x[t-1] too, where the cell reads it.
    layer_of_cell = partial(getattr(package, name), num_heads=options.heads, return_delays=True)
    torch.manual_seed(options.seed)
    ours = Model(len(text.characters), options.hidden, layer_of_cell)
    budget = sum(parameter.numel() for parameter in ours.parameters())
    torch.manual_seed(options.seed)
    theirs = Model(len(text.characters), lstm_hidden_size(len(text.characters), budget), nn.LSTM)

    layer: Any = ours.recurrent
    print(layer.explain().splitlines()[0])  # what runs it
    if options.eager_loop:
        compare(name, layer, ours.embed(text.held_out()[:STEPS_IN_TIME, :BATCH]))

    loss_ours = train(name, ours, text, options.steps, options.seed)
    loss_theirs = train("nn.LSTM", theirs, text, options.steps, options.seed)
    print(f"\n{name} {loss_ours:.3f}, nn.LSTM {loss_theirs:.3f} bits per character after {options.steps} steps each")
    print(f"\n{name} writes:\n")
    print(sample(ours, text, "The statement ", 400))


if __name__ == "__main__":
    main()
