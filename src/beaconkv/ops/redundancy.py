"""How much a key repeats other keys (R-KV, section 3). Reference version."""

from __future__ import annotations

import torch
from torch import Tensor

from .sampling import unit_vectors

BLOCK = 128
"""Number of keys compared with all others at a time: the whole (N, N) matrix of a large batch would not fit."""


def key_redundancy(keys: Tensor, positions: Tensor, threshold: float = 0.5) -> Tensor:
    """Softmax over the entries of the mean cosine similarity of each key to the others.

    S[i, j] = cos(k_i, k_j), 0 for i = j. In each row i the most recent j with S[i, j] > threshold is
    exempt, S[i, j] = 0: of keys that repeat each other the newest is not penalised.
    redundancy = softmax_j(1/N sum_i S[i, j]).

    The published code sets S[i, 0] to 0 in rows without any key above the threshold; this function does not.

    Args:
        keys: Keys (R, H_kv, N, D) as stored, any float dtype; computed in float32.
        positions: Positions (R, H_kv, N) integer, distinct within a head, >= 0.
        threshold: Cosine above which two keys count as equal.

    Returns:
        (R, H_kv, N) float32, sums to 1.
    """
    unit, size = unit_vectors(keys), keys.shape[-2]
    total = torch.zeros(keys.shape[:-1], device=keys.device)
    for start in range(0, size, BLOCK):
        cos = unit[..., start : start + BLOCK, :] @ unit.transpose(-1, -2)  # (R, H_kv, block, N)
        cos.diagonal(start, dim1=-2, dim2=-1).zero_()
        newest = positions.unsqueeze(-2).masked_fill(cos <= threshold, -1).amax(dim=-1, keepdim=True)  # (..., block, 1)
        total += cos.masked_fill_(positions.unsqueeze(-2) == newest, 0.0).sum(dim=-2)
    return (total / size).softmax(dim=-1)
