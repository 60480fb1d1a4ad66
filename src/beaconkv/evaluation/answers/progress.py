"""The progress of an evaluation, and the time it may still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import Batch


class Progress:
    """Counts answers and tokens. A subclass that shows them overrides :meth:`started` and :meth:`changed`.

    Attributes:
        answers, done: Number of answers in all, and of those that exist, those of earlier runs included.
        tokens: Number of tokens written by this run.
        batch: Batch that is computed now.
    """

    def __init__(self, answers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.answers, self.done, self.tokens = answers, 0, 0
        self.batch: Batch | None = None
        self._clock, self._start = clock, None
        self._ended = self._length = self._open = 0

    def found(self, answers: int) -> None:
        """Called once. count: number of answers of an earlier run."""
        self.done += answers
        self.changed()

    def started(self, batch: Batch) -> None:
        """A batch begins."""
        self._start = self._clock() if self._start is None else self._start
        self.batch, self._open = batch, 0
        self.changed()

    def wrote(self, rows: int) -> None:
        """Called after each step. count: number of rows that wrote a token."""
        self.tokens += rows
        self._open += rows
        self.changed()

    def answered(self, tokens: int) -> None:
        """Called after each answer, when it is on disk. tokens: its length."""
        self.done += 1
        self._ended += 1
        self._length += tokens
        self._open = max(0, self._open - tokens)
        self.changed()

    def changed(self) -> None:
        """Called after each of the above."""

    @property
    def is_bounded(self) -> bool:
        """Whether no answer of this run has ended yet: the rest is then estimated from the longest answer allowed."""
        return not self._ended

    @property
    def share(self) -> float:
        """Share, between 0 and 1, of the tokens that are expected in all."""
        if self.done >= self.answers:
            return 1.0
        expected = self._expected()
        if expected is None:
            return self.done / self.answers
        return 1.0 - self._remaining(expected) / (self.answers * expected)

    @property
    def speed(self) -> float | None:
        """Tokens per second of this run; None before there are any."""
        seconds = 0.0 if self._start is None else self._clock() - self._start
        return self.tokens / seconds if self.tokens and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds by the lengths of the answers and the speed so far; None before anything was written."""
        expected = self._expected()
        return None if self.speed is None or expected is None else self._remaining(expected) / self.speed

    def _expected(self) -> float | None:
        """Tokens of an answer: all that were written, per answer that ended, since the shortest answers end first."""
        if self.batch is None:
            return None
        if not self._ended:
            return self.batch.limit
        return max(1.0, min(self.batch.limit, (self._length + self._open) / self._ended))

    def _remaining(self, expected: float) -> float:
        open_answers = self.answers - self.done
        return max(open_answers * expected - self._open, 1.0 if open_answers else 0.0)
