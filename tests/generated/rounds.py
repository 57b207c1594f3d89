"""Loops over rounds of equations, with parameters of their own."""

from __future__ import annotations

from random import Random

# Equations of a round by what they need: of a state, of inputs. `{s}` is the value, `{u}` another of the round.
_OF_STATES = (
    ("{s}[l] = tanh(tanh(R@{s}[l - 1] + (W@x if l == 1 else 0) + b))",),
    ("{s}[l] = sin({s}[l - 1]*sigmoid(V@{s}[l - 1]) + g*(mean({s}[l - 1]) if l > 1 else 0))",),
    ("{s}[l] = tanh(mean(Q@{s}[l - 1]))",),
    ("{s}[l] = sin(0.5*(softmax({s}[l - 1]) + {s}[0]))",),
    ("{u}[l] = sigmoid(V@{s}[l - 1] + b)", "{s}[l] = {u}[l]*{s}[l - 1] + (1 - {u}[l])*tanh(Q@({u}[l]*{s}[l - 1]) + g)"),
    ("{u}[l] = sigmoid(g*{s}[l - 1])", "{s}[l] = {u}[l]*{s}[l - 1] + 0.5*(1 - {u}[l])"),
)
_OF_INPUTS = (
    ("{s}[l] = tanh(g*{s}[l - 1] + b)",),
    ("{s}[l] = sin(0.5*{s}[l - 1] + g*{s}[l - 1][t-1])",),
    ("{u}[l] = sigmoid(g*{s}[l - 1] + b)", "{s}[l] = {u}[l]*{s}[l - 1] + 0.25*{u}[l][t-2]"),
)


def rounds(random: Random, name: str, start: str, level: str) -> tuple[list[str], list[str], str]:
    """Declarations and equations, and the text of the last round's value, which lies between -1.5 and 1.5."""
    count = random.choice((1, 2, 3))
    declarations = [f"const L{name} = {count}", f"local {name}: H"]
    body = [line.format(s=name, u=f"{name}u") for line in random.choice(_OF_STATES if level == "S" else _OF_INPUTS)]
    if any(f"{name}u" in line for line in body):
        declarations.append(f"local {name}u: H")
    first = f"{name}[0] = tanh({start})"
    if len(body) == 1 and random.random() < 0.25:
        # A loop in a loop: the rounds of both are counted through.
        inner = body[0].replace("[l]", "[2*l + k - 2]").replace("[l - 1]", "[2*l + k - 3]")
        inner = inner.replace("l == 1", "2*l + k == 3").replace("l > 1", "2*l + k > 3")
        return declarations, [first, f"for l in 1..L{name}:\n    for k in 1..2:\n        {inner}"], f"{name}[2*L{name}]"
    lines = "".join(f"\n    {line}" for line in body)
    return declarations, [first, f"for l in 1..L{name}:{lines}"], f"{name}[L{name}]"
