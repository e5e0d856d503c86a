"""The transformer that is served: configuration, weights, tokenizer. Imports no other of our packages."""
