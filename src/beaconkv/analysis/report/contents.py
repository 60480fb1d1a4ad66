"""Contents of a page, checked before it is made, so that its code never meets arrays that do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import array, encode, field, integer, require, string, strings

NOT_DROPPED = 2**31 - 1
"""In ``dropped``: the entry was still held at the end."""


def contents(data: Mapping[str, Any]) -> dict[str, Any]:
    """All of the page's data, ready for JSON; the fields are those of ``render_page``.

    Raises:
        ValueError: a field is missing or does not fit the others; the message names it.
    """
    tokens = strings(data, "tokens")
    length = len(tokens)
    require(length > 0, "tokens", "must not be empty")
    out: dict[str, Any] = {name: string(data, name) for name in ("title", "subtitle")}
    out["tokens"] = tokens
    out["prompt_length"] = integer(data, "prompt_length", 0, length)
    for name in ("local_distance", "top_keys", "num_layers", "num_heads", "num_kv_heads"):
        out[name] = integer(data, name, 1)
    out["layers"] = _layers(data, out["num_layers"])
    rows, columns = len(out["layers"]), out["num_heads"]
    frequency = array(data, "frequency", "f4", {"layers": rows, "heads": columns})
    require(not ((frequency < 0) | (frequency > 1)).any(), "frequency", "must lie in 0..1, or be NaN")
    out["frequency"] = encode(frequency)
    out["heads"] = [_head(head, f"heads[{i}].", out) for i, head in enumerate(_listed(data, "heads"))]
    require(len(out["heads"]) > 0, "heads", "must name at least one head")
    out |= {name: encode(values) for name, values in _queries(data, len(out["heads"]), length).items()}
    out["policies"] = [_policy(one, f"policies[{i}].", out) for i, one in enumerate(_listed(data, "policies"))]
    return out


def _layers(data: Mapping[str, Any], num_layers: int) -> list[int]:
    layers = array(data, "layers", "i4", {"layers": None}).tolist()
    distinct = len(set(layers)) == len(layers) > 0
    require(
        distinct and min(layers) >= 0 and max(layers) < num_layers,
        "layers",
        f"must be different numbers below num_layers={num_layers}",
    )
    return layers


def _head(head: Mapping[str, Any], path: str, page: Mapping[str, Any]) -> dict[str, Any]:
    layer = integer(head, "layer", 0, None, path)
    require(layer in page["layers"], path + "layer", f"must be one of {page['layers']}, not {layer}")
    share = array(head, "share", "f4", {}, path)
    require(bool(0 <= share <= 1), path + "share", f"must lie in 0..1, not {share}")
    return {
        "layer": layer,
        "head": integer(head, "head", 0, page["num_heads"] - 1, path),
        "kv_head": integer(head, "kv_head", 0, page["num_kv_heads"] - 1, path),
        "share": float(share),
    }


def _queries(data: Mapping[str, Any], heads: int, length: int) -> dict[str, np.ndarray]:
    """The entries that each query of the heads shown attends to: (n, T) and (n, T, K)."""
    each = {"heads": heads, "tokens": length}
    targets = array(data, "targets", "i4", {**each, "targets": None})
    reach = np.arange(length)[:, None]
    require(bool((targets >= -1).all()), "targets", "must be positions, or -1")
    require(bool((targets <= reach).all()), "targets", "must not lie after their query")
    weights = array(data, "weights", "f4", {**each, "targets": targets.shape[2]})
    require(bool((weights[targets >= 0] >= 0).all()), "weights", "of targets must not be negative or NaN")
    return {
        "is_global": array(data, "is_global", "u1", each),
        "distance": array(data, "distance", "f4", each),
        "targets": targets,
        "weights": weights,
    }


def _policy(policy: Mapping[str, Any], path: str, page: Mapping[str, Any]) -> dict[str, Any]:
    length, heads = len(page["tokens"]), len(page["heads"])
    colour = string(policy, "colour", path)
    require(re.fullmatch("#[0-9a-fA-F]{6}", colour) is not None, path + "colour", f"must be #rrggbb, not {colour!r}")
    shape = {"layers": len(page["layers"]), "kv_heads": page["num_kv_heads"], "tokens": length}
    dropped = array(policy, "dropped", "i4", shape, path)
    require(bool((dropped >= np.arange(length)).all()), path + "dropped", "must not precede the entry itself")
    steps = array(policy, "steps", "i4", {"evictions": None}, path)
    ascending = not steps.size or (steps[0] >= 0 and steps[-1] < length and (np.diff(steps) > 0).all())
    require(bool(ascending), path + "steps", "must be ascending positions of the text")
    lost = array(policy, "lost", "f4", {"heads": heads, "cycles": steps.size + 1}, path)
    coverage = None
    if field(policy, "coverage", path) is not None:
        coverage = encode(array(policy, "coverage", "f4", {"heads": heads, "tokens": length}, path))
    return {
        "label": string(policy, "label", path),
        "budget": integer(policy, "budget", 1, None, path),
        "colour": colour,
        "summary": [_row(row, f"{path}summary[{i}]") for i, row in enumerate(_listed(policy, "summary", path))],
        "dropped": encode(dropped),
        "steps": encode(steps),
        "lost": encode(lost),
        "coverage": coverage,
    }


def _row(row: Any, path: str) -> list[str]:
    pair = isinstance(row, Sequence) and len(row) == 2 and all(isinstance(item, str) for item in row)
    require(pair, path, f"must be [name, value], two texts, not {row!r}")
    return list(row)


def _listed(source: Mapping[str, Any], name: str, within: str = "") -> Sequence[Any]:
    value = field(source, name, within)
    require(isinstance(value, Sequence) and not isinstance(value, str), within + name, "must be a list")
    return value
