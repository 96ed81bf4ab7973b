"""Batches that are a function of seed, epoch and index, and fingerprints that tell one data set from another.

Others use `loaders` (train_batches, eval_batches, Placement), `order` (mix_seed, epoch_order, EpochPlan) and `fingerprint` (dataset_fingerprint,
fingerprint_change).
"""
