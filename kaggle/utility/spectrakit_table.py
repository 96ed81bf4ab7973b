"""Learn from a competition's table and write its submission: `Table`, the task that comes with spectrakit.

A utility script for Kaggle, and a plain module anywhere else. A folder holds train, test and a sample submission, as
CSV or Parquet. What is asked for is read off the sample submission: its columns that the test has are ids, the others
are the answer.

    import spectrakit as sk
    from spectrakit_table import Table
    task = Table("coffee-table")                       # the slug of a data set or competition, or a folder
    print(task.describe(cfg))                          # what was found, and what was left out
    run = sk.fit(task, cfg, resume="auto", predict="submission.csv")

Every option of `Table.options` is a setting: `task.group=patient`, `task.net=conv`.
"""

# @title Install spectrakit where it is missing, from wheels that are compared before anything of them runs
WHEELS = "spectrakit-wheels"  # @param {type:"string"}
SHA256 = ""  # @param {type:"string"}
NETWORK = ""  # @param {type:"string"}
# WHEELS: the attached data set, or a folder on Drive. SHA256: of its wheelhouse.json, which `spectrakit kaggle push`
# writes in. NETWORK: what pip is to fetch where no wheels are attached, such as "spectrakit-train[demo]".


def wheels_on_drive(my_drive):
    "Colab: mount Drive; where no wheels lie there, ask for them. Returns the hash of those that were chosen here."
    import hashlib
    from pathlib import Path

    from google.colab import drive, files

    if not my_drive.is_dir():
        try:
            drive.mount(str(my_drive.parent))
        except Exception as error:  # consent was refused; Colab Enterprise has no Drive
            print(f"Drive is not mounted, and what is written here goes with this machine: {error}")
    place = my_drive if my_drive.is_dir() else my_drive.parents[1]
    house, chosen = place / WHEELS, place / f"{WHEELS}.sha256"
    if not (house / "wheelhouse.json").is_file():
        print(f"There is no {house}. Choose all files of the folder that `spectrakit wheelhouse` has made, this once:")
        for name, data in files.upload().items():
            house.mkdir(exist_ok=True)
            (house / Path(name).name).write_bytes(data)
            Path(name).unlink(missing_ok=True)  # the dialog keeps a second copy
        if (house / "wheelhouse.json").is_file():
            chosen.write_text(hashlib.sha256((house / "wheelhouse.json").read_bytes()).hexdigest())
    return chosen.read_text() if chosen.is_file() else ""


def install_spectrakit():
    import hashlib
    import importlib.util
    import json
    import runpy
    import subprocess
    import sys
    from pathlib import Path

    spec = importlib.util.find_spec("spectrakit")
    if spec and spec.origin:  # without: a folder of data with that name
        if Path(spec.origin).with_name("offline").is_dir():
            return
        mend = "Rename that folder, or remove what brought it: pip uninstall pyspectrakit"
        raise ImportError(f"{spec.origin} is another package named spectrakit. {mend}")
    drive, chosen = Path("/content/drive/MyDrive"), ""
    if not NETWORK and "google.colab" in str(globals().get("get_ipython", str)()):
        chosen = wheels_on_drive(drive)
    named, depths, lists = SHA256 or chosen, ("", "*/", "*/*/", "*/*/*/"), {}
    found = [file for d in depths for file in Path("/kaggle/input").glob(f"{d}{WHEELS}/wheelhouse.json")]
    found += [file for top in (drive, drive.parents[1]) for file in top.glob(f"{WHEELS}/wheelhouse.json")]
    for file in sorted(found):
        with open(file, "rb") as source:
            text = source.read(1 << 20)
        lists[hashlib.sha256(text).hexdigest()] = file, text
    if named in lists:
        file, text = lists[named]
        installer = file.with_name("install.py")
        if hashlib.sha256(installer.read_bytes()).hexdigest() != json.loads(text).get("installer"):
            raise ImportError(f"{installer} is not the one that is listed. Upload the folder again, as it was built.")
        runpy.run_path(str(installer))["install"](sha256=named)
    elif lists:
        sha256, (file, _) = max(lists.items(), key=lambda one: one[1])
        wrong = "is not the list of wheels that SHA256 names" if named else "may be anybody's: SHA256 names no wheels"
        raise ImportError(f'{file} {wrong}. If these wheels are yours, write into this cell: SHA256 = "{sha256}"')
    elif NETWORK:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NETWORK], check=True)
    else:
        mend = "Attach that data set (Add Input), on Colab choose its files, or say in NETWORK what pip is to fetch."
        raise ImportError(f"spectrakit is missing, and there is no {WHEELS}/wheelhouse.json. {mend}")
    importlib.invalidate_caches()


install_spectrakit()

import spectrakit as sk
from spectrakit.table.table import Table

__all__ = ["Table"]


if __name__ == "__main__":  # Kaggle runs a utility script once, when it is saved
    print(
        f"spectrakit {sk.__version__}: {Table.__doc__.splitlines()[0]}",
        *(f"  task.{name}={value}" for name, value in Table.options.items()),
        sep="\n",
    )
