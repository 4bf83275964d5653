"""Ten minutes of a real state node under a steady load with pauses: is memory bounded, does the lag come back to zero."""
