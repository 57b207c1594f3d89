"""Builds the site: `make site`, or

    PYTHONPATH=benchmarks python docs/site/make.py [--out FOLDER] [--keep BRANCH]

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
from rnncc.version import VERSION


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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "mkdocs.yml")]
    subprocess.run(command, check=True, cwd=ROOT, env=_environment(out))
    return problems(out / "html")


def keep(out: Path, branch: str) -> None:
    """Build the site of this version once more, and commit it to a branch of git beside those of other versions, with a
    menu of all. Nothing is pushed. A patch version takes the place of the one before.

    Raises RnnccError where the extra is missing, CalledProcessError where mike does not do it."""
    with needs("docs", "the site of several versions"):
        import mike  # noqa: F401
    minor = VERSION.rpartition(".")[0]
    program = [sys.executable, "-c", "from mike.driver import main; main()"]
    config = ["--config-file", str(DOCS / "mkdocs.yml"), "--branch", branch]
    # mike starts `mkdocs` by its name.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    environment = _environment(out) | {"RNNCC_SITE_VERSIONS": "mike", "PATH": path}
    for words in (["deploy", "--update-aliases", "--title", VERSION, minor, "latest"], ["set-default", "latest"]):
        subprocess.run([*program, words[0], *config, *words[1:]], check=True, cwd=ROOT, env=environment)


def _environment(out: Path) -> dict[str, str]:
    out = out.resolve()
    folders = {"RNNCC_SITE_PAGES": str(out / "pages"), "RNNCC_SITE_HTML": str(out / "html")}
    # The theme's makers advertise what they make next.
    return os.environ | folders | {"NO_MKDOCS_2_WARNING": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--keep", metavar="BRANCH", help="also commit it to this branch, beside other versions' sites")
    given = parser.parse_args()
    out = given.out
    try:
        wrong = build(out)
        if given.keep and not wrong:
            keep(out, given.keep)
    except RnnccError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print("\n".join(wrong) or f"wrote {out / 'html' / 'index.html'}", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
