"""Adapters for Hugging Face `transformers` models. The only package that imports `transformers`."""
