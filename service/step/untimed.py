"""How many calls run untimed before what counts, one definition each with the reason for its number."""

from __future__ import annotations

CALLS_TO_CAPTURE = 4
"""Calls after which every callable is in its final form: compile, CUDA-graph warm-up, capture, replay. One
that is captured by hand is after the first."""

LEAD_STEPS = 10
"""Before timed decode steps in a row. After other work a step takes up to twice as long, and at batch 1 it
takes about ten until weights and code lie in the caches where a request's own steps keep them."""

LEAD_STEPS_OF_PREFILL = 2
"""Before timed prefill steps in a row: each takes as long as many of decode."""

LEAD_STEPS_OF_DISPATCH = 4
"""Before a timed call of a decode step alone. In service a step follows others of its own mode; after other
code the first call reads up to 1.6 times too long (instruction caches and branch history), and four settle
it."""

LEAD_STEPS_UNDER_PROFILER = 2
"""Before recorded steps: the profiler's first mark takes milliseconds."""

DECODE_POSITION = 60
"""Cache position of a measured decode step: attention then reads the least part of the cache that it reads
at all, as in the first steps after a short prompt."""

PREFILL_TOKENS = 32
"""Tokens per row of a measured prefill step: a middle length; fewer where a chunk is shorter."""

LEAD_SECONDS = 0.015
"""Of steps before sampled ones, at least: short prefill steps take more than LEAD_STEPS_OF_PREFILL."""

TIMED_STEPS = 5
"""Decode steps whose median is a step's time, at least: on a slow machine few fit into a time."""
