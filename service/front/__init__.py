"""The HTTP process: admission, engine client, supervision of the child processes, metrics. Never torch."""
