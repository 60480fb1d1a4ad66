"""Fidelity: the distance of a bounded cache to the full cache on given texts. No answers are needed.

Both caches read the same text (teacher forcing); the full one in a single pass, the bounded one token by
token, because what it evicts depends on it. At each token after the prompt their next-token distributions are compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...policies import parse_policy
from ..cells import Cell
from .follow import follow
from .head import OutputHead
from .journal import Journal
from .lost_mass import LostMass
from .reference import Reference, read_reference, sampled_steps
from .texts import Text

HEAD_TOKENS = 128
"""Number of tokens whose logits exist at the same time."""


@dataclass(frozen=True)
class FidelitySettings:
    """Settings of the measurement.

    Attributes:
        rows: texts that go through the model together. More is faster, and holds more references in memory:
            hidden states, keys and sampled queries of the whole text.
        together: number of methods and budgets that share each forward pass, which multiplies its matrices once. Then
            their speed is not measured: ``tokens_per_second`` is None.
        chunk: tokens of a forward pass with the full cache.
        mass_every: interval in tokens at which attention mass is measured; 0: it is not measured.
        seed: chooses these tokens.

    Raises:
        ValueError: a number that is too small.
    """

    rows: int = 8
    together: int = 1
    chunk: int = 512
    mass_every: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("together", 1), ("chunk", 1), ("mass_every", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def measure(
    model: nn.Module,
    texts: Sequence[Text],
    cells: Sequence[Cell],
    settings: FidelitySettings | None = None,
    *,
    records: Path | None = None,
    label: str = "",
    advance: Callable[[int], None] = lambda tokens: None,
) -> list[dict[str, Any]]:
    """Compare each cell with the full cache on each text.

    A record holds, over the tokens after the prompt, given all before: ``kl``, the mean of KL(full ‖ bounded) of the
    next-token distribution in nats; ``agreement``, the share of tokens at which both have the same likeliest token;
    ``nll_full`` and ``nll``, mean negative log-likelihood of the text (perplexity is its exponential); ``mass_lost``,
    the share of the full cache's attention probability on evicted entries (mean over layers and heads; sampled tokens;
    None if switched off); ``evictions``; bytes, see :class:`~beaconkv.evaluation.fidelity.follow.RowCost`; and
    ``tokens_per_second`` of the whole batch, decoder only.

    The first token after the prompt is predicted by the prompt's own pass, which attends to the whole prompt.

    Args:
        cells: from :func:`beaconkv.evaluation.cells.make_cells`.
        records: a JSONL file. Records are added as they are done; those found there are not measured again.
        label: what else distinguishes these results in that file: the model's name, its dtype.
        advance: called with the number of tokens that are done; :func:`work` says how many there will be.

    Example:
        >>> texts = [Text("chain", tuple(chain), prompt_length=40)]
        >>> (record,) = measure(model, texts, make_cells(["beaconkv"], budgets=[96]))
        >>> record["kl"] > 0, record["agreement"] <= 1
        (True, True)

    Returns:
        One dict for each cell and text, cells in their order, texts in theirs.

    Raises:
        ValueError: a prompt that fills the budget, texts of one name, a model that cannot be bounded or whose
            logits are not finite.
    """
    settings = settings or FidelitySettings()
    names = [text.name for text in texts]
    if len(set(names)) < len(names):
        raise ValueError(f"texts need names of their own, got {', '.join(names)}")
    for cell in cells:
        for text in texts:
            if cell.budget is not None:
                cell.schedule.kept_for(text.prompt_length)
    with Journal(records) as journal:
        key = {
            (c, t): _key(label, settings, cell, text) for c, cell in enumerate(cells) for t, text in enumerate(texts)
        }
        head: OutputHead | None = None
        for start in range(0, len(texts), settings.rows):
            batch = sorted(range(start, min(start + settings.rows, len(texts))), key=lambda t: -texts[t].predictions)
            references: dict[int, Reference] = {}
            for group in _groups(cells, settings.together):
                missing = [t for t in batch if any(key[c, t] not in journal.done for c in group)]
                advance(len(group) * sum(texts[t].predictions for t in batch if t not in missing))
                if not missing:
                    continue
                if head is None:
                    head = OutputHead(model, torch.tensor([texts[0].ids[:8]], device=model.device))
                steps = sampled_steps(texts[batch[0]].predictions, settings.mass_every, settings.seed)
                for t in missing:
                    if t not in references:
                        own = [step for step in steps if step < texts[t].predictions]
                        references[t] = read_reference(model, head, texts[t], own, settings.chunk)
                rows = [texts[t] for t in missing]
                own_cells = [cells[c] for c in group]
                found = _measure_batch(model, head, own_cells, rows, [references[t] for t in missing], steps, advance)
                for c, records_of_cell in zip(group, found, strict=True):
                    for t, record in zip(missing, records_of_cell, strict=True):
                        if key[c, t] not in journal.done:
                            journal.append({"key": key[c, t], **record})
        return [journal.done[key[c, t]] for c in range(len(cells)) for t in range(len(texts))]


def work(texts: Sequence[Text], cells: Sequence[Cell]) -> int:
    """Number of tokens that :func:`measure` will report."""
    return len(cells) * sum(text.predictions for text in texts)


def _groups(cells: Sequence[Cell], together: int) -> list[list[int]]:
    """Numbers of the cells that share forward passes: those of one budget first, so that all grow alike."""
    order = sorted(range(len(cells)), key=lambda c: (cells[c].budget or 0, c)) if together > 1 else range(len(cells))
    return [list(order[start : start + together]) for start in range(0, len(cells), together)]


def _measure_batch(
    model: nn.Module,
    head: OutputHead,
    cells: list[Cell],
    texts: list[Text],
    references: list[Reference],
    steps: list[int],
    advance: Callable[[int], None],
) -> list[list[dict[str, Any]]]:
    """The records of each cell and text."""
    sums = torch.zeros(len(cells), 4, len(texts), dtype=torch.float64)

    def take(own_sums: Tensor, first: int, hidden: Tensor) -> None:
        num_steps, rows, _ = hidden.shape
        full = torch.stack([references[row].hidden[first : first + num_steps] for row in range(rows)], dim=1)
        ends = [slice(text.prompt_length + first, text.prompt_length + first + num_steps) for text in texts[:rows]]
        target = torch.tensor([text.ids[end] for text, end in zip(texts, ends, strict=False)], device=hidden.device)
        parts = [t.flatten(0, 1).split(HEAD_TOKENS) for t in (full, hidden, target.T)]
        found = torch.cat([_compare(head, *part) for part in zip(*parts, strict=True)], dim=1)
        own_sums[:, :rows] += found.view(4, num_steps, rows).sum(1, dtype=torch.float64).cpu()
        advance(num_steps * rows)

    losses = [LostMass(texts, references, steps) for _ in cells] if steps else None
    with ExitStack() as stack:
        caches = [stack.enter_context(cell.new_cache(model)) for cell in cells]
        costs, seconds = follow(head.decoder, caches, texts, [partial(take, own) for own in sums], losses)
    speed = round(sum(t.predictions - 1 for t in texts) / seconds, 2) if len(cells) == 1 else None
    return [
        [
            _record(cell, text, sums[c, :, row], losses and losses[c], row)
            | vars(costs[c][row])
            | {"tokens_per_second": speed, "rows": len(texts)}
            for row, text in enumerate(texts)
        ]
        for c, cell in enumerate(cells)
    ]


def _record(cell: Cell, text: Text, sums: Tensor, lost: LostMass | None, row: int) -> dict[str, Any]:
    kl, agreement, nll_full, nll = (sums / text.predictions).tolist()
    if not math.isfinite(kl):
        raise ValueError(f"text {text.name!r}, {cell.policy}: the model's logits are not finite")
    return {
        "text": text.name,
        "policy": cell.policy,
        "budget": cell.schedule.budget,
        "schedule": vars(cell.schedule),
        "prompt_tokens": text.prompt_length,
        "tokens": text.predictions,
        "kl": max(kl, 0.0),  # rounding may leave -1e-9
        "agreement": agreement,
        "nll_full": nll_full,
        "nll": nll,
        "mass_lost": lost.sums[row] / lost.counts[row] if lost and lost.counts[row] else None,
    }


def _compare(head: OutputHead, full: Tensor, bounded: Tensor, target: Tensor) -> Tensor:
    """KL, agreement and the target's negative log-likelihoods (4, n), from full, bounded (n, D) and target (n,)."""
    p, q = (head.logits(hidden).log_softmax(-1) for hidden in (full, bounded))
    same = (p.argmax(-1) == q.argmax(-1)).float()
    nll = [-t.gather(1, target.unsqueeze(1)).squeeze(1) for t in (p, q)]
    return torch.stack([(p.exp() * (p - q)).sum(-1), same, *nll])


def _key(label: str, settings: FidelitySettings, cell: Cell, text: Text) -> str:
    """A key that is equal for measurements with equal records."""
    policy = repr(parse_policy(cell.policy).policy)
    parts = [label, settings.mass_every, settings.seed, policy, vars(cell.schedule), text.digest, text.name]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
