"""The measuring kit of the engine, the studies and the selftest: a sampler, warmed steps, rounds."""
