"""Words that code, messages and documentation do not use, and how the help of options begins."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import typer

import beaconkv
from beaconkv.cli import app as cli

ROOT = Path(beaconkv.__file__).parent
PROJECT = Path(__file__).parents[1]
BANNED = {
    r"whoever|nobody|somebody": "name the reader: the caller, the user, a program",
    r"so many|so much": "give the quantity a name: the number of ...",
    r"told|tells": "passed, called with, shown, known",
    r"turned back|turned to|turns? back|turning": "un-rotated, rotated",
    r"by name(?! of)": "explicitly; unsupported",
    r"house|walls?|floors?|door|roads?": "architecture, boundary, part, function",
    r"hands? (?:it|them|over|out|its|the)|handed|hand to each other": "passes",
    r"lasting": "persistent",
    r"stretch(?:es)?": "cycle, span",
    r"pieces?": "chunk",
    r"stands? alike|spoken|speaks?|travels": "equal; named; reaches",
}
ALLOWED = re.compile(
    r"^\s+pieces: |side_by_side|\bwall (?:time|and CPU|\|)|\"pieces\"|tokens' pieces|pieces of (?:text|tokens)"
)
"""Names: of vLLM's layout, of the clock, and a tokenizer's pieces of text."""
FIRST_WORDS = r"Of |Take |Told |So many|Let |Most |Put "


IN_CODE = {r"beside|side by side": "stacked; in addition to"}


def offenders(text, more=()):
    for line in text.splitlines():
        plain = ALLOWED.sub("", line)
        for banned, better in {**BANNED, **dict(more)}.items():
            if found := re.search(rf"\b(?:{banned})\b", plain, re.IGNORECASE):
                yield f"{found[0]!r} ({better}): {line.strip()}"


def words_of(path):
    """Comments and strings of a Python file, docstrings included."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return "\n".join(token.string for token in tokens if token.type in kinds)


DOCS = [
    path
    for path in [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]
    if path.name not in ("log.md", "mutation.md")
]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_code_uses_the_words_of_the_field(path):
    assert list(offenders(words_of(path), IN_CODE)) == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_documentation_uses_the_words_of_the_field(path):
    assert list(offenders(path.read_text(encoding="utf-8"))) == []


def commands(command, name="beaconkv"):
    yield name, command
    for own, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {own}")


def test_help_of_options_begins_with_the_quantity():
    root = typer.main.get_command(cli.app)
    wrong = [
        f"{name} {option.opts[0]}: {option.help}"
        for name, command in commands(root)
        for option in command.params
        if option.param_type_name == "option" and option.name not in ("help", "install_completion", "show_completion")
        if not option.help or re.match(FIRST_WORDS, option.help) or not option.help.rstrip().endswith((".", ")"))
    ]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_parameters_begin_with_the_quantity(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            for line in text.splitlines():
                assert not re.match(rf"    [\w, ]+: (?:{FIRST_WORDS.lower().strip()})", line), line


def test_the_test_finds_words():
    assert [text.split()[0] for text in offenders("Refused by name.\nNobody knows\na stretch of pieces")] == [
        "'by",
        "'Nobody'",
        "'stretch'",
        "'pieces'",
    ]
    assert list(offenders("the tokens' pieces")) == []
