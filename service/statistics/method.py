"""The version of the method by which numbers are made. Imports nothing else of ours.

Service and load tests both carry it, because both make the numbers; `launchbound compare` refuses unlike
ones.
"""

from __future__ import annotations

METHOD = 5
"""Raised with an entry under *Method* in CHANGELOG.md after which values are no longer comparable. Results of
before it was recorded have none.
"""
