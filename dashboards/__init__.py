"""The Grafana boards as code, with the Prometheus configuration and rules that go with them."""
