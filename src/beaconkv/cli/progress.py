"""How far an evaluation is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, Progress, TextColumn

from ..evaluation.answers.batch import Batch
from ..evaluation.answers.progress import Progress as Counts
from ..evaluation.answers.run import Evaluation
from .common import messages

EVERY = 30.0
"""Seconds between two lines of a log."""


def seconds_in_words(seconds: float) -> str:
    """40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class ShownProgress(Counts):
    """Counts, and shows what it counts. Use it in a ``with`` block."""

    def __init__(self, evaluation: Evaluation, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(len(evaluation.keys()), clock)
        self._cells = [cell.name for cell in evaluation.cells]
        self._shown_at = float("-inf")
        columns = (BarColumn(bar_width=None), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=messages, disable=not messages.is_terminal, expand=True)
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> ShownProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, batch: Batch) -> None:
        """A new method, budget or task is shown at once."""
        before = self.batch
        is_new = before is None or (before.cell, before.task.name) != (batch.cell, batch.task.name)
        if is_new:
            self._shown_at = float("-inf")
        super().started(batch)
        if is_new and messages.is_terminal:  # on a line above the bar, where a long name has room
            messages.print(self._where(), style="dim", highlight=False, markup=False)

    def changed(self) -> None:
        if messages.is_terminal:
            self._bar.update(self._task, completed=self.share, description=self._state())
        elif self.batch is not None and self._clock() - self._shown_at >= EVERY:
            self._shown_at = self._clock()
            messages.print(f"{self._where()}: {self._state()}", style="dim", highlight=False, soft_wrap=True)

    def _where(self) -> str:
        if self.batch is None:
            return ""
        name = self.batch.cell.name
        return f"{name} ({self._cells.index(name) + 1} of {len(self._cells)}), {self.batch.task.name}"

    def _state(self) -> str:
        shown = [f"{self.done:,} of {self.answers:,} answers"]
        if self.seconds_left is not None and self.done < self.answers:
            limit = "at most" if self.is_bounded else "about"
            shown.append(f"{limit} {seconds_in_words(self.seconds_left)} left")
        if self.speed is not None:  # last: a narrow screen cuts the end
            shown.append(f"{self.speed:,.0f} tokens/s")
        return ", ".join(shown)
