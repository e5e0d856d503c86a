"""The rivals' own processes. Each runs in its rival's environment: nothing of launchbound imports them."""
