"""`make gpu-check`: the CUDA path examined in sections, each a process of its own with a time limit.

The process that runs the sections makes no CUDA context, so that one that a section poisons ends with it.
"""
