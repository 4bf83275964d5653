"""A synthetic lifelong stream in which the cause of every interaction is known: `python -m bench.quality.synthetic`."""
