"""What Ray Serve's proxy adds to a request."""
