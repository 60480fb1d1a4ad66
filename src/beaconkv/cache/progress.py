"""One row of a bounded cache, told by counting alone: how many entries it holds, and when it is evicted.

Evictions are decided by count, so where a row stands is a function of its schedule, its prompt and the number of tokens
it has seen. Whoever keeps the blocks of a paged cache and whoever fills them can each count for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schedule import EvictionSchedule

NO_EVICTION = 1 << 62
"""Steps until an eviction that does not come."""


@dataclass(frozen=True)
class Run:
    """Tokens that follow each other without an eviction between them.

    Attributes:
        start, stop: logical positions, half-open.
        stored: entries held before the first of them.
        piece: where the piece of the prompt begins that they belong to, or None: they are decode steps.
        left: entries that may still come after the last of them; None in the middle of a piece.
        keep: entries that the eviction after them leaves, or None: there is none.
    """

    start: int
    stop: int
    stored: int
    piece: int | None
    left: int | None
    keep: int | None

    def __len__(self) -> int:
        return self.stop - self.start


class Progress:
    """Where one row stands. It comes to the same point however its tokens are dealt out.

    The prompt is taken in pieces of ``piece`` tokens, with an eviction after each that fills the row; what comes
    after is taken token by token. A piece of one token is a decode step, as it is in
    :class:`~beaconkv.cache.BoundedLayer`.

    Args:
        schedule: of the row.
        prompt: its tokens that are not decode steps.
        piece: tokens of the prompt between two evictions at least.

    Attributes:
        seen: tokens so far.
        stored: entries held, before the eviction that is due.
        due: entries which that eviction leaves, or None: none is due.
        evictions: that came, without the one that is due.

    Raises:
        ValueError: a prompt that the schedule has no room for.
    """

    def __init__(self, schedule: EvictionSchedule, prompt: int, piece: int) -> None:
        if schedule.budget is not None:
            schedule.kept_for(prompt)
        self.schedule, self.prompt, self.piece = schedule, prompt, piece
        self.seen = self.stored = self.evictions = 0
        self.due: int | None = None

    @property
    def settled(self) -> int:
        """Entries held after the eviction that is due."""
        return self.stored if self.due is None else self.due

    def settle(self) -> None:
        """The eviction that is due has come."""
        if self.due is not None:
            self.stored, self.due = self.due, None
            self.evictions += 1

    def advance(self, tokens: int) -> list[Run]:
        """Take in so many tokens. Of the evictions that fall due, the last may remain due."""
        runs, stop = [], self.seen + tokens
        while self.seen < stop:
            self.settle()
            runs.append(self._run(stop))
        return runs

    def _run(self, stop: int) -> Run:
        start, stored, evictions = self.seen, self.stored, self.evictions
        piece = start // self.piece * self.piece
        end = min(self.prompt, piece + self.piece)
        if start < self.prompt and end - piece > 1:
            return self._into_piece(piece, end, min(stop, end))
        full_at = self.schedule.full_in_step_at(self.prompt, evictions)
        room = NO_EVICTION if full_at is None else full_at - stored
        # A piece may have filled the row beyond where a step is evicted early: the eviction comes with the next step.
        self.seen = min(stop, start + (1 if start < self.prompt else max(room, 1)))
        self.stored += self.seen - start
        left = room - (self.seen - start)
        if left <= 0:
            self.due = self.schedule.kept_in_step(self.prompt, evictions, self.stored)
        return Run(start, self.seen, stored, None, left, self.due)

    def _into_piece(self, piece: int, end: int, stop: int) -> Run:
        start, stored = self.seen, self.stored
        self.seen, self.stored, left = stop, stored + stop - start, None
        if stop == end:
            full_at = self.schedule.full_at(self.prompt, self.evictions)
            left = NO_EVICTION if full_at is None else full_at - self.stored
            if left <= 0:
                self.due = self.schedule.kept_in_chunk(self.prompt, self.evictions)
            elif full_at is not None:  # the next step may be full before the piece would have been
                left = max(1, self.schedule.full_in_step_at(self.prompt, self.evictions) - self.stored)
        return Run(start, stop, stored, piece, left, self.due)


def most_slots(schedule: EvictionSchedule, piece: int, tokens: int) -> int | None:
    """Slots that a row needs at most when up to so many tokens come at once; None: there is no bound.

    A piece may be under way in a row that was almost full, and all that comes is stored before anything is evicted.
    """
    if schedule.budget is None or schedule.growth or schedule.scope == "output":
        return None
    return schedule.budget - 1 + (piece - 1) + tokens
