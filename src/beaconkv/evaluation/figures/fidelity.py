"""The divergence from the full cache, from rows of ``beaconkv fidelity``."""

from __future__ import annotations

from collections.abc import Sequence

from ..summary import ALL
from .markdown import by_budget, number, percent
from .plots import Block, Plot, groups, make_lines, shares, task_title
from .results import Measured
from .tables import Found

SPAN = 20
"""Ratio of values from which the axis is logarithmic."""


def divergence_blocks(measured: Measured, policies: Sequence[str]) -> list[Block]:
    """KL against budget. It is 0 for the full cache, which has no line."""
    blocks = []
    for title, group in groups(policies):
        lines = [line for line in make_lines(measured, ALL, group, lambda row: row["kl"]) if not line.level]
        means = [estimate["mean"] for line in lines for _, estimate in line.points]
        log = min(means) > 0 and max(means) / min(means) > SPAN
        plot = Plot(
            task_title(measured, ALL), tuple(lines), shares(measured, ALL), "KL divergence, nats a token", log=log
        )
        blocks.append(Block(title, (plot,)))
    return blocks


def divergence(measured: Measured, found: Found, task: str, measure: str) -> str:
    """KL, agreement, perplexity and attention lost; policies down, budgets across."""
    parts = {
        "KL divergence of the full cache's next-token distribution, nats a token": lambda r: number(r["kl"], 4),
        "same likeliest token, %": lambda r: percent(r["agreement"]),
        "perplexity of the texts": lambda r: number(r["perplexity"], 3),
        "share of the full cache's attention on evicted entries, %": lambda r: percent(r["mass_lost"]),
    }
    tables = [f"{title}:\n\n{by_budget(measured, task, list(found.values()), cell)}" for title, cell in parts.items()]
    return "\n\n".join(tables)
