"""What a study raises where its arguments cannot work or its device cannot show what was asked for."""

from __future__ import annotations


class StudyError(Exception):
    """Refused, with the remedy in `message`; `param` names the argument at fault.

    `type` is what the client reads as `error.type`: `invalid_request` for arguments that cannot work,
    `unknown_mode`, `mode_failed` for a mode that does not compile, `unsupported_here` for what this device
    or torch cannot show.
    """

    def __init__(self, type: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.type, self.message, self.param = type, message, param
