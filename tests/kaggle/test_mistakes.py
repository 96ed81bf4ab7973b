"""Frequent mistakes of kernels: each is found in its cell, and code that is right beside it is left alone."""

import json

import pytest

from spectrakit.kaggle.check import check_kernel
from spectrakit.kaggle.metadata import KERNEL, KERNEL_FILE

GOOD = {key: entry.default for key, entry in KERNEL.items()} | {
    "id": "ada/my-kernel",
    "competition_sources": ["soil"],
    "enable_gpu": True,
    "machine_shape": "",
}
WRITE = "import pandas as pd\nsub = pd.read_csv('/kaggle/input/soil/sample_submission.csv')\n"
TO_CSV = "sub.to_csv('submission.csv', index=False)"
END = "\n---\nsub.to_csv('submission.csv', index=False)"
AUTO = "from transformers import AutoModel\n"
RERUN = "os.getenv('KAGGLE_IS_COMPETITION_RERUN')"

# (code of the cells, a word of what is told, the same done right)
MISTAKES = {
    "an index by keyword": ("sub.to_csv(path_or_buf='submission.csv')", "index=False", TO_CSV),
    "semicolons": (
        "sub.to_csv('submission.csv', index=False, sep=';')",
        "cannot read",
        "sub.to_csv('oof.csv', sep=';')" + END,
    ),
    "no header": ("sub.to_csv('submission.csv', index=False, header=False)", "cannot read", TO_CSV),
    "in a folder": (
        "import os\nos.makedirs('out')\nsub.to_csv('out/submission.csv', index=False)",
        "where the competition looks",
        "sub.to_csv('./submission.csv', index=False)",
    ),
    "in /tmp": (
        "sub.to_csv('/tmp/submission.csv', index=False)",
        "where the competition looks",
        "import shutil\nsub.to_csv('/tmp/submission.csv', index=False)\nshutil.copy('/tmp/submission.csv', '.')",
    ),
    "a text file": ("sub.to_csv('submission.txt', index=False)", "Rename it", TO_CSV),
    "not in the rerun, in a function": (
        f"import os\ndef main():\n    if not {RERUN}:\n        {TO_CSV}\nmain()",
        "only outside the rerun",
        f"import os\ndef main():\n    if not {RERUN}:\n        print(1)\n    {TO_CSV}\nmain()",
    ),
    "SystemExit": ("raise SystemExit" + END, "ends the notebook", "def main():\n    raise SystemExit(1)" + END),
    "os.kill": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)" + END,
        "ends the notebook",
        "import os\nos.kill(child, 9) if (child := os.fork()) else None" + END,
    ),
    "rows of zeros": (
        "import numpy as np\nsub['y'] = np.zeros(1500)" + END,
        "another number of rows",
        "import numpy as np\nsub['y'] = np.zeros(len(sub))\nlog = pd.DataFrame({'epoch': range(500)})" + END,
    ),
    "rows of a list": (
        "sub['y'] = [0.5] * 1500" + END,
        "another number of rows",
        "assert len(sub.columns) == 120" + END,
    ),
    "append to another name": (
        "new = sub.append(sub)" + END,
        "pandas.concat",
        "class Log:\n    def append(self, x):\n        return self\nlog = Log()\nlog = log.append(3)" + END,
    ),
    "ix": ("sub.ix[0]" + END, "Use .loc", "class A:\n    ix = 3\na = A()\nprint(a.ix)" + END),
    "lookup": ("sub.lookup([0], ['y'])" + END, "Use .loc", "lookup = {}.get" + END),
    "imp": ("import imp" + END, "Use importlib", "import importlib" + END),
    "Imputer": (
        "from sklearn.preprocessing import Imputer" + END,
        "SimpleImputer",
        "from sklearn.impute import SimpleImputer" + END,
    ),
    "a style": (
        "import matplotlib.pyplot as plt\nplt.style.use('seaborn')" + END,
        "seaborn-v0_8",
        "import matplotlib.pyplot as plt\nplt.style.use('seaborn-v0_8-dark')" + END,
    ),
    "lr": (
        "from tensorflow.keras.optimizers import Adam\nAdam(lr=1e-3)" + END,
        "Use learning_rate",
        "from torch.optim import Adam\nAdam([], lr=1e-3)" + END,
    ),
    "OneHotEncoder": (
        "from sklearn.preprocessing import OneHotEncoder\nOneHotEncoder(sparse=False)" + END,
        "sparse_output",
        "class OneHotEncoder:\n    def __init__(self, sparse): pass\nOneHotEncoder(sparse=False)" + END,
    ),
    "a process that is spawned": (
        "import torch.multiprocessing as mp\ndef f(r): pass\nmp.set_start_method('spawn')\nmp.Process(target=f).start()"
        + END,
        "cannot start a function of a cell",
        "import multiprocessing as mp\ndef f(r): pass\nmp.Process(target=f).start()\nmap(f, [1])" + END,
    ),
    "a pool that is spawned": (
        "import multiprocessing as mp\ndef f(r): pass\nwith mp.get_context('spawn').Pool(2) as p:\n    p.map(f, [1])"
        + END,
        "cannot start a function of a cell",
        "import multiprocessing as mp\ndef f(r): pass\nwith mp.Pool(2) as p:\n    p.map(f, [1])" + END,
    ),
    "a script of the shell": (
        "!bash run.sh" + END,
        "run.sh is missing on Kaggle",
        "%%writefile run.sh\nls\n---\n" + WRITE + "---\n!bash run.sh" + END,
    ),
    "spacy download": ("!python -m spacy download en_core_web_lg" + END, "needs the network", "import spacy" + END),
    "torchaudio": (
        "import torchaudio\nm = torchaudio.pipelines.WAV2VEC2_BASE.get_model()" + END,
        "fetches weights",
        "import torchaudio\nrate = torchaudio.pipelines.WAV2VEC2_BASE.sample_rate" + END,
    ),
    "a pipeline": (
        "from transformers import pipeline\np = pipeline('sentiment-analysis')" + END,
        "fetches weights",
        "def pipeline(name): return name\np = pipeline('sentiment-analysis')" + END,
    ),
    "an index": ("sub.to_csv('submission.csv')", "index=False", "sub.to_csv('submission.csv', index=False)"),
    "index=True": (
        "sub.to_csv('/kaggle/working/submission.csv', index=True)",
        "index=False",
        "sub.set_index('id').to_csv('/kaggle/working/submission.csv')",
    ),
    "submissions.csv": (
        "sub.to_csv('submissions.csv', index=False)",
        "submissions.csv is not",
        "sub.to_csv('submissions.csv', index=False)" + END,
    ),
    "Submission.csv": (
        "sub.to_csv('Submission.csv', index=False)",
        "Rename it",
        "sub.to_csv('submission.csv', index=False)",
    ),
    "sumbission": (
        "sub.to_csv('sumbission.csv', index=False)",
        "Rename it",
        "sub.to_csv('submission.csv', index=False)",
    ),
    "not in the rerun": (
        f"import os\nif not {RERUN}:\n    sub.to_csv('submission.csv', index=False)",
        "only outside the rerun",
        f"import os\nif {RERUN}:\n    {TO_CSV}\nelse:\n    {TO_CSV}",
    ),
    "else of the rerun": (
        f"import os\nrerun = {RERUN} is not None\nif rerun:\n    print(1)\nelse:\n    {TO_CSV}",
        "only outside the rerun",
        f"import os\nif not {RERUN}:\n    sub = sub.head()" + END,
    ),
    "sys.exit": ("import sys\nsys.exit()" + END, "ends the notebook", "import sys\ndef main():\n    sys.exit(1)" + END),
    "exit": ("exit()" + END, "ends the notebook", "class A:\n    def stop(self):\n        exit()" + END),
    "rows in an assert": (
        "assert len(sub) == 1200" + END,
        "another number of rows",
        "assert len(sub) == len(sub)" + END,
    ),
    "rows in a table": (
        "import numpy as np\nsub = pd.DataFrame({'id': np.arange(1200), 'y': 0})" + END,
        "another number of rows",
        "import numpy as np\nsub = pd.DataFrame({'id': np.arange(len(sub)), 'y': 0})" + END,
    ),
    "sentence transformers": (
        "from sentence_transformers import SentenceTransformer as S\nm = S('all-MiniLM-L6-v2')" + END,
        "fetches weights",
        "from sentence_transformers import SentenceTransformer as S\nm = S('/kaggle/input/m/x')" + END,
    ),
    "keras": (
        "from tensorflow.keras.applications import ResNet50\nm = ResNet50()" + END,
        "fetches ImageNet weights",
        "from tensorflow.keras.applications import ResNet50\nm = ResNet50(weights=None)" + END,
    ),
    "an entry of a dict": (
        "import timm\nCFG = {'pretrained': True}\nm = timm.create_model('resnet18', pretrained=CFG['pretrained'])"
        + END,
        "pretrained=True",
        "import timm\nCFG = {'pretrained': False}\nm = timm.create_model('resnet18', pretrained=CFG['pretrained'])"
        + END,
    ),
    "a model in a dict": (
        f"{AUTO}CFG = dict()\nCFG['m'] = 'bert-base'\nm = AutoModel.from_pretrained(CFG['m'])" + END,
        "asks Hugging Face",
        f"{AUTO}CFG = {{'m': '/kaggle/input/bert/m'}}\nm = AutoModel.from_pretrained(CFG['m'])" + END,
    ),
    "np.float": (
        "import numpy as np\nx = sub['y'].astype(np.float)" + END,
        "numpy.float was",
        "import numpy as np\nx = np.float32(1)" + END,
    ),
    "np.NaN": ("import numpy as np\nx = np.NaN" + END, "Use numpy.nan", "import numpy as np\nx = np.nan" + END),
    "df.append": (
        "sub = sub.append({'y': 1}, ignore_index=True)" + END,
        "pandas.concat",
        "rows = []\nrows.append({'y': 1})" + END,
    ),
    "iteritems": ("for a in sub.iteritems():\n    pass" + END, "Use .items", "for a in sub.items():\n    pass" + END),
    "AdamW": (
        "from transformers import AdamW" + END,
        "torch.optim.AdamW",
        "try:\n    from transformers import AdamW\nexcept ImportError:\n    from torch.optim import AdamW" + END,
    ),
    "early stopping": (
        "import lightgbm as lgb\nm = lgb.train({}, None, early_stopping_rounds=9)" + END,
        "no longer takes",
        "import lightgbm as lgb\nm = lgb.train({}, None, callbacks=[lgb.early_stopping(9)])" + END,
    ),
    "%run": ("%run helper.py" + END, "is missing on Kaggle", "%%writefile helper.py\nx = 1\n---\n%run helper.py" + END),
    "torchrun": (
        "!torchrun --nproc_per_node 2 train.py" + END,
        "is missing on Kaggle",
        "!cp /kaggle/input/code/train.py .\n!torchrun --nproc_per_node 2 train.py" + END,
    ),
    "accelerate launch": (
        "!accelerate launch --num_processes 2 run.py" + END,
        "is missing on Kaggle",
        "!accelerate launch /kaggle/input/code/run.py" + END,
    ),
    "spawn": (
        "import torch.multiprocessing as mp\ndef train(rank):\n    pass\nmp.spawn(train, nprocs=2)" + END,
        "cannot start a function of a cell",
        "import torch.multiprocessing as mp\nfrom helpers import train\nmp.spawn(train)" + END,
    ),
    "imshow": ("import cv2\ncv2.imshow('a', None)" + END, "no screen", "import cv2\ncv2.imread('a.png')" + END),
    "rows of a slice": (
        "sub = sub.iloc[:1500]" + END,
        "another number of rows",
        "DEBUG = False\nif DEBUG:\n    sub = sub.iloc[:1500]\nsub.head(500)\nsmall = sub[:500]" + END,
    ),
    "rows of a head": (
        "test = pd.read_csv('/kaggle/input/soil/test.csv')\nX = test[['a']]\nX = X.head(n=1500)" + END,
        "another number of rows",
        "train = pd.read_csv('/kaggle/input/soil/train.csv')\ntrain, test = train[:900], train[900:]\ntest = test[:500]"
        + END,
    ),
    "rows of a target": (
        "sub.loc[:1499, 'y'] = 0.5" + END,
        "another number of rows",
        "train = pd.read_csv('/kaggle/input/soil/train.csv')\ntrain.loc[:1499, 'fold'] = 1" + END,
    ),
    "rows of a loop": (
        "for i in range(1500):\n    sub.loc[i, 'y'] = 0.5" + END,
        "another number of rows",
        "for i in range(len(sub)):\n    sub.loc[i, 'y'] = 0.5\nfor step in range(1500):\n    print(step, sub['y'][0])"
        + END,
    ),
    "rows of batches": (
        "test = pd.read_csv('/kaggle/input/soil/test.csv')\nN = 1500\n"
        "out = [test.iloc[i : i + 32] for i in range(0, N, 32)]" + END,
        "another number of rows",
        "test = pd.read_csv('/kaggle/input/soil/test.csv')\nB = 128\n"
        "out = [test.iloc[i : i + B] for i in range(0, len(test), B)]" + END,
    ),
    "rows that are read": (
        "test = pd.read_csv('/kaggle/input/soil/test.csv', nrows=1500)" + END,
        "another number of rows",
        "train = pd.read_csv('/kaggle/input/soil/train.csv', nrows=1500)" + END,
    ),
    "rows of predictions": (
        "import numpy as np\ntest_preds = np.zeros((1500, 3))" + END,
        "another number of rows",
        "import numpy as np\noof_preds = np.zeros((1500, 3))\nlosses = np.zeros(1500)" + END,
    ),
    "spaCy": (
        "import spacy\nnlp = spacy.load('en_core_web_lg')" + END,
        "Attach the model's folder",
        "import spacy\nnlp = spacy.load('en_core_web_sm')\nbig = spacy.load('/kaggle/input/soil/en_core_web_lg')" + END,
    ),
    "spaCy by name": (
        "from spacy import load\nMODEL = 'de_dep_news_trf'\nnlp = load(name=MODEL)" + END,
        "Attach the model's folder",
        "!pip install --no-index /kaggle/input/soil/en_core_web_md.whl\nimport spacy\nspacy.load('en_core_web_md')"
        + END,
    ),
    "a model by keyword": (
        f"{AUTO}m = AutoModel.from_pretrained(pretrained_model_name_or_path='bert-base')" + END,
        "asks Hugging Face",
        f"{AUTO}x = AutoModel.from_pretrained(pretrained_model_name_or_path='/kaggle/input/soil/m')\n"
        "x.save_pretrained('mine')\ny = AutoModel.from_pretrained(pretrained_model_name_or_path='mine')" + END,
    ),
    "sentence transformers by keyword": (
        "from sentence_transformers import SentenceTransformer\nm = SentenceTransformer(model_name_or_path='m')" + END,
        "fetches weights",
        "from sentence_transformers import SentenceTransformer\n"
        "m = SentenceTransformer(model_name_or_path='/kaggle/input/soil/m')" + END,
    ),
    "data of Keras": (
        "from tensorflow.keras.datasets import mnist\n(a, b), c = mnist.load_data()" + END,
        "needs the network",
        "class mnist:\n    def load_data():\n        return (1, 2), 3\n(a, b), c = mnist.load_data()" + END,
    ),
    "vectors of gensim": (
        "import gensim.downloader as api\nm = api.load('glove-wiki-gigaword-100')" + END,
        "needs the network",
        "from gensim.models import KeyedVectors\nm = KeyedVectors.load('/kaggle/input/soil/glove')" + END,
    ),
    "EasyOCR": (
        "import easyocr\nr = easyocr.Reader(['ch_sim', 'en'])" + END,
        "fetches weights",
        "import easyocr\nr = easyocr.Reader(['en'], gpu=True)" + END,
    ),
    "NLTK": (
        "import nltk\nnltk.download('punkt_tab')" + END,
        "needs the network",
        "import nltk\nnltk.download('stopwords')" + END,
    ),
    "rows that are compared": (
        "if len(sub) != 1500:\n    raise ValueError(len(sub))" + END,
        "another number of rows",
        "if len(sub) == 1500:\n    print('not yet hidden')" + END,
    ),
    "a column of rows": (
        "sub['y'] = [0.5 for _ in range(1500)]" + END,
        "another number of rows",
        "import numpy as np\nsub['y'] = np.mean([sub['y'] * seed for seed in range(100)], axis=0)" + END,
    ),
    "spaCy's short names": (
        "import spacy\nnlp = spacy.load('en')" + END,
        "Attach the model's folder",
        "import spacy\nnlp = spacy.blank('en')" + END,
    ),
    "bf16 of a class": (
        "class CFG:\n    bf16 = True" + END,
        "Write fp16=True",
        "args = {'bf16': False, 'epochs': 3}" + END,
    ),
    "bf16 of a method": (
        "import torch\nm = torch.nn.Linear(2, 2).bfloat16()" + END,
        "Write .half()",
        "import torch\nm = torch.nn.Linear(2, 2).half()" + END,
    ),
    "bf16 of autocast": (
        "import torch\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    pass" + END,
        "has no bfloat16",
        "import torch\nwith torch.autocast('cpu', dtype=torch.bfloat16):\n    x = sub.dtype == torch.bfloat16" + END,
    ),
    "bf16=True": (
        "from transformers import TrainingArguments\nargs = TrainingArguments('out', bf16=True)" + END,
        "Write fp16=True",
        "from transformers import TrainingArguments\nargs = TrainingArguments('out', bf16=False, fp16=True)" + END,
    ),
    "bf16 of accelerate": (
        "from accelerate import Accelerator\na = Accelerator(mixed_precision='bf16')" + END,
        "Write 'fp16'",
        "from accelerate import Accelerator\na = Accelerator(mixed_precision='fp16')\nkinds = ['no', 'fp16', 'bf16']"
        + END,
    ),
    "bf16 of a launcher": (
        "!accelerate launch --mixed_precision bf16 /kaggle/input/soil/run.py" + END,
        "Write precision fp16",
        "!accelerate launch --mixed_precision fp16 /kaggle/input/soil/run.py" + END,
    ),
    "bf16 of Lightning": (
        "import pytorch_lightning as pl\nt = pl.Trainer(precision='bf16-mixed')" + END,
        "Write 'fp16-mixed'",
        "import torch\nkinds = {'fp32': torch.float32, 'bf16': torch.bfloat16}" + END,
    ),
    "bf16 if supported": (
        "import torch\nkind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16" + END,
        "including_emulation=False",
        "import torch\nkind = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16" + END,
    ),
    "flash attention": (
        f"{AUTO}m = AutoModel.from_pretrained('/kaggle/input/m/x', attn_implementation='flash_attention_2')" + END,
        "Flash attention needs",
        f"{AUTO}m = AutoModel.from_pretrained('/kaggle/input/m/x', attn_implementation='sdpa')" + END,
    ),
    "fit, then serve": (
        "import spectrakit as sk\nrun = sk.fit('table')\nsk.serve('table', run)",
        "15 minutes",
        "import spectrakit as sk\nsk.serve('table', sk.attached_runs('table')[0])",
    ),
}


def told(folder, code, **values):
    "What the check finds in a kernel with these cells, as (level, text)."
    folder.mkdir()
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "source": source, "outputs": []}
        for i, source in enumerate([WRITE, *code.split("\n---\n")])
    ]
    (folder / "kernel.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    (folder / KERNEL_FILE).write_text(json.dumps(GOOD | values))
    return [(found.level, found.text) for found in check_kernel(folder).findings if found.level != "ok"]


@pytest.mark.parametrize(("wrong", "word", "right"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found_and_what_is_right_is_left_alone(tmp_path, wrong, word, right):
    found = [text for _, text in told(tmp_path / "wrong", wrong) if word in text]
    assert len(found) == 1, told(tmp_path / "again", wrong)
    assert not [text for _, text in told(tmp_path / "right", right) if word in text]


@pytest.mark.parametrize("call", ["spacy.load('en_core_web_lg')", "AutoModel.from_pretrained('bert-base')"])
def test_what_a_missing_file_replaces_is_no_error(tmp_path, call):
    other = "AutoModel.from_pretrained('/kaggle/input/soil/bert')"
    code = f"{AUTO}import spacy\ntry:\n    m = {call}\nexcept OSError:\n    m = {other}"
    assert not [text for level, text in told(tmp_path / "k", code + END) if level == "error"]
    assert [text for level, text in told(tmp_path / "s", f"{AUTO}import spacy\nm = {call}" + END) if level == "error"]


@pytest.mark.parametrize("shape", ["NvidiaL4", "NvidiaTeslaA100"])
def test_flash_attention_and_bf16_are_right_on_a_newer_gpu(tmp_path, shape):
    wrong, word, _ = MISTAKES["flash attention"]
    assert not [text for _, text in told(tmp_path / "k", wrong, machine_shape=shape) if word in text]
    wrong, word, _ = MISTAKES["bf16 of autocast"]
    assert not [text for _, text in told(tmp_path / "b", wrong, machine_shape=shape) if word in text]
