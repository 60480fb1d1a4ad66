"""The documentation: links, paths, commands, and the site."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_words import cli, commands, typer

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]
MADE = {"docs/changelog.md", "docs/contributing.md"}
"""Empty pages, which the site fills from files of the project's folder."""


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path):
    """Anchors of headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def broken(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        made = path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in MADE
        if (
            not path.exists()
            or (made and page.parent != ROOT / "docs")
            or anchor
            and path.suffix == ".md"
            and anchor not in anchors(path)
        ):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken(page, page.read_text(encoding="utf-8"))) == []


def test_the_test_finds_broken_links():
    page = ROOT / "README.md"
    text = "[a](docs/nothing.md) [b](docs/results.md#nothing) [c](docs/results.md#the-papers-claims) ![d](docs/x.png)"
    assert list(broken(page, text)) == ["docs/nothing.md", "docs/results.md#nothing", "docs/x.png"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_text_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks|training|\.ci)/[\w./\-]+)`", text)
    made = re.compile(r"docs/_build|src/beaconkv/policies/norm_and_age")  # by a command or by the reader
    missing = [path for path in named if not made.match(path) and not (ROOT / path).exists()]
    assert missing == []


def test_commands_exist():
    known = {name for name, _ in commands(typer.main.get_command(cli.app))}
    named = set()
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"^(?:\.venv/bin/)?beaconkv ((?:trace )?[a-z]+)\b", line):
                named.add(f"beaconkv {found[1]}")
    assert named, "no command is shown anywhere"
    assert named <= known


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", page.read_text("utf-8"))
    }
    assert {one or other for one, other in named} <= targets


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_the_site_is_built(tmp_path):
    if find_spec("sphinx") is None or find_spec("furo") is None or find_spec("myst_parser") is None:
        pytest.skip("Sphinx is not installed here: make docs")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", ROOT / "docs", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "beaconkv.BoundedCache" in (tmp_path / "reference" / "beaconkv.html").read_text(encoding="utf-8")
