"""The service: a front that speaks HTTP, an engine that owns torch, and the border between them."""
