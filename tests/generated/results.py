"""A file of outcomes by seed, for runs that stop and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """The outcomes of seeds, in a JSON file. An outcome has a `kind`, `ok` if nothing is wrong, and the `version` of
    what was tested. `about`: what all outcomes of the file are of."""

    def __init__(self, path: Path, version: str, about: dict[str, Any]) -> None:
        self.path, self.version = path, version
        self.found: dict[str, Any] = {**about, "outcomes": {}}
        if path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))
        if other := {name: self.found.get(name) for name in about if self.found.get(name) != about[name]}:
            raise SystemExit(f"{path} holds another kind of run, with {other}: give another file")

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """The outcomes by seed."""
        found: dict[str, dict[str, Any]] = self.found["outcomes"]
        return found

    def is_done(self, seed: int) -> bool:
        """Whether a seed's outcome is known: what was wrong runs again at another version."""
        entry = self.outcomes.get(str(seed))
        return entry is not None and (entry["kind"] == "ok" or entry["version"] == self.version)

    def add(self, seed: int, outcome: dict[str, Any]) -> None:
        """Another outcome."""
        self.outcomes[str(seed)] = {**outcome, "version": self.version}

    def write(self) -> None:
        """All of it or nothing, so that a run can be stopped at any time."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        part.replace(self.path)
