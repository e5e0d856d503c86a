"""What a study raises for arguments that cannot work, or a device that cannot show what they request."""

from __future__ import annotations


class StudyError(Exception):
    """The study is refused; `message` has the remedy and `param` names the argument at fault.

    `type` is what the client reads as `error.type`: `invalid_request` for arguments that cannot work,
    `unknown_mode`, `mode_failed` for a mode that does not compile, `unsupported_here` for what this device
    or torch cannot show.
    """

    def __init__(self, type: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.message = message
        self.param = param
