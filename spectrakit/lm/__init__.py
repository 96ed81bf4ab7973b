"""Language models: texts, token sequences, pretrained models, the task `lm`, `TrainerConfig`, export."""
