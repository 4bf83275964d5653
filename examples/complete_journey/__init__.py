"""The demo: a year of real grocery baskets, trained on, streamed and recommended from."""
