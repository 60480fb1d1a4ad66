"""Synthetic problems with the structure of long reasoning, written character by character.

A prompt holds rules, facts and a plan. The chain is mostly local work (counting, digit arithmetic), with sparse
returns to a rule, to the plan, to a condition given once, to a result of hundreds of tokens ago. Every chain has one
right text, and every step that a model writes can be checked.
"""

from __future__ import annotations

import random

from ....models.alphabet import CHARACTERS, END, PAD
from . import ledger, machine, plan, search
from .chain import KINDS, CheckedStep
from .problem import ReasoningProblem, Size

TASKS = {"machine": machine.draw, "ledger": ledger.draw, "plan": plan.draw, "search": search.draw}
SIZES = {
    "machine": Size(24, 36, 2, 6),
    "ledger": Size(24, 21, 5, 9),
    "plan": Size(24, 36, 2, 6),
    "search": Size(23, 22, 5, 9),
}
"""Full size: chains of about 1,500 tokens."""


def draw_problem(kind: str, seed: int | str, size: Size | None = None) -> ReasoningProblem:
    """The problem of a kind and seed, always the same.

    Args:
        kind: Name of the task, one of TASKS.
        seed: Random seed, any number or text.
        size: Size of the problem; default: full size, SIZES[kind].

    Raises:
        ValueError: an unknown kind; the message lists the choices.
    """
    if kind not in TASKS:
        raise ValueError(f"unknown reasoning task {kind!r}; choose from {', '.join(TASKS)}")
    return TASKS[kind](random.Random(f"{kind}/{seed}"), size or SIZES[kind])


__all__ = [
    "CHARACTERS",
    "END",
    "KINDS",
    "PAD",
    "SIZES",
    "TASKS",
    "CheckedStep",
    "ReasoningProblem",
    "Size",
    "draw_problem",
]
