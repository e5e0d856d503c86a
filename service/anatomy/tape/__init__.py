"""The tape: grad_fn nodes and the tensors that autograd saves for backward."""
