"""One step of one or two modes as blocks on a time axis."""
