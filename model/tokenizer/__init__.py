"""Semantic IDs: item vectors from behaviour and content, tokenizers that turn vectors into codes, and their health."""
