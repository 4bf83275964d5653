"""The `gemstream` command, one module per command group."""
