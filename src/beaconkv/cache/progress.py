"""The counter of one row of a bounded cache: its entries, and when it is evicted.

Evictions are decided by counting, so the state of a row is a function of its schedule, its prompt and the number of
tokens it has seen. This is the only counter of the library: the layers of a cache, the scheduler and the worker of a
paged cache, and a replay each hold one for every row, and need no messages between them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from ..schedule import EvictionSchedule

NO_EVICTION = 1 << 62
"""Number of entries that fit before the next eviction where nothing is ever evicted."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one row without an eviction between them.

    Attributes:
        start, stop: logical positions, half-open.
        stored: number of entries held before the first of them.
        prefill_start: position at which the prefill chunk begins that they belong to; None for decode steps.
        left: number of entries that fit after the last of them; None in the middle of a prefill chunk.
        keep: number of entries that the eviction after them leaves; None where no eviction follows.
    """

    start: int
    stop: int
    stored: int
    prefill_start: int | None
    left: int | None
    keep: int | None

    def __len__(self) -> int:
        return self.stop - self.start


class Progress:
    """The counter of one row. Its state does not depend on the portions in which tokens arrive.

    Tokens come in one of two ways. A decode step takes one token: :meth:`store`, then :meth:`end_step`. A chunk of a
    prompt is stored whole before anything is evicted: :meth:`store`, then :meth:`end_chunk`. :meth:`advance` does both
    for a prompt in chunks of a fixed size; a chunk of one token is then a decode step.

    Args:
        schedule: schedule of the row.
        prompt: number of tokens that are not decode steps.
        chunk: number of prompt tokens in each chunk that :meth:`advance` takes.

    Attributes:
        seen: number of tokens so far: the next logical position.
        stored: number of entries held, before the eviction that is due.
        due: number of entries which that eviction leaves; None where none is due.
        evictions: number of evictions so far, without the one that is due.

    Raises:
        ValueError: the schedule has no room for the prompt.

    Example:
        >>> progress = Progress(EvictionSchedule(64), prompt=10, chunk=10)
        >>> [chunk.stop for chunk in progress.advance(100) if chunk.keep is not None]
        [64, 72, 80, 88, 96]
    """

    def __init__(self, schedule: EvictionSchedule, prompt: int, chunk: int = 1) -> None:
        self.schedule, self.prompt, self.chunk = schedule, 0, chunk
        self.seen = self.stored = self.evictions = 0
        self.due: int | None = None
        self.extend_prompt(prompt)

    def extend_prompt(self, tokens: int) -> None:
        """Make the prompt longer by some tokens.

        Raises:
            ValueError: the schedule has no room for the prompt.
        """
        self.require_room(tokens)
        self.prompt += tokens
        self._update()

    def require_room(self, tokens: int) -> None:
        """Raise ``ValueError`` if the schedule has no room for a prompt that is longer by some tokens."""
        if self.schedule.budget is not None:
            self.schedule.kept_for(self.prompt + tokens)

    def _update(self) -> None:
        """After a change of prompt or evictions."""
        self.full_at = self.schedule.full_at(self.prompt, self.evictions)
        """Number of entries at which a chunk is evicted; None: never."""
        self.full_in_step_at = self.schedule.full_in_step_at(self.prompt, self.evictions)
        """The same of a decode step."""

    def copy(self) -> Progress:
        """An independent counter in the same state."""
        return copy(self)

    @property
    def state(self) -> tuple[int | None, ...]:
        """Everything that differs between rows of one schedule: equal for two rows in the same state."""
        return self.prompt, self.seen, self.stored, self.evictions, self.due

    @property
    def group(self) -> tuple[int | None, ...]:
        """Equal for rows that hold the same number of entries and are evicted alike."""
        return self.stored, self.schedule.prefix_for(self.prompt), self.full_in_step_at

    @property
    def left(self) -> int:
        """Number of entries that decode steps may still add before an eviction; 0 or less: it is due."""
        return NO_EVICTION if self.full_in_step_at is None else self.full_in_step_at - self.stored

    @property
    def settled(self) -> int:
        """Number of entries held after the eviction that is due."""
        return self.stored if self.due is None else self.due

    def settle(self) -> None:
        """Count the eviction that is due, if one is: it has been carried out."""
        if self.due is not None:
            self.stored, self.due = self.due, None
            self.evictions += 1
            self._update()

    def store(self, tokens: int) -> None:
        """Count new tokens and their entries; nothing falls due yet."""
        self.seen += tokens
        self.stored += tokens

    def end_step(self) -> int:
        """Decide about an eviction after decode steps; returns :attr:`left`."""
        left = self.left
        if left <= 0:
            self.due = self.schedule.kept_in_step(self.prompt, self.evictions, self.stored)
        return left

    def end_chunk(self) -> int:
        """Decide about an eviction at the end of a chunk; returns the number of entries that fit before one."""
        if self.full_at is None:
            return NO_EVICTION
        left = self.full_at - self.stored
        if left <= 0:
            self.due = self.schedule.kept_in_chunk(self.prompt, self.evictions)
            return left
        return max(1, self.left)  # the next step may be full before the chunk would have been

    def advance(self, tokens: int) -> list[Chunk]:
        """Take in some tokens. Of the evictions that fall due among them, the last may remain due."""
        chunks, stop = [], self.seen + tokens
        while self.seen < stop:
            self.settle()
            chunks.append(self._next(stop))
        return chunks

    def _next(self, stop: int) -> Chunk:
        start, stored = self.seen, self.stored
        chunk_start = start // self.chunk * self.chunk
        chunk_end = min(self.prompt, chunk_start + self.chunk)
        if start < self.prompt and chunk_end - chunk_start > 1:
            self.store(min(stop, chunk_end) - start)
            left = self.end_chunk() if self.seen == chunk_end else None
            return Chunk(start, self.seen, stored, chunk_start, left, self.due)
        # A chunk may have filled the row beyond where a step is evicted early: the eviction comes with the next step.
        self.store(min(stop - start, 1 if start < self.prompt else max(self.left, 1)))
        left = self.end_step()
        return Chunk(start, self.seen, stored, None, left, self.due)


def eviction_steps(schedule: EvictionSchedule, prompt: int, tokens: int) -> list[int]:
    """Positions of the tokens right after which a row is evicted whose prompt comes in one chunk.

    Args:
        schedule: schedule of the row.
        prompt: number of tokens of the prompt.
        tokens: number of all tokens.

    Raises:
        ValueError: the schedule has no room for the prompt.
    """
    progress = Progress(schedule, prompt, prompt)
    progress.store(prompt)
    progress.end_chunk()
    evicted = [] if progress.due is None else [prompt - 1]
    return evicted + [chunk.stop - 1 for chunk in progress.advance(tokens - prompt) if chunk.keep is not None]


def most_slots(schedule: EvictionSchedule, chunk: int, tokens: int) -> int | None:
    """Number of slots that a row needs at most when up to ``tokens`` tokens come at once; None: there is no bound.

    A chunk may be under way in a row that was almost full, and all that comes is stored before anything is evicted.
    """
    if schedule.budget is None or schedule.growth or schedule.scope == "output":
        return None
    return schedule.budget - 1 + (chunk - 1) + tokens
