"""Lost attention mass: the share of the full cache's attention on evicted entries."""

from __future__ import annotations

import torch
from torch import Tensor

from ...integrations.transformers import BoundedCache
from .reference import Reference
from .texts import Text

BLOCK = 32
"""Number of sampled tokens whose attention is computed at a time; their probabilities over the whole text exist at
once."""


class LostMass:
    """The share of the full cache's attention probability on entries that a bounded cache no longer holds.

    Rows are texts, in the order of the cache's rows; the cache may drop rows from the end.

    Args:
        texts, references: texts and references of the rows.
        steps: as given to :func:`read_reference`.

    Attributes:
        sums: Sum, per row, of the share (mean over layers and query heads) over the sampled tokens.
        counts: Number, per row, of sampled tokens.
    """

    def __init__(self, texts: list[Text], references: list[Reference], steps: list[int]) -> None:
        self.texts, self.references, self.steps = texts, references, steps
        self.sums, self.counts = [0.0] * len(texts), [0] * len(texts)
        self._wanted = {step: number for number, step in enumerate(steps)}
        self._taken: list[int] = []  # numbers of the samples taken since the last flush
        self._held: list[list[Tensor]] = []  # of each: per layer, (rows, H_kv, length) positions

    def wants(self, step: int) -> bool:
        """Whether this step is sampled."""
        return step in self._wanted

    def take(self, step: int, cache: BoundedCache) -> None:
        """Called before step ``step``: the entries held now are those that its token attends to, besides itself."""
        self._taken.append(self._wanted[step])
        self._held.append([cache.positions(layer.index) for layer in self.references[0].layers])
        if len(self._taken) == BLOCK:
            self.flush()

    def flush(self) -> None:
        """Compute the recorded samples."""
        taken, held, self._taken, self._held = self._taken, self._held, [], []
        if not taken:
            return
        samples = slice(taken[0], taken[-1] + 1)
        for row in range(held[0][0].shape[0]):
            reference, first = self.references[row], self.texts[row].prompt_length - 1
            device = reference.hidden.device
            at = torch.tensor([first + self.steps[number] for number in taken], device=device)
            lost = 0.0
            for place, layer in enumerate(reference.layers):
                seen = _as_mask([sample[place][row] for sample in held], at, layer.keys.shape[2])
                lost = lost + layer.lost(samples, at, seen).sum().item() / len(reference.layers)
            self.sums[row] += lost
            self.counts[row] += len(taken)


def _as_mask(held: list[Tensor], at: Tensor, size: int) -> Tensor:
    """n times (H_kv, length) positions, -1 where there is none -> (n, H_kv, size) bool; each attends to itself."""
    mask = torch.zeros(len(held), held[0].shape[0], size + 1, dtype=torch.bool, device=at.device)
    for i, positions in enumerate(held):
        mask[i].scatter_(1, positions.long() % (size + 1), True)  # -1 goes to the surplus column
    mask.scatter_(2, at.view(-1, 1, 1).expand(-1, mask.shape[1], -1), True)
    return mask[:, :, :size]
