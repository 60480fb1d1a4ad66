"""Batches: problems of one task that are computed together, for one method at one budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..cells import Cell
from ..tasks.load import Task
from ..tasks.problems import Problem

KEY = ("policy", "budget", "task", "problem", "run")
"""Fields of a record that identify its sample."""


@dataclass(frozen=True)
class Batch:
    """Problems that are computed together, or from which batches are made.

    Attributes:
        limit: maximum number of tokens of an answer.
    """

    cell: Cell
    task: Task
    run: int
    problems: tuple[Problem, ...]
    limit: int

    def key(self, problem: Problem) -> tuple[Any, ...]:
        """The key of one of its samples, in the order of ``KEY``."""
        return self.cell.policy, self.cell.budget, self.task.name, problem.id, self.run
