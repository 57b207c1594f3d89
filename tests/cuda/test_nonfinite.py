"""NaN and infinities on a GPU: they give what the reference gives, and other batch entries the same bits as without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rnncc import verify
from tests.cuda.harness import DTYPES, FUSED, Call, Packages, draw

pytestmark = pytest.mark.gpu

STEPS, BATCH, POISONED = 12, 6, 2
OTHERS = [entry for entry in range(BATCH) if entry != POISONED]


def nan(dtype: torch.dtype) -> Tensor:
    return torch.tensor(float("nan"), dtype=dtype)


def all_ones(dtype: torch.dtype) -> Tensor:
    """The NaN whose every bit is set: what waiting kernels may take for a word that has not come yet."""
    return torch.tensor(-1, dtype={2: torch.int16, 4: torch.int32}[dtype.itemsize]).view(dtype)


def infinity(dtype: torch.dtype) -> Tensor:
    return torch.tensor(float("inf"), dtype=dtype)


POISONS = pytest.mark.parametrize("poison", [nan, all_ones, infinity])
# gather and scatter in one block and in clusters, grid, alternating in all dtypes.
CASES = pytest.mark.parametrize(
    ("cell", "head_dim", "dtype"),
    [
        ("lstm", 64, ""),
        ("lstm", 256, ""),
        ("lstm", 768, ""),
        ("gru", 64, ""),
        ("gru", 768, ""),
        ("lstm", 192, ""),
        ("lstm", 512, ""),
    ]
    + [("lstm", 40, dtype) for dtype in DTYPES],
)


def clean(cell: str, head_dim: int, dtype: str, packages: Packages) -> Call:
    return draw(packages(cell), cell, head_dim, 1, BATCH, STEPS, DTYPES[dtype or dict(FUSED[cell])[head_dim]])


def poisoned(tensor: Tensor, *place: int, poison: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[place] = poison.to(tensor.device)
    return changed


def assert_as_reference(found: dict[str, Tensor], call: Call) -> None:
    """What is not finite is the reference's, and so, within the dtype's bound, is what is."""
    bound = verify.BOUNDS[call.streams[0].dtype]
    for name, expected in call.exact().run().items():
        ours = found[name].double()
        finite = expected.isfinite()
        assert torch.equal(ours.isfinite(), finite), name
        if name.startswith(("y", "final")):
            assert torch.equal(ours.isnan(), expected.isnan()), name
            infinite = expected.isinf()
            assert torch.equal(ours[infinite], expected[infinite]), name
        assert verify.relative_error(ours[finite], expected[finite]) <= bound, name


def assert_others_untouched(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit by bit, in all that has a batch: sequences [T, B, ...] and states [B, ...]."""
    for name, value in expected.items():
        if name.startswith("d_weight"):
            continue
        one, other = (t[:, OTHERS] if t.dim() == 3 else t[OTHERS] for t in (found[name], value))
        assert torch.equal(one, other) and other.isfinite().all(), name


@CASES
@POISONS
def test_in_streams(cell: str, head_dim: int, dtype: str, poison: object, packages: Packages) -> None:
    call = clean(cell, head_dim, dtype, packages)
    value = poison(call.streams[0].dtype)  # type: ignore[operator]
    (stream,) = call.streams
    bad = replace(call, streams=(poisoned(stream, 3, POISONED, poison=value),))
    found = bad.run()
    assert_as_reference(found, bad)
    assert_others_untouched(found, call.run())


@CASES
@POISONS
def test_in_states(cell: str, head_dim: int, dtype: str, poison: object, packages: Packages) -> None:
    call = clean(cell, head_dim, dtype, packages)
    value = poison(call.streams[0].dtype)  # type: ignore[operator]
    # An infinite h meets weights of both signs and is NaN at once; an infinite c stays what it is.
    bad = replace(call, states=(*call.states[:-1], poisoned(call.states[-1], POISONED, poison=value)))
    found = bad.run()
    assert_as_reference(found, bad)
    assert_others_untouched(found, call.run())


@CASES
@POISONS
def test_in_gradients(cell: str, head_dim: int, dtype: str, poison: object, packages: Packages) -> None:
    call = clean(cell, head_dim, dtype, packages)
    value = poison(call.streams[0].dtype)  # type: ignore[operator]
    output, *finals = call.cotangents
    bad = replace(call, cotangents=(poisoned(output, 7, POISONED, poison=value), *finals))
    found = bad.run()
    assert_as_reference(found, bad)
    assert_others_untouched(found, call.run())


@CASES
def test_in_weights(cell: str, head_dim: int, dtype: str, packages: Packages) -> None:
    call = clean(cell, head_dim, dtype, packages)
    for poison in (nan, all_ones):
        matrix = poisoned(call.weights[0], 5, 3, poison=poison(call.streams[0].dtype))
        bad = replace(call, weights=(matrix, *call.weights[1:]))
        found = bad.run()
        assert_as_reference(found, bad)
        assert found["y"][2:].isnan().all()


@CASES
def test_infinite_weights(cell: str, head_dim: int, dtype: str, packages: Packages) -> None:
    """Of a unit that stays positive, so that their product has a sign whatever was rounded: it saturates a gate."""
    call = clean(cell, head_dim, dtype, packages)
    unit, hidden = 3, call.states[0].shape[-1]
    (stream,) = (tensor.clone() for tensor in call.streams)
    states = tuple(tensor.clone() for tensor in call.states)
    stream[..., unit::hidden] = 3
    for state in states:
        state[..., unit] = 0.5
    matrix = poisoned(call.weights[0], 5, unit, poison=infinity(stream.dtype))
    bad = replace(call, streams=(stream,), states=states, weights=(matrix, *call.weights[1:]))
    found = bad.run()
    assert_as_reference(found, bad)
    assert found["y"].isfinite().all() and found["d_weight 0"].isnan().any()
