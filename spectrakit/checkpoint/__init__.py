"""Checkpoints that are atomic, verified and pruned, written in the background, and copied to a second folder.

Others use `store` (save_checkpoint, verify, find_checkpoint, load_weights, load_state), `async_writer`
(CheckpointWriter, Snapshot) and `mirror` (mirror_files).
"""
