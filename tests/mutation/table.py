"""docs/mutation.md: which test noticed which mutant."""

from __future__ import annotations

from .mutant import ROOT, Mutant
from .mutants import MUTANTS

TABLE = ROOT / "docs" / "mutation.md"
SURVIVED, TIMED_OUT, NOTHING, NOT_RUN = "no test", "running until it was stopped", "nothing", "not run"
HEAD = """# Do the tests notice mistakes?

`make mutation` makes small mistakes in the library, one at a time, each in a copy of the tree, and runs the tests that
should notice it until one fails. A mistake that lets the tests run on for minutes (most often a loop that never ends)
is stopped and counts as noticed. The mistakes were chosen by hand (`tests/mutation/mutants/`); only the tests named
there are run, on a CPU, kernels in Triton's interpreter. It says something about these mistakes, and nothing about
others; what needs vLLM itself or a GPU is not among them.
"""


Found = dict[tuple[str, str], str]
"""By a mutant's ``key``: the test that noticed it, or ``SURVIVED``, or ``TIMED_OUT``."""


def write(found: Found) -> None:
    """Write the table."""
    said = [_said(mutant, found.get(mutant.key, NOT_RUN)) for mutant in MUTANTS]
    missed, waiting = said.count(SURVIVED), said.count(NOT_RUN)
    nothing = sum(words.startswith(NOTHING) for words in said)
    counted = f"{len(said) - missed - waiting - nothing} noticed, {missed} not noticed, {nothing} that change nothing"
    lines = [HEAD, f"**{len(said)} mistakes: {counted}{f', {waiting} not run' if waiting else ''}.**"]
    file = None
    for mutant, words in zip(MUTANTS, said, strict=True):
        if mutant.file != file:
            file = mutant.file
            lines += ["", f"| `{file}` | noticed by |", "|---|---|"]
        lines.append(f"| {mutant.what} | {words} |")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _said(mutant: Mutant, found: str) -> str:
    if found == SURVIVED and mutant.equivalent:
        return f"{NOTHING}: {mutant.equivalent}"
    return f"`{found.removeprefix('tests/')}`" if found.startswith("tests/") else found


def read() -> Found:
    """What the table says."""
    found: Found = {}
    file = ""
    for line in TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else ():
        if line.startswith("| `"):
            file = line.split("`")[1]
        elif line.startswith("| "):
            what, words = line.strip("| ").split(" | ", 1)
            if words.startswith("`"):
                words = f"tests/{words.strip('`')}"
            found[file, what] = SURVIVED if words.startswith(NOTHING) else words
    return found
