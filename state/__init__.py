"""User state: interactions, the pure fold, its bytes, and the store that keeps them."""
