"""How a study reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]
"""Takes one short line of text, what the study does now; shown or sent to the client as it comes."""
