"""The measuring kit of the studies and the selftest: warmed steps, shuffled rounds, floors, native stacks."""
