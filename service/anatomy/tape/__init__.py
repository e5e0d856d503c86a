"""What autograd keeps."""
