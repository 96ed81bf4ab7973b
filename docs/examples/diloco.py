"""Train with DiLoCo: two workers train alone for eight steps, then exchange their mean update in 8 bits."""

import sys

import spectrakit as sk

words = ["distributed.strategy=diloco", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.max_epochs=12"]
words += ["diloco.max_steps=8", "diloco.compression=int8", "diloco.outer_lr=0.7", "data.batch_size=8"]

run = sk.fit("coffee", *words, *sys.argv[1:])
print(run.status, run.metrics)
