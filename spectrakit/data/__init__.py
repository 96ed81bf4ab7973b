"""Batches that are a function of seed, epoch and index, and fingerprints that tell one data set from another.

Others use `loaders` (train_batches, eval_batches, Placement), `order` (mix_seed, epoch_order, EpochPlan), `rows`
(ArrayDataset), `fingerprint` (dataset_fingerprint, fingerprint_change) and `streams` (is_stream, open_training_stream,
open_evaluation_stream).
"""
