"""Which rows of the cache are taken, and the token and position that each is to be fed with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Move = Callable[[int, int, int], None]
"""(from, to, positions): copies the first positions of one row of the cache to another."""


class Slots:
    """The rows of a batch that is at most as large as the largest of `buckets`, all of which begin at row 0.

    A step runs in the smallest bucket that holds all taken rows, so that they are kept at its beginning. A
    prefill runs in the first rows, too, which are cleared for it. A holder is the list of the rows of one
    job, in the order of its prompts; it is changed where they move. `tokens` and `positions` are by row; of a
    free row both are 0, so that it attends to nothing but itself. `used` positions of the cache are used by
    the next step.
    """

    def __init__(self, buckets: Iterable[int], move: Move) -> None:
        self._buckets = sorted(buckets)
        self._move = move
        self._holders: list[list[int] | None] = [None] * self._buckets[-1]
        self.tokens = [0] * self._buckets[-1]
        self.positions = [0] * self._buckets[-1]
        self.taken = 0
        self.used = 1
        self._rows: list[int] = []

    def bucket(self, rows: int) -> int:
        """The smallest bucket of at least `rows`."""
        return next(bucket for bucket in self._buckets if bucket >= rows)

    @property
    def free(self) -> int:
        """Rows that are not taken."""
        return len(self._holders) - self.taken

    def room(self, beside: int = 0) -> int:
        """The most rows that can be prefilled at once, where `beside` others are before: those of the largest
        bucket that fits, or 0.
        """
        free = self.free - beside
        return max((bucket for bucket in self._buckets if bucket <= free), default=0)

    def clear(self, rows: int) -> None:
        """Have the first `rows` free, which are no more than there is room for."""
        for row in range(rows):
            if self._holders[row] is not None:
                self._shift(row, self._first_free(rows))

    def compact(self) -> int:
        """Have all taken rows within the smallest bucket that holds them; returns that bucket."""
        bucket = self.bucket(self.taken)
        for row in range(bucket, len(self._holders)):
            if self._holders[row] is not None:
                self._shift(row, self._first_free(0))
        return bucket

    def take(self, holder: list[int], lengths: Iterable[int]) -> None:
        """The free rows in `holder` are taken, each with a prompt of so many tokens in the cache."""
        for row, length in zip(holder, lengths, strict=True):
            self._holders[row] = holder
            self.positions[row] = length
        self._changed()

    def release(self, holder: list[int]) -> None:
        """The rows in `holder` are free again."""
        for row in holder:
            self._holders[row] = None
            self.positions[row] = self.tokens[row] = 0
        self._changed()

    def feed(self, holder: list[int], values: list[int]) -> None:
        """The rows in `holder` are to be fed with their next tokens, those of `values` [bucket]."""
        for row in holder:
            self.tokens[row] = values[row]

    def advance(self, values: list[int]) -> None:
        """Every taken row has been fed one token, and is to be fed with that of `values` [bucket] next."""
        tokens, positions = self.tokens, self.positions
        for row in self._rows:
            tokens[row] = values[row]
            positions[row] += 1
        self.used += 1

    def _changed(self) -> None:
        """Other rows are taken than before."""
        self._rows = [row for row, holder in enumerate(self._holders) if holder is not None]
        self.taken = len(self._rows)
        self.used = max(self.positions) + 1

    def _first_free(self, least: int) -> int:
        """The first free row from `least` on."""
        return self._holders.index(None, least)

    def _shift(self, row: int, to: int) -> None:
        holder = self._holders[row]
        assert holder is not None
        self._move(row, to, self.positions[row])
        holder[holder.index(row)] = to
        for values in (self.tokens, self.positions):
            values[to], values[row] = values[row], 0
        self._holders[to], self._holders[row] = holder, None
        self._changed()
