"""A class that derives from a layer's, in a module that other processes can import."""

from __future__ import annotations

from typing import Any

import rnncc

_Elman: Any = rnncc.load("elman").Elman


class Derived(_Elman):  # type: ignore[misc]
    """Adds one to the output."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """The layer's result, with the other output."""
        output, *rest = super().forward(*arguments, **keywords)
        return output + 1, *rest
