"""TeX of `rnncc latex` as MathML, which browsers show without a script and without a font from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rnncc.extras import needs

_BEGIN_OR_END = re.compile(r"\\(begin|end)\{\w+\}")
# latex2mathml makes a letter at a time of a word in slanted or upright letters.
_LETTERS = re.compile(r'(?:<mi mathvariant="(italic|normal)">[^<]+</mi>)+')
_LETTER = re.compile(r'<mi mathvariant="\w+">([^<]+)</mi>')
# What latex2mathml writes, and what browsers show as TeX would.
_MENDED = (
    # A function's name is an identifier: an operator would have spaces around it.
    (re.compile(r"<mo>(?!mod<)([A-Za-z]{2,})</mo>"), r"<mi>\1</mi>"),
    # A space stands before it, and where no bracket follows it, behind it.
    (re.compile(r"(</mi>|</mn>|</msub>)(?=<mi>[A-Za-z]{2,}</mi>)"), r'\1<mspace width="0.167em"/>'),
    (re.compile(r"(<mi>[A-Za-z]{2,}</mi>)(?=<m(?:i|n|sub|sup|frac)\b)"), r'\1<mspace width="0.167em"/>'),
    # Chromium leaves wide gaps around what it stretches: brackets that are hardly larger than others are as these are.
    (re.compile(r'<mo [^>]*minsize="1\.2em"[^>]*>'), '<mo stretchy="false">'),
    # A sign after a bracket, a bar, a comma or an equals sign is no operation.
    (
        re.compile(r"(<mo[^>]*>(?:&#x(?:00028|0002C|0003D|0007C|0007B);|\()</mo>)<mo>(?=&#x02212;)"),
        r'\1<mo form="prefix">',
    ),
    # Brackets and bars are no operations either.
    (re.compile(r'<mo(?= [^>]*fence="true"|>&#x(?:0007C|02016);)'), '<mo lspace="0em" rspace="0em"'),
    (re.compile(r"<mo>(&#x0221E;)</mo>"), r"<mi>\1</mi>"),
    (re.compile(r'<mn mathvariant="bold">'), '<mn class="bold">'),
)


def inline(tex: str) -> str:
    """A formula in a line of text, without the dollars around it."""
    return f"<math>{_row(tex)}</math>"


def sentences(text: str) -> str:
    """Text with formulas between dollars, as HTML."""
    parts = text.split("$")
    return "".join(inline(part) if index % 2 else _plain(part) for index, part in enumerate(parts))


def display(align: str) -> str:
    """The rows of an `align` environment, one below the other and aligned. Their numbers are left out."""
    body = align.removeprefix(r"\begin{align}").removesuffix(r"\end{align}").replace(r"\notag", "")
    rows = "".join(f"<mtr>{''.join(_cells(row))}</mtr>" for row in _split(body, r"\\"))
    return f'<math display="block"><mtable displaystyle="true" class="align">{rows}</mtable></math>'


def _cells(row: str) -> Iterator[str]:
    left, right = _split(row, "&")
    for side, tex in (("left", left), ("right", right)):
        yield f'<mtd class="{side}">{_row(tex)}</mtd>'


def _split(tex: str, separator: str) -> list[str]:
    """The parts between separators that stand in no environment."""
    parts, depth, at, start = [], 0, 0, 0
    while at < len(tex):
        if found := _BEGIN_OR_END.match(tex, at):
            depth += 1 if found[1] == "begin" else -1
            at = found.end()
        elif depth == 0 and tex.startswith(separator, at):
            parts.append(tex[start:at])
            start = at = at + len(separator)
        else:
            # A command is one piece: the second backslash of `\\` begins none.
            at += 2 if tex[at] == "\\" else 1
    return [*parts, tex[start:]]


def _row(tex: str) -> str:
    """The elements of a formula. Raises ValueError where a command is not known."""
    with needs("docs", "the site's equations"):
        from latex2mathml.converter import convert

    found = re.fullmatch(r"<math[^>]*>(.*)</math>", convert(tex.strip()) if tex.strip() else "<math></math>")
    if found is None or "\\" in found[1]:
        raise ValueError(f"no MathML for {tex}")
    made = _LETTERS.sub(_word, found[1])
    for pattern, mended in _MENDED:
        made = pattern.sub(mended, made)
    return made


def _word(letters: re.Match[str]) -> str:
    text = "".join(_LETTER.findall(letters[0]))
    if letters[1] == "italic":
        return f'<mi class="slanted">{text}</mi>'
    return f'<mi mathvariant="normal">{text}</mi>' if len(text) == 1 else f"<mi>{text}</mi>"


def _plain(text: str) -> str:
    """Words between formulas: TeX's escapes are undone."""
    plain = re.sub(r"\\([_%&#$])", r"\1", text)
    if "\\" in plain:
        raise ValueError(f"no HTML for {text}")
    return plain.replace("&", "&amp;").replace("<", "&lt;")
