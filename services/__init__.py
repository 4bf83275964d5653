"""Processes: wiring, gRPC services and the command line."""
