"""Models of Hugging Face `transformers`, stepped as ours are. The only room that imports `transformers`."""
