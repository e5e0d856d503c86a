"""What a cluster runs, as files, and the check of these files; not installed with the service."""
