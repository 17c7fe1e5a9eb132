"""Draft trees, keyed sampling, verification, stop rules and n-gram drafting: pure numpy without clocks or sockets."""
