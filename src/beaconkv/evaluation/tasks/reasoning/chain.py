"""Chains of reasoning: written by a program, or read and checked step by step.

A task is a generator that yields each step of its chain as it should be and is sent what was really
written. Sent what it yielded, it writes the reference chain; sent what a model wrote, it checks the
model's steps, each against the prompt and the model's *own* earlier steps.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from ....models import alphabet
from ....models.alphabet import END, greek

KINDS = ("rule", "list", "note", "recall", "condition", "line", "answer")
"""Kinds of steps: look up a rule, go to the next item of a list, write down a result, look a result up again, look up
the condition of the prompt, work locally, answer."""


@dataclass(frozen=True)
class Step:
    """One step of a chain.

    Attributes:
        kind: Kind of the step, one of KINDS.
        text: Expected text.
    """

    kind: str
    text: str


Walk = Generator[Step, str, None]
"""Generator that yields steps and receives what was written in their place."""


@dataclass(frozen=True)
class CheckedStep:
    """A step that a model wrote.

    Attributes:
        kind: Kind of the step, one of KINDS.
        start: Index of its first character in the chain.
        expected: Text that follows from all that was written before.
        written: Text in the chain.
    """

    kind: str
    start: int
    expected: str
    written: str

    @property
    def right(self) -> bool:
        return self.expected == self.written


def write(walk: Walk) -> list[Step]:
    """The reference chain."""
    steps, step = [], next(walk)
    try:
        while True:
            steps.append(step)
            step = walk.send(step.text)
    except StopIteration:
        return steps


def check(walk: Walk, chain: str) -> list[CheckedStep]:
    """The steps of a chain that a model wrote, until its end or until its first unreadable step."""
    steps, start, step = [], 0, next(walk)
    try:
        while start < len(chain):
            written = chain[start : start + len(step.text)]
            steps.append(CheckedStep(step.kind, start, step.text, written))
            if not _readable(step.text, written):
                return steps
            start += len(written)
            step = walk.send(written)
    except StopIteration:
        if start < len(chain):  # text beyond the answer
            steps.append(CheckedStep("answer", start, "", chain[start:]))
    return steps


def _readable(expected: str, written: str) -> bool:
    """Whether both texts have the same form: letters for letters, digits for digits, the same marks."""
    if len(expected) != len(written):
        return False
    for a, b in zip(expected, written, strict=True):
        if a != b and not any(a in form and b in form for form in alphabet.CLASSES):
            return False
    return True


def apply(operation: str, register: str, operand: str) -> str:
    """One digit of arithmetic: r + d, r - d or r * d modulo 10."""
    r, d = int(register), int(operand)
    return str({"+": r + d, "-": r - d, "*": r * d}[operation] % 10)


def after(order: str, place: str) -> str:
    """The next item of a list; its end, if the place is not in it."""
    return order[order.index(place) + 1] if place in order[:-1] else order[-1]


def work(tags: str, register: str, operation: str, operand: str, count: str) -> Generator[Step, str, tuple[str, str]]:
    """Local work: ``count`` lines, each one more operation on the register.

    A line is ``XYn7+4=1;``: two tags, lines left, register, operation, operand, result. Returns the
    tags and the register of the last line that was written.
    """
    left = int(count)
    while True:
        line = yield Step("line", f"{tags}{left}{register}{operation}{operand}={apply(operation, register, operand)};")
        tags, register, operation, operand = line[:2], line[7], line[4], line[5]
        left = int(line[2]) - 1
        if left <= 0:
            return tags, register


def conclude(tags: str, register: str, condition: str) -> Walk:
    """Apply the condition of the prompt, and answer with the last tags and the register."""
    operation, operand = (yield Step("condition", "?" + condition))[1:]
    tags, register = yield from work(tags, register, operation, operand, "0")
    yield Step("answer", f"={tags}{register}{END}")


def recall(asked: str, notes: dict[str, str]) -> Walk:
    """Look up the notes of the question in the prompt, and answer with them."""
    asked = (yield Step("condition", "?" + asked))[1:]
    found = ""
    for letter in asked:
        found += (yield Step("recall", greek(letter) + notes.get(greek(letter), "0")))[1]
    yield Step("answer", f"={found}{END}")
