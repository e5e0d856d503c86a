"""Several runs as one picture: devices, dtypes, models or versions side by side, never paired."""
