"""Events a second that one process counts for trending, beside the ingest of a state node and a Faust table."""
