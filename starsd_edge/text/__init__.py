"""Tokens to text and back: the tokenizer, streaming detokenisation, chat templates."""
