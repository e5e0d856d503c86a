"""What each layer of PyTorch costs one operator."""
