"""Recommending beside a T5 under Hugging Face `generate`, and beside what the machine's arithmetic would allow."""
