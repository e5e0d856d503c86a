"""Memory of serving and of a step, by owner."""
