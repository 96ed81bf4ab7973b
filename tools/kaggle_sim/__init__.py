"""A Kaggle and a Colab on this machine, without their network: `python tools/kaggle_sim --help`, or `make kaggle-sim`.

environment.py  a Python that has what the platform ships, and neither spectrakit nor Hydra
inside.py       process 1 of a session: builds its file tree, runs it, ends it, keeps what it wrote
sealed.py       starts inside.py in namespaces of its own
kernels.py      a pushed kernel folder as a session of Kaggle
colab.py        a notebook as a session of Colab, with a Drive
story.py        from an empty folder to submission.csv, by two sessions
"""
