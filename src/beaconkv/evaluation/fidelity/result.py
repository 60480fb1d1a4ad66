"""``fidelity.json`` and ``fidelity.md``: the distance of small caches to the full one, as a result and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...models import LoadedModel
from ...provenance import placed_as, provenance
from ...units import human_bytes
from ..cells import Cell
from .comparison import compare
from .measure import FidelitySettings, measure
from .texts import Text

EXPLAINED = (
    "KL: divergence of the next-token distribution from the full cache's, nats per token; [95% interval over texts].",
    "agree: how often both find the same token likeliest. ppl: perplexity of the text.",
    "lost: share of the full cache's attention on evicted entries.",
)


def measure_and_write(
    loaded: LoadedModel,
    texts: Sequence[Text],
    cells: Sequence[Cell],
    settings: FidelitySettings,
    out: Path,
    *,
    model: str,
    source: Path,
    against: str | None = None,
    advance: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Any]:
    """Measure the missing records of a folder, and write ``fidelity.json`` and ``fidelity.md`` there.

    Args:
        out: Folder of the records and the results.
        model: Name of the model.
        source: Path of the file that the texts come from.
        against: Policy that the others are compared with, text by text.
        advance: Function as in :func:`~beaconkv.evaluation.fidelity.measure.measure`.

    Returns:
        The content of ``fidelity.json``.

    Raises:
        ValueError: as :func:`~beaconkv.evaluation.fidelity.measure.measure`.
    """
    records = measure(
        loaded.model,
        texts,
        cells,
        settings,
        records=out / "records.jsonl",
        label=f"{model} {loaded.model.dtype}",
        advance=advance,
    )
    result = {
        "rows": compare(records, against, settings.seed),
        "records": records,
        "settings": vars(settings),
        "against": against,
        **provenance(model=model, **placed_as(loaded), seed=settings.seed, texts=str(source)),
    }
    (out / "fidelity.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    (out / "fidelity.md").write_text(markdown(title_of(model, texts), result["rows"], against), encoding="utf-8")
    return result


def title_of(model: str, texts: Sequence[Text]) -> str:
    """The title of a table: model, texts and tokens."""
    predicted = sum(text.predictions for text in texts)
    return f"{model}: {len(texts)} texts, {predicted:,} tokens after their prompts"


def _spread(value: dict[str, Any] | None, sign: str = "") -> str:
    if value is None:
        return "-"
    mean = f"{value['mean']:{sign}.3f}"
    return mean if value["low"] is None else f"{mean} [{value['low']:{sign}.3f}, {value['high']:{sign}.3f}]"


def measures(row: dict[str, Any], against: str | None) -> dict[str, str]:
    """The cells of a row by their headings."""
    cells = {
        "policy": row["policy"],
        "budget": "-" if row["budget"] is None else str(row["budget"]),
        "KL": _spread(row["kl"]),
    }
    if against is not None:
        cells[f"KL - {against}"] = _spread(row["difference"]["kl"], "+")
    return cells | {
        "agree": f"{100 * row['agreement']['mean']:.1f}%",
        "ppl": f"{row['perplexity']['mean']:.2f}",
        "lost": "-" if row["mass_lost"] is None else f"{100 * row['mass_lost']['mean']:.1f}%",
        "evicted": f"{row['evictions']:.0f}x",
    }


def markdown(title: str, rows: list[dict[str, Any]], against: str | None) -> str:
    """The table with all columns."""
    cells = [
        {
            **measures(row, against),
            "ppl, full cache": f"{row['perplexity_full']['mean']:.2f}",
            "keys and values": human_bytes(row["kv_bytes"]),
            "their peak": human_bytes(row["peak_kv_bytes"]),
            "state": human_bytes(row["state_bytes"]),
            "tokens/s": "-" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.1f}",
        }
        for row in rows
    ]
    lines = [list(cells[0]), ["---"] * len(cells[0]), *(list(row.values()) for row in cells)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {line}" for line in (*EXPLAINED, "Bytes are of one text, measured; tokens/s of all texts."))
    return f"{title}\n\n{body}\n\n{notes}\n"
