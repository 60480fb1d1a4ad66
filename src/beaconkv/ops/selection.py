"""Which entries stay (BeaconKV, section 4.3 and Algorithm 2). Reference version."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import require_finite


def select_entries(scores: Tensor, positions: Tensor, budget: int, *, prefix: int = 0, protect: int = 0) -> Tensor:
    """Slots of the entries to keep: the first ``prefix``, the last ``protect``, then the best scores.

    "First" and "last" are by logical position, since slots need not be in order. Protected entries
    are taken by index, not by score: a tie cannot evict them. Ties among the others go to the
    older entry.

    Args:
        scores: Scores (R, H_kv, N); entries of higher score stay.
        positions: Positions (R, H_kv, N) integer, distinct within a head.
        budget: Number of entries to keep, prefix + protect <= budget < N.
        prefix, protect: Number of entries never evicted at either end.

    Returns:
        (R, H_kv, budget) int64, ascending slots, distinct.

    Raises:
        ValueError: sizes that do not fit, or NaN and infinite scores.
    """
    num_entries = scores.shape[-1]
    if not prefix + protect <= budget < num_entries:
        raise ValueError(
            f"cannot keep {budget} of {num_entries} entries with prefix={prefix} and protect={protect}: "
            "prefix + protect <= budget < entries must hold"
        )
    require_finite(scores, "scores")
    oldest_first = positions.argsort(dim=-1)
    middle = oldest_first[..., prefix : num_entries - protect]  # (R, H_kv, N - prefix - protect)
    best = scores.gather(-1, middle).sort(dim=-1, descending=True, stable=True).indices
    chosen = middle.gather(-1, best[..., : budget - prefix - protect])  # (R, H_kv, budget - prefix - protect)
    keep = [oldest_first[..., :prefix], chosen, oldest_first[..., num_entries - protect :]]
    return torch.cat(keep, dim=-1).sort(dim=-1).values
