"""What a mutant is: one small mistake in one file of the library, and the tests that should notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        what: the mistake, in words; unique in its file.
        file: below ``src/beaconkv``.
        old: text that occurs once in the file.
        new: what is there instead.
        tests: files that are run, in this order, until one fails.
        equivalent: why no test can notice it, if none can.
    """

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What it is known by."""
        return self.file, self.what

    def path(self, root: Path) -> Path:
        """The file in a copy of the tree."""
        return root / "src" / "beaconkv" / self.file

    def applied(self, text: str) -> str:
        """The file's text with the mistake.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.what}: its old text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)


def mutants_of(file: str, *tests: str) -> Callable[..., Mutant]:
    """Returns a function that makes mutants of one file which the same tests should notice."""

    def make(what: str, old: str, new: str, *more: str, equivalent: str = "") -> Mutant:
        return Mutant(what, file, old, new, tuple(f"tests/{test}.py" for test in (*tests, *more)), equivalent)

    return make
