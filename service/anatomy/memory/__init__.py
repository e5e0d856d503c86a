"""Who holds which bytes."""
