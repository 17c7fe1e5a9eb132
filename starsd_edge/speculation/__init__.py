"""Draft trees, keyed sampling, verification, stop rules and n-gram drafting: pure numpy, no clocks, no sockets, no devices."""
