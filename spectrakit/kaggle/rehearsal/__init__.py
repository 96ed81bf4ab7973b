"""Rehearsal of a kernel at home: small data, then a hidden test set, without network."""
