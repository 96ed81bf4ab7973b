"""A stand-in for Colab's package, as far as notebooks of this project use it; for tools/kaggle_sim only.

It behaves as the real one does without a person at the page: nothing waits for a click. What it did is in
/opt/page/journal.
"""
