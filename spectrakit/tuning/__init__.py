"""Trials before a long run that choose its settings. Used from outside: `lr_finder.find_lr`."""
