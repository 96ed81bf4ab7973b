"""CUDA graphs: capture of an optimizer step, verification, replay."""
