"""The dtypes that GPU kernels take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceScalar:
    """A dtype of streams and weights on a GPU: its C++ name, its name in symbols, its bytes. Arithmetic is float32
    whatever the dtype."""

    name: str
    suffix: str
    bytes: int


SCALARS = (
    DeviceScalar("float", "f32", 4),
    DeviceScalar("rnncc::bfloat16", "bf16", 2),
    DeviceScalar("rnncc::float16", "f16", 2),
)
HALVES = SCALARS[1:]
