"""Fits tokenizer and network from an event log and writes a bundle."""
