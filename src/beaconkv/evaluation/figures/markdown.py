"""Tables and notes as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .origin import commands
from .results import Measured

ABSENT = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, names at the left and numbers at the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(estimate: dict[str, Any] | None, sign: str = "") -> str:
    """``87.5 [81.2, 92.4]``; ``-`` where there is none."""
    return number(estimate and {k: estimate[k] and 100 * estimate[k] for k in ("mean", "low", "high")}, 1, sign)


def number(estimate: dict[str, Any] | None, digits: int, sign: str = "") -> str:
    """``0.125 [0.101, 0.150]``; no interval where it is not known."""
    if estimate is None:
        return ABSENT
    mean = f"{estimate['mean']:{sign}.{digits}f}"
    if estimate["low"] is None:
        return mean
    return f"{mean} [{estimate['low']:{sign}.{digits}f}, {estimate['high']:{sign}.{digits}f}]"


def by_budget(
    measured: Measured, task: str, policies: Sequence[str], cell: Callable[[dict[str, Any]], str], full: bool = True
) -> str:
    """Policies down, budgets across, and if ``full`` the full cache first, which has none."""
    budgets = measured.budgets(policies)
    first = measured.full(task) if full else None
    header = ["policy", *(["no limit"] if first is not None else []), *map(str, budgets)]
    rows = [] if first is None else [[first["policy"], cell(first), *[""] * len(budgets)]]
    for policy in policies:
        own = [measured.rows.get((policy, budget, task)) for budget in budgets]
        rows.append([policy, *([""] if first is not None else []), *(ABSENT if r is None else cell(r) for r in own)])
    return table(header, rows)


def sources(panels: Sequence[Measured]) -> str:
    """The provenance of the numbers."""
    lines = ["## Where this comes from", ""]
    for measured in panels:
        document = measured.results[0].document
        facts = {"model": document.get("model"), **measured.results[0].facts}
        if "texts" in facts:
            facts["texts"] = f"{len(facts['texts'])} of {document.get('texts')}"
        if isinstance(facts.get("tasks"), dict):
            facts["tasks"] = ", ".join(facts["tasks"])
        if isinstance(facts.get("sampling"), dict):
            facts["sampling"] = ", ".join(f"{name} {value}" for name, value in facts["sampling"].items())
        lines.append(f"- {measured.label}: " + "; ".join(f"{k} {v}" for k, v in facts.items() if v is not None))
        for result in measured.results:
            machine, versions = result.document.get("machine", {}), result.document.get("versions", {})
            where = machine.get("accelerator") or machine.get("processor") or "an unknown machine"
            made = ", ".join(f"{name} {value}" for name, value in versions.items())
            lines.append(f"  - {result.document.get('time', 'no date')}, {where}, {made}")
        lines += [f"  - `{command}`" for command in commands(measured)]
    return "\n".join(lines)
