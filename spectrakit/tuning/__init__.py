"""What chooses settings: a learning rate range test before a long run, and searches with a study's folder.

Used from outside: `lr_finder.find_lr`, `search.search`, `study.open_study`.
"""
