"""One step of one mode, operator by operator."""
