"""Which native functions a step's time goes to: the kernel's samples of this thread, named and classed."""
