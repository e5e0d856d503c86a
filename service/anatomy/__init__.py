"""Studies that measure which layer of PyTorch takes a step's time, on the served model."""

import os

# Kineto reads this when torch is loaded, and otherwise writes two lines per profiled step to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
