"""The seed of all generated requests: FUZZ_SEED, "random" for another one each time. A run prints it."""

from __future__ import annotations

import os
import random

VARIABLE = "FUZZ_SEED"
USUAL = "1"
"""A gate that finds something else each time would refuse a change for what it has not done."""

if os.environ.setdefault(VARIABLE, USUAL) == "random":
    os.environ[VARIABLE] = str(random.getrandbits(32))  # which the test workers inherit

SEED = int(os.environ[VARIABLE])
