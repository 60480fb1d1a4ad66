"""Data of a line plot, without its drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..summary import ALL
from .methods import FULL, Style, is_variant, style_of
from .results import Measured

Estimate = dict[str, Any]
"""Dict with "mean", "low" and "high"; low and high may be None."""
Measure = Callable[[dict[str, Any]], Estimate | None]
"""Function from a row of a result to the value that is drawn."""

MANY = 8
"""Maximum number of lines of a plot; more are split into two plots: other methods, and variants of BeaconKV."""


@dataclass(frozen=True)
class Line:
    """Values of one method over budgets.

    Attributes:
        name: Label of the line.
        style: Style of the line.
        points: Points (budget, estimate), budgets ascending.
        level: Whether it is a horizontal line at the value of its only point, which has no budget: the full cache.
    """

    name: str
    style: Style
    points: tuple[tuple[int, Estimate], ...]
    level: bool = False


@dataclass(frozen=True)
class Plot:
    """One panel.

    Attributes:
        title: over it.
        lines: those drawn last lie above.
        shares: budget -> percent of the mean length, where lengths are known.
        ylabel: what is drawn, with its unit; in the title of a large panel.
        limits: limits of the axis; None: from 0 to what there is.
        log: whether the axis is logarithmic.
    """

    title: str
    lines: tuple[Line, ...]
    shares: dict[int, float]
    ylabel: str
    limits: tuple[float, float] | None = None
    log: bool = False

    @property
    def budgets(self) -> list[int]:
        """All budgets of all lines."""
        return sorted({budget for line in self.lines if not line.level for budget, _ in line.points})


@dataclass(frozen=True)
class Block:
    """Plots that belong together: the same lines over several tasks, or several measures of the same lines.

    Attributes:
        title: over them all.
        plots: panels.
        labelled: number of first panels that are large and have labels at the ends of their lines.
    """

    title: str
    plots: tuple[Plot, ...]
    labelled: int = 1


def make_lines(measured: Measured, task: str, policies: Sequence[str], measure: Measure) -> tuple[Line, ...]:
    """The lines of some policies on one task, the full cache first and BeaconKV last, so that it is on top."""
    lines = []
    full = measured.full(task)
    if full is not None and measure(full) is not None:
        lines.append(Line("full cache", FULL, ((0, measure(full)),), level=True))
    for policy in sorted(policies, key=lambda name: style_of(name).leading):
        rows = [(budget, measured.rows.get((policy, budget, task))) for budget in measured.budgets([policy])]
        points = tuple((budget, measure(row)) for budget, row in rows if row is not None and measure(row) is not None)
        if points:
            lines.append(Line(policy, style_of(policy), points))
    return tuple(lines)


def task_title(measured: Measured, task: str) -> str:
    """``machine (50 problems)``."""
    row = next(row for (_, _, name), row in measured.rows.items() if name == task)
    if "texts" in row:
        return f"{row['texts']} texts"
    name = "all tasks" if task == ALL else task
    return f"{name} ({row['problems']} problems)"


def shares(measured: Measured, task: str) -> dict[int, float]:
    """Budgets in percent of the full cache's mean length, prompt included, where it is known."""
    full = measured.full(task)
    if full is None or not {"prompt_tokens", "tokens"} <= full.keys():
        return {}
    length = full["prompt_tokens"] + full["tokens"]
    return {budget: 100 * budget / length for budget in measured.budgets()}


def groups(policies: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Pairs (title, policies): one group, or of many policies two, other methods and variants, each with BeaconKV."""
    leading = [policy for policy in policies if style_of(policy).leading]
    variants = [policy for policy in policies if policy not in leading and is_variant(policy)]
    others = [policy for policy in policies if policy not in leading and policy not in variants]
    if len(policies) <= MANY or not variants or not others:
        return [("", list(policies))]
    return [("other methods", others + leading), ("other observation queries and pooling", variants + leading)]
