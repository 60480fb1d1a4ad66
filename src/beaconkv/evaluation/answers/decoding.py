"""Writing text for a batch of prompts; the text of a row does not depend on the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ...integrations.transformers import BoundedCache, cache_argument

RETIRE = 0.25
"""Share of finished rows from which they are removed from the batch."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: Maximum number of tokens of one answer.
        temperature: Temperature; 0 takes the likeliest token.
        top_p: Share of the probability that sampling chooses from (nucleus), in (0, 1].

    Raises:
        ValueError: a number out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.max_new_tokens, bool) or self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens!r}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")


@dataclass(frozen=True)
class Written:
    """The output of one row.

    Attributes:
        row: Number of the row in the batch.
        tokens: Token ids without the end token.
        capped: Whether the limit ended it.
        evictions: Number of evictions of each of its layers.
        rows: Number of rows in the cache when it ended.
    """

    row: int
    tokens: list[int]
    capped: bool
    evictions: int
    rows: int


@torch.inference_mode()
def write_answers(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    cache: BoundedCache,
    sampling: Sampling,
    seeds: Sequence[int],
    stop: Sequence[int],
    pad: int,
    done: Callable[[Written], None],
    advance: Callable[[int], None] = lambda rows: None,
) -> None:
    """Let the model continue each prompt until a stop token or the limit.

    Each row draws from a generator of its own, so what it writes does not depend on the other rows
    (beyond the rounding of a matrix product of another size).

    Args:
        model: a decoder in evaluation mode.
        prompts: token ids of each row; padded on the left here.
        cache: fresh, made for this model.
        seeds: random seeds of each row's generator.
        stop: token ids that end an answer.
        pad: token id that fills shorter prompts.
        done: called with each row as it ends.
        advance: called after each step with the number of rows still writing.

    Raises:
        ValueError: an empty prompt, or not as many seeds as prompts.
    """
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many seeds, got {len(seeds)}")
    if not all(prompts):
        raise ValueError(f"prompt {next(i for i, p in enumerate(prompts) if not p)} is empty")
    device, width = model.device, max(map(len, prompts))
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    is_padded = min(map(len, prompts)) < width
    mask = (torch.arange(width, device=device) >= (width - lengths)[:, None]).long()
    call = {"use_cache": True, cache_argument(): cache, "attention_mask": mask if is_padded else None}
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    dice = Dice(sampling, seeds, device)
    rows = list(range(len(prompts)))  # numbers of the prompts that are still in the batch
    texts: list[list[int]] = [[] for _ in prompts]
    open_rows = set(rows)
    stops = set(stop)
    logits = model(input_ids=ids, position_ids=positions, logits_to_keep=1, **call).logits[:, -1]
    is_padded = is_padded and cache.holds_padding
    mask = F.pad(mask, (0, sampling.max_new_tokens), value=1) if is_padded else None
    positions = lengths[:, None]
    for step in range(sampling.max_new_tokens):
        ids = dice.choose(logits, step)
        ended = []
        for at, (row, token) in enumerate(zip(rows, ids.tolist(), strict=True)):
            if row not in open_rows:
                continue
            if token not in stops:
                texts[row].append(token)
            if token in stops or step + 1 == sampling.max_new_tokens:
                ended.append((at, row, token not in stops))
        if ended:
            evictions = cache.row_evictions()
            for at, row, capped in ended:
                open_rows.discard(row)
                done(Written(row, texts[row], capped, evictions[at], len(rows)))
        advance(len(open_rows))
        if not open_rows:
            return
        if len(rows) - len(open_rows) >= RETIRE * len(rows):
            keep = [at for at, row in enumerate(rows) if row in open_rows]
            index = torch.tensor(keep, device=device)
            cache.batch_select_indices(index)
            dice.select(index)
            rows = [rows[at] for at in keep]
            ids, positions = ids[index], positions[index]
            mask = mask[index] if is_padded else None
        call["attention_mask"] = mask[:, : width + step + 1] if is_padded else None
        logits = model(input_ids=ids[:, None], position_ids=positions, **call).logits[:, -1]
        positions = positions + 1


class Dice:
    """The choice of tokens, each row with random numbers of its own."""

    BLOCK = 256

    def __init__(self, sampling: Sampling, seeds: Sequence[int], device: torch.device) -> None:
        self.sampling, self.device = sampling, device
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.numbers: Tensor | None = None  # (rows, BLOCK), uniform in [0, 1)

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Next tokens (rows,) int64 from logits (rows, vocabulary)."""
        if not self.sampling.temperature:
            return logits.argmax(-1)
        if step % self.BLOCK == 0:
            drawn = [torch.rand(self.BLOCK, generator=generator) for generator in self.generators]
            self.numbers = torch.stack(drawn).to(self.device)
        probs, order = (
            (logits.float() / self.sampling.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
        )
        below = probs.cumsum(-1) - probs  # probability of the likelier tokens
        probs = probs * (below < self.sampling.top_p)
        mass = probs.cumsum(-1)
        at = self.numbers[:, step % self.BLOCK, None] * mass[:, -1:]
        return order.gather(-1, (mass <= at).sum(-1, keepdim=True).clamp(max=mass.shape[-1] - 1)).squeeze(-1)

    def select(self, index: Tensor) -> None:
        """Keep these rows."""
        self.generators = [self.generators[at] for at in index.tolist()]
        if self.numbers is not None:
            self.numbers = self.numbers[index]
