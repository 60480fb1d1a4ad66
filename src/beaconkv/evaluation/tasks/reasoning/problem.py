"""A reasoning problem: what it is made of, and how it is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ....models import alphabet
from .chain import CheckedStep, Walk, check, write


@dataclass(frozen=True)
class Size:
    """How large a problem is. Lengths in tokens follow from it.

    Attributes:
        rules: rows in the prompt, 4 to 24.
        steps: blocks of local work that the chain is made of, about.
        least, most: lines of a block, 1 to 9.
    """

    rules: int
    steps: int
    least: int
    most: int


@dataclass(frozen=True)
class ReasoningProblem:
    """A problem and its one right chain.

    Attributes:
        kind: name of the task.
        prompt: ends with "|".
        chain: the reference, answer and end mark included.
        answer: what stands behind the "=" of the answer.
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
