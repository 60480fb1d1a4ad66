"""The paper's tables, from rows of ``beaconkv eval``: one Markdown section for each task."""

from __future__ import annotations

from typing import Any

from . import paper_results as paper
from .markdown import ABSENT, by_budget, percent, table
from .plots import task_title
from .results import Measured

Found = dict[str, str]
"""Spec in the results by the wanted spec."""
POOLS = ("max", "mean")


def splits(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Table 1: recent and beacon queries."""
    budgets = measured.budgets(list(found.values()))
    has_paper = task == measured.tasks[0] and measure == "accuracy"
    header = ["recent : beacon", *(f"budget {budget}" for budget in budgets)]
    header += [f"paper ({paper.TABLE1_SETTING})"] if has_paper else []
    rows = [
        [
            wanted.rpartition(":")[2].replace("-", " : "),
            *(_cell(measured, spec, budget, task, measure) for budget in budgets),
            *([f"{paper.TABLE1[wanted]:.1f}"] if has_paper else []),
        ]
        for wanted, spec in found.items()
    ]
    return table(header, rows)


def pooling(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Table 2, with queries and heads varied separately: four cells per budget."""
    parts = []
    for budget in measured.budgets(list(found.values())):
        rows = []
        for queries in POOLS:
            specs = [found.get(f"beaconkv:{queries}-{heads}") for heads in POOLS]
            own = [ABSENT if spec is None else _cell(measured, spec, budget, task, measure) for spec in specs]
            rows.append([f"{queries} over queries", *own])
        parts.append(table([f"budget {budget}", *(f"{heads} over heads" for heads in POOLS)], rows))
    return "\n\n".join(parts)


def initial(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Table 3: the first queries of the text in place of beacons."""
    rows = []
    first, beacon = found.get("initial_recent"), found.get("beaconkv")
    for budget in measured.budgets(list(found.values())):
        pair = difference(measured, beacon, first, budget, task, measure)
        verdict = ABSENT if pair is None else pair["verdict"]
        cells = [ABSENT if spec is None else _cell(measured, spec, budget, task, measure) for spec in (first, beacon)]
        rows.append([str(budget), *cells, percent(pair, "+"), f"beaconkv: {verdict}" if pair else ABSENT])
    return table(["budget", "initial_recent", "beaconkv", "difference, paired", "verdict"], rows)


def lengths(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Table 6: output lengths, with causes of long ones."""
    header = ["policy", "budget", "mean tokens", "of the full cache", "cut off", "loops", MEASURES[measure] + ", %"]
    full = measured.full(task)
    rows = [] if full is None else [full]
    for spec in found.values():
        rows += [row for (p, b, t), row in measured.rows.items() if (p, t) == (spec, task) and b is not None]
    cells = [
        [
            row["policy"],
            ABSENT if row["budget"] is None else str(row["budget"]),
            f"{row['tokens']:,.0f}",
            ABSENT if full is None else f"{100 * row['tokens'] / full['tokens']:.0f}%",
            f"{100 * row['capped']:.1f}%",
            f"{100 * row['loops']:.1f}%",
            percent(row.get(measure)),
        ]
        for row in rows
    ]
    return table(header, cells)


MEASURES = {"accuracy": "exact answers", "steps_right": "right steps"}
"""Name of a measure by its field in a row."""


def quality(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Policies down, budgets across; under it the paired differences of the run."""
    specs = list(found.values())
    body = by_budget(measured, task, specs, lambda row: percent(row.get(measure)))
    rows = [row for (p, _, t), row in measured.rows.items() if t == task and p in specs and "against" in row]
    if not rows:
        return body
    reference = rows[0]["against"]["policy"]
    others = [spec for spec in specs if spec != reference]
    return f"{body}\n\nPaired difference to {reference}, in points:\n\n" + by_budget(
        measured, task, others, lambda row: _against(row, measure), full=False
    )


def memory(measured: Measured, found: Found, task: str, measure: str) -> str:
    """Figure 7: quality, and the bytes of a row's cache and policy state."""
    header = ["policy", "budget", MEASURES[measure] + ", %", "keys and values", "state", "together"]
    full = measured.full(task)
    rows = [] if full is None else [full]
    for spec in found.values():
        rows += [row for (p, b, t), row in measured.rows.items() if (p, t) == (spec, task) and b is not None]
    cells = [
        [
            row["policy"],
            ABSENT if row["budget"] is None else str(row["budget"]),
            percent(row.get(measure)),
            *(f"{size:,}" for size in (row["kv_bytes"], row["state_bytes"], row["kv_bytes"] + row["state_bytes"])),
        ]
        for row in rows
    ]
    return table(header, cells)


def difference(
    measured: Measured, first: str | None, second: str | None, budget: int, task: str, measure: str
) -> dict[str, Any] | None:
    """The paired difference first - second where the run has taken it either way round, else None."""
    for one, other, swapped in ((first, second, False), (second, first, True)):
        row = measured.rows.get((one, budget, task), {})
        against = row.get("against", {})
        if against.get("policy") == other and measure in against:
            found = against[measure]
            if not swapped:
                return found
            words = {"better": "worse", "worse": "better"}
            verdict = words.get(found["verdict"], found["verdict"])
            return {"mean": -found["mean"], "low": -found["high"], "high": -found["low"], "verdict": verdict}
    return None


def section(measured: Measured, task: str, body: str) -> str:
    """A heading over a table."""
    return f"### {task_title(measured, task)}\n\n{body}"


def _cell(measured: Measured, policy: str, budget: int, task: str, measure: str) -> str:
    row = measured.rows.get((policy, budget, task))
    return ABSENT if row is None else percent(row.get(measure))


def _against(row: dict[str, Any], measure: str) -> str:
    found = row.get("against", {}).get(measure)
    return ABSENT if found is None else f"{percent(found, '+')} {found['verdict']}"
