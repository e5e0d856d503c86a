"""The engine process: one main thread that owns every torch call."""

import os

# Kineto reads this when torch is loaded, and otherwise writes two lines per profiled request to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
