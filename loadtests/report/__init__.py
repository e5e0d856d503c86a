"""What the rows of a sweep say: comparisons, verdicts, tables, plots, the page."""
