"""Bundles on disk: manifest schema, fingerprints, integrity, the cache and the catalogue of models known by name."""
