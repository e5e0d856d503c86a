"""How long the head of a request is so far, so that one without end is refused."""

from __future__ import annotations

from service.front.refusals import HeadTooLarge

MAX_HEAD_BYTES = 32_768


class HeadSize:
    """Counts each byte once: in the element that the parser tells of, and until then in its segments.

    The parser tells of a field when it is complete, so one without end shows only in what arrives. Fields may
    follow a body in chunks too. `parsed`: the bytes of the elements that are complete.
    """

    def __init__(self) -> None:
        self.parsed = 0
        self._unparsed = self._pieces = 0

    def element(self, size: int) -> HeadTooLarge | None:
        """A part of the address, or a whole field. Returns the refusal where the head is now too long."""
        self.parsed += size
        self._unparsed = 0
        return _too_large() if self.parsed > MAX_HEAD_BYTES else None

    def segment(self, size: int, pieces: int) -> HeadTooLarge | None:
        """What arrived, after so many `pieces` of the body, completed no element and was no piece.

        Returns the refusal where the head is now too long.
        """
        self._unparsed = size + (self._unparsed if pieces == self._pieces else 0)
        self._pieces = pieces
        return _too_large() if self.parsed + self._unparsed > MAX_HEAD_BYTES else None


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"request line and headers are over the limit of {MAX_HEAD_BYTES} bytes: send less")
