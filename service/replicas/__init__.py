"""`serve --replicas`: fronts as replicas of a Ray Serve application, each with its own engine and cores."""
