"""The numbers of a page, from a trace, its diagnosis and its replays, in the form that :func:`render_page` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...evaluation.figures.methods import style_of
from ..diagnosis import Diagnosis
from ..losses import Outcome
from ..trace import Trace

PAGE_BYTES = 6_000_000
"""Maximum number of bytes of attention targets in a page; more heads than fit are left out."""


def page_data(
    trace: Trace, diagnosis: Diagnosis, outcomes: Sequence[Outcome], heads: int | None = None
) -> dict[str, Any]:
    """All data of the page.

    Args:
        diagnosis: diagnosis of all layers that the outcomes have.
        outcomes: outcomes of replays of the same layers.
        heads: how many heads can be explored; None: as many as fit :data:`PAGE_BYTES`. Those with most global
            queries, at least one of each layer as long as there are places.

    Raises:
        ValueError: a diagnosis and outcomes of different layers.
    """
    layers = diagnosis.revisiting.layers
    for outcome in outcomes:
        if outcome.replay.layers != layers:
            raise ValueError(f"{outcome.replay.label} has layers {outcome.replay.layers}, the diagnosis {layers}")
    each = len(trace) * (diagnosis.revisiting.targets.shape[-1] * 8 + 5)
    most = max(1, PAGE_BYTES // each) if heads is None else heads
    shown = choose_heads(diagnosis.frequency, most)
    number, head = torch.tensor(shown).T
    found, command = diagnosis.revisiting, trace.info.provenance.get("command")
    num_heads = max(trace.info.heads) + 1
    frequency = torch.full((len(layers), num_heads), torch.nan)  # heads that were not recorded are blank
    frequency[:, trace.info.heads] = diagnosis.frequency
    return {
        "title": f"{trace.info.model or 'a model'} · {len(trace):,} tokens",
        "subtitle": " ".join(map(str, command if isinstance(command, list) else [])),
        "facts": facts(trace, diagnosis, outcomes),
        "tokens": trace.info.pieces,
        "prompt_length": trace.info.prompt_length,
        "local_distance": max(1, round(found.distance)),
        "top_keys": found.top_keys,
        "num_layers": max(layers) + 1,
        "num_heads": num_heads,
        "num_kv_heads": len(trace.info.kv_heads),
        "layers": layers,
        "frequency": frequency.numpy(),
        "heads": [
            {
                "layer": layers[i],
                "head": trace.info.heads[h],
                "kv_head": h // trace.info.group,
                "share": diagnosis.frequency[i, h].item(),
            }
            for i, h in shown
        ],
        "is_global": found.is_global[number, head].byte().numpy(),
        "distance": found.mean_distance[number, head].numpy(),
        "targets": found.targets[number, head].numpy(),
        "weights": found.weights[number, head].numpy(),
        "policies": [_policy(outcome, number, head) for outcome in outcomes],
    }


def choose_heads(frequency: Tensor, most: int) -> list[tuple[int, int]]:
    """(number of the layer, head) of the heads with most global queries, one of each layer first; in order.

    Args:
        frequency: Share of global queries (L, H).
    """
    layers, heads = frequency.shape
    best = frequency.argmax(dim=1).tolist()
    first = sorted(range(layers), key=lambda i: -frequency[i, best[i]].item())[:most]
    chosen = {(i, best[i]) for i in first}
    order = frequency.flatten().argsort(descending=True, stable=True).tolist()
    for flat in order:
        if len(chosen) >= most:
            break
        chosen.add((flat // heads, flat % heads))
    return sorted(chosen)


def facts(trace: Trace, diagnosis: Diagnosis, outcomes: Sequence[Outcome]) -> list[str]:
    """Key facts in words, for a reader who is new to the subject."""
    found, share = diagnosis.revisiting, diagnosis.frequency
    answer = len(trace) - trace.info.prompt_length
    lines = [
        f"The model read a prompt of {trace.info.prompt_length:,} tokens and then {answer:,} more. Each token looks "
        "back at earlier ones through its queries, one in each layer and head.",
        f"A query is global if the {found.top_keys} entries it attends to most lie, on average, more than "
        f"{found.distance:g} tokens back: {100 * share.mean():.0f}% of all queries here. Such a token revisits an "
        "earlier thought; the others are local.",
    ]
    summary = diagnosis.summary()
    if summary["heads_tested"]:
        lines.append(
            f"Before positions are mixed in, the global queries of {summary['heads_clustered']} of "
            f"{summary['heads_tested']} heads fall into groups more clearly than shuffled ones do (p ≤ 0.05)."
        )
    for outcome in outcomes:
        row = outcome.summary()
        if row["lost"] is None:
            why = "came after the last token" if row["evictions"] else "never came: the text fits, nothing was evicted"
            lines.append(f"{outcome.replay.label}: the first eviction {why}.")
            continue
        lines.append(
            f"{outcome.replay.label} keeps at most {row['budget']:,} entries in each layer and head. After its first "
            f"eviction {100 * row['lost']:.1f}% of attention would have gone to entries it had dropped; an oracle "
            f"that knows the future would lose {100 * row['oracle']:.1f}%, no method less than "
            f"{100 * row['bound']:.1f}%."
        )
    return lines


def _policy(outcome: Outcome, number: Tensor, head: Tensor) -> dict[str, Any]:
    row = outcome.summary()

    def percent(name: str) -> str:
        return "–" if row[name] is None else f"{100 * row[name]:.1f}%"

    coverage = outcome.replay.coverage[number, head]
    return {
        "label": outcome.replay.policy,
        "budget": outcome.replay.budget,
        "colour": style_of(outcome.replay.policy).colour,
        "summary": [
            ["evictions", f"{row['evictions']:,}"],
            ["attention lost", percent("lost")],
            ["oracle", percent("oracle")],
            ["bound", percent("bound")],
            [f"top {outcome.top_keys} keys still held", percent("recall")],
            ["cosine to observation queries", "–" if row["coverage"] is None else f"{row['coverage']:.2f}"],
        ],
        "dropped": outcome.replay.dropped.numpy(),
        "steps": torch.tensor(outcome.replay.steps, dtype=torch.int32).numpy(),
        "lost": outcome.lost[number, head].numpy(),
        "coverage": None if coverage.isnan().all() else coverage.numpy(),
    }
