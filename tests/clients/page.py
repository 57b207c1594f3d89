"""The examples of docs/clients.md, for the tests of their libraries."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import torch
from torch import nn

from tests.docs.pages import DOCS, read


def example(section: str) -> Any:
    """What the Python blocks of a section define, run one after the other, as a module."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", read(DOCS / "clients.md"), re.DOTALL | re.MULTILINE)
    module: Any = types.ModuleType(f"clients_{section.replace('-', '_')}")
    sys.modules[module.__name__] = module  # where pickle looks for classes
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, f"docs/clients.md, {section}", "exec"), vars(module))
    return module


def is_rnncc(module: nn.Module) -> bool:
    """Whether it is a layer of rnncc's."""
    return type(module).__module__.startswith("rnncc")


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same to float32 rounding, tensor by tensor."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
