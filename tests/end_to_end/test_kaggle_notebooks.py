"""What is pushed to Kaggle and opened in Colab: the metadata, the notebooks from one session to the next, and the task
that learns from a table.
"""

import ast
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from test_tutorials import cells

import coffee_table
import helpers
import notebooks
import spectrakit as sk
from spectrakit.runs.history import outline
from spectrakit.runs.run_dir import find_runs, read_environment
from spectrakit.tasks.table import Table
from spectrakit.table.columns import folds_of
from test_house import PATH_IN_OUTPUT

root = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(root.glob("kaggle/*/*.ipynb"))
KERNELS = sorted(root.glob("kaggle/*/kernel-metadata.json"))
