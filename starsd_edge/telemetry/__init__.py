"""Counters as data, round-trip estimators and how they are shown."""
