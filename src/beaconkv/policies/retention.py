"""Which past queries stay, decided by their number alone, so that no row of a batch affects another."""

from __future__ import annotations

import random


class EverySlot:
    """All queries stay, in order."""

    limit: int | None = None
    """Maximum number of slots in use; None: as many as there are queries."""

    def slot(self, number: int) -> int | None:
        """Slot of the ``number``-th query that leaves the recent ones; None: it is forgotten."""
        return number

    def filled(self, count: int) -> int:
        """Number of slots in use after ``count`` queries."""
        return count


class FirstSlots(EverySlot):
    """The first ``limit`` queries stay."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def slot(self, number: int) -> int | None:
        return number if number < self.limit else None

    def filled(self, count: int) -> int:
        return min(count, self.limit)


class Reservoir(FirstSlots):
    """``limit`` queries, uniformly at random among all that came (reservoir sampling).

    The draws depend on the seed and the query's number alone, so every row, head and layer of a batch
    remembers the same steps as in a batch of one row.
    """

    def __init__(self, limit: int, seed: int) -> None:
        super().__init__(limit)
        self.random, self.slots = random.Random(seed), []

    def slot(self, number: int) -> int | None:
        while len(self.slots) <= number:
            seen = len(self.slots)
            drawn = seen if seen < self.limit else self.random.randrange(seen + 1)
            self.slots.append(drawn if drawn < self.limit else None)
        return self.slots[number]
