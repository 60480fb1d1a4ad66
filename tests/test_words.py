"""Comments, docstrings, messages, help and documents use plain words, and parameters start with their quantity."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.is_file() and path.name != "log.md"  # the log reports the past in the words of its time
]

BANNED = re.compile(
    r"""\b(?:
    whoever | whomever | nobody | somebody | anybody
    | so\ (?:many|much)
    | told | tells | by\ name | ask(?:s|ed)?\ for
    | turn(?:s|ed|ing)?\ (?:back|forward|to\ now|to\ the\ (?:current|next))
    | houses? | lasting | walls | floors? | doors? | roads? | stretch(?:es)? | anew
    | hand(?:s|ed|ing)\ (?:it\ |them\ |this\ |out\ |over\ |on\ |back\ )?to
    | travels | lives\ (?:in|and|on|with)
    | (?:kept|keeps?|set|taken|stands?|stays?)\ apart
    | in\ pieces | piece\ by\ piece | pieces?\ of\ (?:a|the)\ (?:prompt|text|input|step)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Metaphors, and words in the place of the field's noun: rotate, stacked, chunk, unsupported, separate, "number of"."""

ALLOWED = {"cannot be told": "verdict of a comparison in every result file, see docs/evaluation.md"}
"""Phrase -> why it stays."""

OPENERS = re.compile(
    r"(?:of|see|takes?|tells?|told|what|whose|whom|who|where|which|how|so|as|those|they|that|for|with|without|when)\b",
    re.IGNORECASE,
)
"""First words that leave the quantity out: "Of the sampling." in place of "Random seed of the sampling."."""


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers: of a document all, of a source file those of comments and strings."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def find_banned(text: str) -> list[str]:
    for phrase in ALLOWED:
        text = text.replace(phrase, "")
    return BANNED.findall(text)


def parameters_of(path: Path) -> Iterator[tuple[str, str]]:
    """Name and description of each line of ``Args:`` and ``Attributes:`` in the docstrings of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for section in re.findall(r"^(?:Args|Attributes):\n((?: .*\n?)+)", ast.get_docstring(node) or "", re.M):
                yield from re.findall(r"^ {4}(\S[^:\n]*): (.*)", section, re.M)


def options() -> list:
    """(command, parameter) of the whole command line."""
    from typer.main import get_command

    from beaconkv.cli.app import app

    def walk(command, name):
        for child, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {child}")
        for parameter in command.params:
            yield pytest.param(parameter, id=f"{name} {parameter.name}")

    return list(walk(get_command(app), "beaconkv"))


@pytest.mark.parametrize("path", [*SOURCES, *DOCUMENTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_plain(path):
    found = {number: (words, text.strip()[:100]) for number, text in texts_of(path) if (words := find_banned(text))}
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_parameters_start_with_their_quantity(path):
    assert [(name, text) for name, text in parameters_of(path) if OPENERS.match(text)] == []


@pytest.mark.parametrize("option", options())
def test_options_have_a_help_that_starts_with_the_quantity(option):
    help = getattr(option, "help", None)
    assert help, f"{option.name} has no help"
    assert re.fullmatch(r"[A-Z].*\.", help)
    assert not OPENERS.match(help)
    assert find_banned(help) == []


@pytest.mark.parametrize(
    "text",
    [
        "so many texts",
        "refused by name",
        "whoever reads it",
        "turned to now",
        "handed to",
        "in a stretch",
        "kept apart",
    ],
)
def test_the_list_finds(text):
    assert find_banned(text)


@pytest.mark.parametrize(
    "text", ["verdict: cannot be told", "a live cache", "on the other hand", "its own", "rotated back"]
)
def test_the_list_leaves_plain_words(text):
    assert find_banned(text) == []
