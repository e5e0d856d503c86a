"""Proofs that the numbers are right: the selftest of a machine, and the check of the CUDA path on a GPU."""
