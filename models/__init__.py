"""The transformer that is served: its shape, its weights, its words. Imports nothing else of ours."""
