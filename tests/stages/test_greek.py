"""Greek letters: the text has them, and nothing else."""

from __future__ import annotations

import pytest

from rnncc.language.diagnostics import render
from rnncc.language.greek import GREEK, in_ascii
from rnncc.language.names import reserved

from .checking import marked, the_error, typed

GREEK_CELL = (
    "state h, μ: Δ = 1",
    "dim Δ = 3",
    "const τ = 0.5, λ = 2",
    "weights Φ: matrix, Ω: matrix",
    "α, β = σ(W·x + R·h[t-1] + b)",
    "ε[0] = tanh(W_α@x)⊙β",
    "μ[t] = τ*μ[t-1] + λ*(Φ@x)",
    "h[t] = ε[0]*(Ω@μ[t]) + π",
    "init b_α = 1",
)
ENGLISH = {
    "μ": "mu", "Δ": "Delta", "τ": "tau", "λ": "lam", "Φ": "Phi", "Ω": "Omega", "α": "alpha", "β": "beta",
    "ε": "epsilon", "π": "pi", "σ": "sigmoid", "·": "@", "⊙": "*",
}  # fmt: skip


def english(line: str) -> str:
    """The line as a keyboard without Greek letters writes it."""
    return "".join(ENGLISH.get(character, character) for character in line)


def test_a_cell_is_the_same_with_english_names() -> None:
    assert typed(*GREEK_CELL) == typed(*map(english, GREEK_CELL))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("α", "alpha"),
        ("Δt", "Deltat"),
        ("Δ_t", "Delta_t"),
        ("λ", "lam"),
        ("Λ", "Lambda"),
        ("σ", "sigmoid"),
        ("σ_g", "sigma_g"),
        ("ϕ", "phi"),  # another form of φ
        ("µ", "mu"),  # the sign for a millionth
        ("𝛂", "alpha"),
        ("ς", "sigma"),
        ("𝐖", "W"),
        ("ｂ１", "b1"),
        ("h", "h"),
        ("é", "é"),
        ("ά", "ά"),
        ("x²", "x²"),
        ("θ₁", "θ₁"),
    ],
)
def test_spelling(word: str, name: str) -> None:
    assert in_ascii(word) == name


def test_every_letter_can_name_a_value() -> None:
    assert len(GREEK) == 49
    assert [letter for letter, name in GREEK.items() if reserved(name)] == ["π"]


def test_carets_stand_under_letters_of_any_width() -> None:
    found = the_error("state h", "α = σ(W@x)", "h[t] = 𝛂*tanh(𝐖@x) + ＦＦ")
    assert (marked(found), found.message) == ("ＦＦ", "'ＦＦ' is not defined")
    assert render(found).splitlines()[3:5] == [
        "4 | h[t] = 𝛂*tanh(𝐖@x) + ＦＦ",
        "  |                      ^^^^ not defined",
    ]


def test_sigma_and_pi_may_be_written_both_ways() -> None:
    both = typed("state h", "α = sigmoid(W@x)*π", "h[t] = σ(R@h[t-1])*pi + α")
    assert both == typed("state h", "alpha = σ(W@x)*pi", "h[t] = sigmoid(R@h[t-1])*π + alpha")
