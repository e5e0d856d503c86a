"""Which layer of PyTorch took the time: measured on this machine, on the model being served."""
