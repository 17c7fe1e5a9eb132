"""Drafters: they propose draft tokens on the hub. One module per backend behind the contract in `contract`."""
