"""A reasoning problem: its parts, and how it is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ....models import alphabet
from .chain import CheckedStep, Walk, check, write


@dataclass(frozen=True)
class Size:
    """The size of a problem, from which the length in tokens follows.

    Attributes:
        rules: Number of rows in the prompt, 4 to 24.
        steps: Number, about, of blocks of local work in the chain.
        least, most: Minimum and maximum number of lines of a block, 1 to 9.
    """

    rules: int
    steps: int
    least: int
    most: int


@dataclass(frozen=True)
class ReasoningProblem:
    """A problem and its one right chain.

    Attributes:
        kind: Name of the task.
        prompt: Prompt, which ends with "|".
        chain: Reference chain, answer and end mark included.
        answer: Text after the "=" of the answer.
    """

    kind: str
    prompt: str
    chain: str
    answer: str
    walk: Callable[[], Walk]

    @classmethod
    def of(cls, kind: str, prompt: str, walk: Callable[[], Walk]) -> ReasoningProblem:
        """Write the chain."""
        steps = write(walk())
        chain = "".join(step.text for step in steps)
        return cls(kind, prompt, chain, steps[-1].text.strip("=\n"), walk)

    def check(self, chain: str) -> list[CheckedStep]:
        """The steps of a chain that a model wrote."""
        return check(self.walk(), chain)


def draw_work(rng: random.Random, size: Size) -> str:
    """Operation, operand and number of lines of a row, for example ``+35``."""
    operation = rng.choice(alphabet.OPERATIONS)
    operand = rng.choice("379" if operation == "*" else "123456789")
    return f"{operation}{operand}{rng.randint(size.least, size.most)}"


def lay_out(rng: random.Random, mark: str, parts: Iterable[str], register: str) -> str:
    """A prompt: rows, lists and conditions in random order, then the first register."""
    parts = list(parts)
    rng.shuffle(parts)
    return mark + ";".join(parts) + f";>{register}|"
