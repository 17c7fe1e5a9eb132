"""Drafters: what guesses tokens on the hub. One module per backend behind the contract in `contract`."""
