"""A plan swept on a cluster: a task per machine kind, device, precision and model, and one report."""
