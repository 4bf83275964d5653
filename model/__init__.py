"""The tensor side: the GEMs network, tokenizer, search and training; importing the package alone loads no torch."""
