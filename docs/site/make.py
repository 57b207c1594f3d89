"""Builds the site: `make site`, or

    PYTHONPATH=benchmarks python docs/site/make.py [--out FOLDER]

It puts the pages together in build/site/pages, has mkdocs make build/site/html of them, and looks for dead links. The
extra `docs` has what it needs. Nothing is fetched, neither here nor by a reader's browser.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import site_gallery
from site_cells import shipped
from site_check import problems
from site_pages import DOCS, ROOT, Site

from rnncc.extras import needs
from rnncc.language.diagnostics import RnnccError
from rnncc.machine.paths import shipped_cells


def assemble(pages: Path) -> None:
    """The site's source in Markdown."""
    site = Site()
    site.add_pages()
    cells = [shipped(path.stem) for path in shipped_cells()]
    site.texts |= dict(site_gallery.files(cells))
    site.write(pages)


def build(out: Path) -> list[str]:
    """The site in `out`/html. Returns what is wrong with its links.

    Raises RnnccError where the extra is missing, CalledProcessError where mkdocs finds something wrong."""
    with needs("docs", "the site"):
        import material  # noqa: F401
        import mkdocs  # noqa: F401
        import mkdocstrings  # noqa: F401
    assemble(out / "pages")
    out = out.resolve()
    folders = {"RNNCC_SITE_PAGES": str(out / "pages"), "RNNCC_SITE_HTML": str(out / "html")}
    # The theme's makers advertise what they make next.
    environment = os.environ | folders | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml")]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    return problems(out / "html")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out
    try:
        wrong = build(out)
    except RnnccError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print("\n".join(wrong) or f"wrote {out / 'html' / 'index.html'}", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
