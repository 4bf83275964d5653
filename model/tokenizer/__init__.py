"""Semantic IDs: item vectors from behaviour, tokenizers that turn vectors into codes, and their health."""
