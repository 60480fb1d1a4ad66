"""From samples to a table: means with intervals, and paired differences between methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from .intervals import mean_interval, paired_difference

ALL = "all"
"""The task name of a row over all tasks."""


def summarize(records: Iterable[dict[str, Any]], reference: str | None = None) -> list[dict[str, Any]]:
    """One row for each policy, budget and task, and for all tasks together.

    Args:
        records: Samples, as :class:`~beaconkv.evaluation.answers.run.Evaluation` writes them.
        reference: Policy that others are compared with at the same budget, on the same problems and runs.

    Returns:
        Rows in order of first appearance with

        - accuracy, steps_right: mean, low, high (95%), see :func:`~beaconkv.evaluation.mean_interval`;
        - against: difference to the reference in accuracy and steps_right, with interval and verdict;
        - prompt_tokens, tokens, evictions: means; capped, loops: shares; kv_bytes, state_bytes: the most of any row;
        - problems, samples, never_evicted: numbers of problems, samples, and samples that never reached the budget.
    """
    groups: dict[tuple[str, int | None, str], list[dict[str, Any]]] = {}
    for record in records:
        for task in (record["task"], ALL):
            groups.setdefault((record["policy"], record["budget"], task), []).append(record)
    tasks = {task for _, _, task in groups}
    rows = []
    for (policy, budget, task), group in groups.items():
        if task == ALL and len(tasks) == 2:  # of one task only
            continue
        row: dict[str, Any] = {"policy": policy, "budget": budget, "task": task}
        for measure in ("correct", "steps_right"):
            if measure not in group[0]:
                continue
            name = "accuracy" if measure == "correct" else measure
            scores = _scores(group, measure)
            row[name] = _short(asdict(mean_interval(scores)))
            other = groups.get((reference, budget, task)) if reference != policy else None
            if other is not None:
                theirs = _scores(other, measure)
                common = scores.keys() & theirs.keys()
                if common:
                    difference = paired_difference({k: scores[k] for k in common}, {k: theirs[k] for k in common})
                    against = row.setdefault("against", {"policy": reference})
                    against[name] = _short(asdict(difference)) | {"verdict": difference.verdict}
        row |= {
            "prompt_tokens": round(fmean(r["prompt_tokens"] for r in group), 1),
            "tokens": round(fmean(r["tokens"] for r in group), 1),
            "evictions": round(fmean(r["evictions"] for r in group), 1),
            "capped": round(fmean(r["capped"] for r in group), 4),
            "loops": round(fmean(r["loop"] for r in group), 4),
            "kv_bytes": max(r["kv_bytes"] for r in group),
            "state_bytes": max(r["state_bytes"] for r in group),
            "samples": len(group),
            "problems": len({(r["task"], r["problem"]) for r in group}),
            "never_evicted": sum(r["evictions"] == 0 for r in group),
        }
        rows.append(row)
    return rows


def first_wrong(records: Iterable[dict[str, Any]]) -> dict[tuple[str, int | None], dict[str, int]]:
    """Number of chains by the kind of their first wrong step ("none": all right), for each (policy, budget)."""
    counts: dict[tuple[str, int | None], dict[str, int]] = {}
    for record in records:
        if "first_wrong" in record:
            kinds = counts.setdefault((record["policy"], record["budget"]), {})
            kind = record["first_wrong"]["kind"] if record["first_wrong"] else "none"
            kinds[kind] = kinds.get(kind, 0) + 1
    return counts


def _scores(group: list[dict[str, Any]], measure: str) -> dict[tuple[Any, int], float]:
    return {((r["task"], r["problem"]), r["run"]): float(r[measure]) for r in group}


def _short(estimate: dict[str, Any]) -> dict[str, Any]:
    kept = ("mean", "low", "high", "method")
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in estimate.items() if k in kept}
