"""The service: a front that speaks HTTP, an engine that owns torch, and the protocol between them."""
