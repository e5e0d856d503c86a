"""Runs compared: two builds by `launchbound compare`, several runs on one page by `launchbound report`."""
