"""The commands of the command line, grouped by purpose; each imports what it needs only when it runs."""
