"""What a part of the service warned of last: an engine says in its log why it refuses its settings."""

from __future__ import annotations

import logging


class LastWarning(logging.Handler):
    """Keeps the newest warning of `logger` while it is attached."""

    def __init__(self, logger: str) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(logger)
        self.message: str | None = None

    def attach(self) -> None:
        """Begin."""
        self._logger.addHandler(self)

    def detach(self) -> None:
        """End."""
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.message = record.getMessage()
