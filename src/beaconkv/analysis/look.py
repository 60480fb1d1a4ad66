"""A folder for one trace: how often each head looks far back, as ``diagnosis.json`` and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..provenance import provenance
from .diagnosis import Diagnosis, diagnose
from .pictures import draw_attention, draw_clusters, draw_cosines, draw_frequency, picture_head
from .trace import Trace


def look(
    trace: Trace,
    out: Path,
    *,
    top_keys: int,
    distance: float,
    start: int | None = None,
    stop: int | None = None,
    head: tuple[int, int] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda layers: None,
) -> tuple[Diagnosis, dict[str, Any], list[Path]]:
    """Diagnose a trace, and write the result and its pictures to a folder.

    Args:
        top_keys, distance, start, stop, seed, advance: Arguments of :func:`~beaconkv.analysis.diagnosis.diagnose`.
        head: Layer and query head of the pictures of one head; None: see
            :func:`~beaconkv.analysis.pictures.telling_head`.

    Returns:
        The diagnosis, the content of ``diagnosis.json``, and the pictures that were drawn.

    Raises:
        ValueError: as :func:`~beaconkv.analysis.diagnosis.diagnose`.
    """
    found = diagnose(trace, top_keys=top_keys, distance=distance, start=start, stop=stop, seed=seed, advance=advance)
    result = {"trace": str(trace.path), **found.summary(), **provenance(model=trace.info.model, seed=seed)}
    (out / "diagnosis.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    layer, number = head or picture_head(found)
    window = mixed_range(trace, found, layer, number)
    (out / "clusters.png").unlink(missing_ok=True)  # from an earlier run: this one may draw none
    pictures = [
        draw_frequency(found, trace.info.heads, out / "frequency.png"),
        draw_attention(trace, found, layer, number, *window, out / "attention.png"),
        draw_cosines(trace, found, layer, number, *window, out / "cosines.png"),
        draw_clusters(found, out / "clusters.png"),
    ]
    return found, result, [path for path in pictures if path is not None]


def mixed_range(trace: Trace, found: Diagnosis, layer: int, head: int, width: int = 48) -> tuple[int, int]:
    """Queries for the pictures, where local and global ones are most mixed in the second half of the text."""
    far = found.revisiting.is_global[found.revisiting.layers.index(layer), trace.info.heads.index(head)].float()
    length = len(trace)
    if length <= width:
        return 0, length
    first = max(trace.info.prompt_length, length // 2)
    counts = far.unfold(0, width, 1).sum(-1)[min(first, length - width) :]
    mixed = (counts - width / 4).abs()
    start = min(first, length - width) + int(mixed.argmin())
    return start, start + width
