"""What Prometheus bears of many replicas: their real catalogue, made-up requests, a real Prometheus."""
