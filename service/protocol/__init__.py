"""What both processes know. No torch here, and nothing of HTTP."""
