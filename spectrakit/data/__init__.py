"""Samples, batches, their order, loader workers, streams, folds, fingerprints, standardization."""
