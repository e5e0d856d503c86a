"""The engine process: one main thread that owns every torch call."""
