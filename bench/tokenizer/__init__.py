"""What fitting a tokenizer costs at a million items, in time and memory."""
