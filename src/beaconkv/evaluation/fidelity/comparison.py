"""Summary of fidelity records: means over texts, their intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

MEASURES = ("kl", "agreement", "perplexity_full", "perplexity", "mass_lost")
COSTS = ("evictions", "kv_bytes", "peak_kv_bytes", "state_bytes", "tokens_per_second")


def compare(records: Sequence[dict[str, Any]], against: str | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each policy and budget, in order of appearance.

    Each of :data:`MEASURES` becomes {"mean", "low", "high"}: mean over texts and its 95% interval (bootstrap over
    texts; low and high are None for a single text), or None where it was not taken. ``difference`` holds the same of
    kl, agreement and mass_lost minus those of ``against`` at the same budget, text by text. :data:`COSTS`
    are plain means, None where unknown.

    Args:
        records: from :func:`beaconkv.evaluation.fidelity.measure.measure`.
        against: a policy spec among them.
        seed: random seed of the resampling.

    Raises:
        ValueError: no record is of ``against``.
    """
    cells: dict[tuple, dict[str, dict[str, Any]]] = {}
    for record in records:
        perplexities = {"perplexity_full": math.exp(record["nll_full"]), "perplexity": math.exp(record["nll"])}
        texts = cells.setdefault((record["policy"], record["budget"]), {})
        texts[record["text"]] = {**record, **perplexities}
    measured = list(dict.fromkeys(policy for policy, _ in cells))
    if against is not None and against not in measured:
        raise ValueError(f"nothing was measured of {against!r}; measured: {', '.join(measured)}")
    rows = []
    for (policy, budget), texts in cells.items():
        own = list(texts.values())
        row: dict[str, Any] = {"policy": policy, "budget": budget, "texts": len(own)}
        row |= {name: _of([r[name] for r in own], seed) for name in MEASURES}
        for name in COSTS:
            values = [r[name] for r in own if r[name] is not None]
            row[name] = sum(values) / len(values) if values else None
        other = cells.get((against, budget)) if against != policy else None
        pairs = [(r, other[name]) for name, r in texts.items() if name in other] if other else []
        row["difference"] = {
            name: _of([None if None in (a[name], b[name]) else a[name] - b[name] for a, b in pairs], seed)
            for name in ("kl", "agreement", "mass_lost")
        }
        rows.append(row)
    return rows


def _of(values: list[float | None], seed: int) -> dict[str, float | None] | None:
    values = [value for value in values if value is not None]
    if not values:
        return None
    low, high = _interval(values, seed)
    return {"mean": sum(values) / len(values), "low": low, "high": high}


def _interval(values: list[float], seed: int, resamples: int = 4000) -> tuple[float | None, float | None]:
    """95% percentile bootstrap of the mean; (None, None) for a single value."""
    if len(values) < 2:
        return None, None
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (resamples, len(values)), generator=generator)
    means = torch.tensor(values, dtype=torch.float64)[picks].mean(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
