"""The only place that picks concrete classes: settings in, ready-made processes out; one file per role."""
