"""The metrics: their catalogue, the series built from it, and what records a request in them."""
