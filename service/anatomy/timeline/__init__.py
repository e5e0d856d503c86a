"""One step of two modes on one axis."""
