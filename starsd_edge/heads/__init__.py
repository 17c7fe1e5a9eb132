"""Draft heads of the EAGLE kind: what one is, and the functions it is made of."""
