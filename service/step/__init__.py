"""One step of the model: how each mode runs it, and what it costs."""
