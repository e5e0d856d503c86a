"""What a sweep measures: cells, presets, prompts, arrival times."""
