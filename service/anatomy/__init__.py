"""Which layer of PyTorch took the time: measured on this machine, on the model being served."""

import os

# Kineto reads this when torch is loaded, and otherwise writes two lines per profiled step to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
