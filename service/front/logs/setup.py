"""Where the log goes, and in which form: one handler for our lines, the server's and Python's warnings."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Literal

from service.front.logs.formats import FORMATTERS
from service.front.logs.handler import LineHandler

LogFormat = Literal["text", "json"]

STANDARD_ERROR = 2


def set_up(form: LogFormat, descriptor: int = STANDARD_ERROR) -> None:
    """Send all records of this process to `descriptor`, and what ends it without being caught."""
    handler = LineHandler(descriptor)
    handler.setFormatter(FORMATTERS[form]())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        logging.getLogger("launchbound").critical("the service ended", exc_info=(kind, error, trace))
    else:
        sys.__excepthook__(kind, error, trace)
