"""What the compiler says of a text: every finding, and what it made of the cells."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from functools import cached_property

from rnncc.editing.names import Index
from rnncc.ir.adjoint import Adjoint
from rnncc.ir.compilation import Compilation
from rnncc.ir.request import Request
from rnncc.language.diagnostics import Diagnostic, RnnccError
from rnncc.language.read import from_text
from rnncc.language.source import Source
from rnncc.pipeline import compile_cells


def findings(request: Request, *, pedantic: bool = False) -> tuple[Compilation | None, list[Diagnostic]]:
    """The cells of a text, where it has no mistake, and all that is wrong with it, in the order of the text."""
    from rnncc.language.codes import CODES

    made: Compilation | None = None
    try:
        made = compile_cells(request, "partition")
        found = [diagnostic for cell in made.cells for diagnostic in cell.warnings]
    except RnnccError as error:
        found = list(error.diagnostics)
    kept = [diagnostic for diagnostic in found if pedantic or not CODES[diagnostic.code].pedantic]
    return made, sorted(kept, key=lambda diagnostic: diagnostic.span.start)


@dataclass
class Analysis:
    """A text as an editor has it. `crash` is the traceback of a bug of rnncc that the text met."""

    source: Source
    made: Compilation | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    crash: str = ""

    @cached_property
    def index(self) -> Index:
        """The names of the text."""
        return Index(self.source)

    @cached_property
    def adjoints(self) -> tuple[tuple[Adjoint, ...], ...]:
        """The backward of each cell's loops; nothing where the text has a mistake."""
        made = compile_cells(self.made.request, "differentiate").cells if self.made is not None else ()
        return tuple(cell.adjoints for cell in made)


def analyse(name: str, text: str) -> Analysis:
    """Look at a text. Raises nothing: half-typed text may be anything, and a bug is part of what is said."""
    analysis = Analysis(Source(name, text))
    try:
        analysis.made, analysis.diagnostics = findings(Request(from_text(name, text), "cell"))
    except RnnccError as error:
        analysis.diagnostics = list(error.diagnostics)
    except Exception:
        analysis.crash = traceback.format_exc()
    return analysis
