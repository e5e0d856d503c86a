"""What merging requests costs, or gives, where few come: two services in turn."""
