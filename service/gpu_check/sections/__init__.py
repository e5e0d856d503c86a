"""What `make gpu-check` examines, a module per section; each is run as a process and writes rows."""
