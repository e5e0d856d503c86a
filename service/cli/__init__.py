"""The verbs of the command line, by what they are for; each imports what it needs only once it runs."""
