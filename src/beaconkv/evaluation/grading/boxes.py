r"""Finding ``\boxed{...}`` in a text, in one pass."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Without braces TeX takes one token, but models mean the whole number. Words do not count: "in \boxed please".
_BARE = re.compile(r"[-+]?\d+(?:[.,/]\d+)*|\\(?!boxed|fbox)[A-Za-z]+(?:\{[^{}]*\})*|[A-Za-z](?![A-Za-z])")


def last_box(text: str) -> str | None:
    r"""The content of the last complete box of a text.

    A box is ``\boxed{...}`` or ``\fbox{...}`` whose braces balance (``\{`` and ``\}`` are no braces), or
    ``\boxed 5`` without braces. A box within a box belongs to the outer one, unless the outer one never closes.
    Blank boxes ("put it in \boxed{}") are skipped.

    Returns:
        The content, stripped, with the commands of inner boxes removed; None if there is no such box.
        Takes time linear in the length of the text.
    """
    closing = _closing_braces(text)
    found, position = None, 0
    while match := _BOX.search(text, position):
        position = start = match.end()
        content = ""
        if text[start : start + 1] == "{":
            if start in closing:
                position = closing[start] + 1
                content = _BOX.sub("", text[start + 1 : closing[start]]).strip()
        elif bare := _BARE.match(text, start):
            position, content = bare.end(), bare.group()
        found = content if content.strip("{} \t\n") else found
    return found


def _closing_braces(text: str) -> dict[int, int]:
    """Index of each opening brace that is closed -> index of its closing brace."""
    open_braces: list[int] = []
    closing: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            open_braces.append(match.start())
        elif match.group() == "}" and open_braces:
            closing[open_braces.pop()] = match.start()
    return closing
