"""Tables of answers and steps that are right."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .common import console, name_column

MEASURES = {"accuracy": "exact answers", "steps_right": "right steps"}


def quality_table(rows: list[dict[str, Any]], measure: str) -> Table:
    """Methods down, budgets across: percent with its interval. Rows of one task."""
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None})
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    name_column(table, "budget", policies)
    for budget in budgets or [None]:
        table.add_column("-" if budget is None else str(budget), justify="right")
    for policy in policies:
        own = {row["budget"]: row for row in rows if row["policy"] == policy}
        if None in own:
            table.add_row(policy, *[""] * (len(budgets) - 1), percent(own[None][measure]))
        else:
            table.add_row(policy, *(percent(own[b][measure]) if b in own else "-" for b in budgets))
    return table


def show_quality(rows: list[dict[str, Any]]) -> None:
    """For each measure that the tasks have: a table over all tasks, and where there are several, one for each."""
    from ..evaluation.summary import ALL

    tasks = sorted(dict.fromkeys(row["task"] for row in rows), key=lambda task: task != ALL)
    for measure, name in MEASURES.items():
        for task in tasks:
            own = [row for row in rows if row["task"] == task and measure in row]
            if own:
                problems = max(row["problems"] for row in own)
                which = f"task {escape(task)}: " if task != ALL and len(tasks) > 1 else ""
                title = f"{which}[bold]{name}[/bold] in %, 95% interval ({problems} problems)"
                console.print(title, highlight=False)
                console.print(quality_table(own, measure))


def percent(estimate: dict[str, Any]) -> str:
    """``87.5 (81-92)``."""
    mean, low, high = (100 * estimate[k] for k in ("mean", "low", "high"))
    return f"{mean:.1f} ({low:.0f}-{high:.0f})"


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Remarks on methods that never evicted anything."""
    from ..evaluation.summary import ALL

    one_task = len({row["task"] for row in rows}) == 1
    return [
        f"{row['policy']} at {row['budget']}: nothing was evicted"
        for row in rows
        if (one_task or row["task"] == ALL) and row["budget"] is not None and row["never_evicted"] == row["samples"]
    ]
