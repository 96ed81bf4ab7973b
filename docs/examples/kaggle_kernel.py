"""Train in a Kaggle kernel: read the attached tables, resume an earlier session, always leave a submission.

`spectrakit kaggle init` writes such a kernel with its metadata, and `spectrakit kaggle check` finds its mistakes.
"""

import sys
from pathlib import Path

import spectrakit as sk


def attached_tables():
    "The folder of the attached competition; elsewhere tables of the same form."
    for sample in sorted(Path("/kaggle/input").rglob("sample_submission.csv")):
        return sample.parent
    from sklearn.datasets import load_wine

    folder, wine = Path("wine"), load_wine(as_frame=True).frame.sample(frac=1, random_state=0)
    folder.mkdir(exist_ok=True)
    wine = wine.rename(columns={"target": "cultivar"}).rename_axis("id").reset_index()
    wine[:140].to_csv(folder / "train.csv", index=False)
    wine[140:].drop(columns="cultivar").to_csv(folder / "test.csv", index=False)
    wine[140:][["id"]].assign(cultivar=0).to_csv(folder / "sample_submission.csv", index=False)
    return folder


print(sk.detect())  # platform, GPUs and the time that is left of the session
run = sk.fit(
    "table",
    f"task.data={attached_tables()}",
    "trainer=kaggle_safe",
    "trainer.max_epochs=8",
    *sys.argv[1:],
    resume="auto",  # an attached output of the last session, if there is one
    predict="submission.csv",  # predicted within the reserved time
)
print(run.status, run.metrics, Path("submission.csv").exists())
