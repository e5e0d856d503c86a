"""The field's folklore about PyTorch's costs, beside what this machine measures."""
