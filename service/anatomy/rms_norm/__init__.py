"""A custom operator beside the form that Inductor can fuse."""
