"""Prometheus metrics, read from the parts of a role when they are asked for. Nothing else knows prometheus_client."""
