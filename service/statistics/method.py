"""The version of the method by which numbers are made. Imports nothing else of ours.

Service and load tests both carry it, because both make the numbers; `launchbound compare` refuses unlike
ones.
"""

from __future__ import annotations

METHOD = 4
"""Raised with every entry under *Method* in CHANGELOG.md. Results of before it was recorded have none."""
