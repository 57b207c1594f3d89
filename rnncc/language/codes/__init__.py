"""The table of diagnostic codes: the one place for what each of them means.

The hundreds digit is the origin: 1 parse, 2 check (from 251 warnings, from 271 notes on performance),
4 schedule, 6 build, 7 load and construction. A code is never used again for something else.
"""

from __future__ import annotations

from rnncc.language.codes.check import CHECK
from rnncc.language.codes.declare import DECLARE
from rnncc.language.codes.entry import Code
from rnncc.language.codes.later import LATER
from rnncc.language.codes.parse import PARSE
from rnncc.language.codes.warnings import WARNINGS

CODES: dict[str, Code] = {row.code: row for row in (*PARSE, *CHECK, *DECLARE, *WARNINGS, *LATER)}

__all__ = ["CODES", "Code"]
