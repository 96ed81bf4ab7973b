"""`spectrakit kaggle check` finds keys wherever they may stand in a kernel, and takes nothing else for one.

No key here is one: they are put together from letters while the tests run."""

import base64
import json
import zipfile
from pathlib import Path

import pytest
from test_check import kernel

from spectrakit.kaggle import secret_scan
from spectrakit.kaggle.check import check_kernel
from spectrakit.kaggle.metadata import KERNEL_FILE
from spectrakit.kaggle.secret_scan import leaks_in, leaks_in_bytes, leaks_in_code, leaks_in_file, leaks_in_folder

HF = "hf_" + "a1B2" * 9
HEX = "0f1e" * 10
AWS = "aB3/" + "dE5+fG7h" * 4 + "iJ9/"
HOOK = "https://hooks.slack.com/" + "services/T0A1B2C3D/B0A1B2C3D/" + "a1B2" * 6


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SOURCES = {
    "a literal": f"login('{HF}')",
    "%env with a sign": f"%env MY_TOKEN={HEX}",
    "%env with a space": f"%env MY_TOKEN {HEX}",
    "%set_env": f"%set_env MY_TOKEN {HEX}",
    "!export": f"!export WANDB_API_KEY={HEX}",
    "a variable before a command": f"!HF_TOKEN={HF} python train.py",
    "%%bash": f"%%bash\nexport API_KEY={HEX}\npython train.py",
    "adjacent literals": f"key = ('hf_'\n       '{HF[3:]}')",
    "added literals": f"key = 'hf_' + '{HF[3:]}'",
    "added names": f"head = 'hf_'\nkey = head + '{HF[3:]}'",
    "an f-string": f"head = 'hf_'\nkey = f'{{head}}{HF[3:]}'",
    "joined": f"key = ''.join(['hf_', '{HF[3:]}'])",
    "a form that is filled": f"key = '{{}}{{}}'.format('hf_', '{HF[3:]}')",
    "a form with %": f"key = 'hf_%s' % '{HF[3:]}'",
    "a name that grows": f"key = 'hf_'\nkey += '{HF[3:]}'",
    "two names at once": f"head, tail = 'hf_', '{HF[3:]}'\nkey = head + tail",
    "base64": f"key = b64decode('{b64('token=' + HF)}')",
    "bytes": f"key = b'{HF}'",
    "an AWS secret with slashes": f"aws_secret_access_key = '{AWS}'",
    "a session of boto": f"boto3.client('s3', aws_secret_access_key='{AWS}')",
    "a variable of the environment": f"import os\nos.environ['WANDB_API_KEY'] = '{HEX}'",
    "setdefault": f"import os\nos.environ.setdefault('WANDB_API_KEY', '{HEX}')",
    "a dict": f"config = {{'api_key': '{HEX}'}}",
    "a keyword": f"import wandb\nwandb.login(key='{HEX}')",
    "a key without a name": f"import wandb\nwandb.login('{HEX}')",
    "a user and a password": "requests.get(url, auth=('ada', '" + "Tr0ub4dor3x" + "'))",
    "aws configure": f"!aws configure set aws_secret_access_key {AWS}",
    "sshpass": "!sshpass -p " + "Tr0ub4dor3x" + " ssh ada@example.org",
    "wandb login": f"!wandb login {HEX}",
    "wandb login --relogin": f"!wandb login --relogin {HEX}",
    "huggingface-cli login": f"!huggingface-cli login --token {HF}",
    "an address": f"!git clone https://ada:{HEX}@github.com/ada/x.git",
    "a token as a name": f"!git clone https://{HEX}@github.com/ada/x.git",
    "a database": "engine = create_engine('postgresql://ada:" + "Tr0ub4dor3x" + "@db.example.org/x')",
    "curl -u": "!curl -u ada:" + "a1B2c3D4e5F6" + " https://example.org",
    "a header": f"requests.get(url, headers={{'Authorization': 'Bearer {HEX}'}})",
    "a webhook": f"requests.post('{HOOK}', json={{}})",
    "a Discord webhook": "url = 'https://discord.com/" + "api/webhooks/" + "123456789012345678/" + "a1B2" * 17 + "'",
    "a bot": "bot = Bot('" + "1234567890:AA" + "a1B2" * 8 + "a')",
    ".netrc": f"!echo 'machine api.wandb.ai login user password {HEX}' > ~/.netrc",
    "%%writefile": f'%%writefile kaggle.json\n{{"username": "ada", "key": "{HEX[:32]}"}}',
    "a remark": f"# TOKEN={HEX}\nx = 1",
    "a private key": "key = '''-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE" + "a1B2" * 20 + "\n'''",
    "a password": "db.connect(password='" + "Tr0ub4dor&3xx" + "')",
    "a cell that does not parse": f"print 'x'\nTOKEN = '{HF}'",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_key_in_a_cell_is_found(source):
    found = [leak for leak in leaks_in_code(source) if leak]
    assert found and all(secret not in str(found) for secret in (HF, HEX, AWS, HOOK))


def output(**fields) -> dict:
    return {"output_type": "display_data", "metadata": {}, **fields}


PLACES = {
    "markdown": {"cell_type": "markdown", "source": f"The token is `{HF}`."},
    "raw": {"cell_type": "raw", "source": f"export HF_TOKEN={HF}"},
    "metadata": {"metadata": {"tags": ["x"], "note": {"api_key": HEX}}},
    "attachments": {"cell_type": "markdown", "attachments": {"env.txt": {"text/plain": b64(f"HF_TOKEN={HF}")}}},
    "a stream in chunks": {
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": [HF[:9]]},
            {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]},
            {"output_type": "stream", "name": "stdout", "text": [HF[9:], "\n"]},
        ]
    },
    "a result in lines": {"outputs": [output(data={"text/plain": [HF[:9], HF[9:]]})]},
    "HTML": {"outputs": [output(data={"text/html": f"<b>{HF[:9]}</b><i>{HF[9:]}</i>"})]},
    "JSON": {"outputs": [output(data={"application/json": {"settings": {"token": HEX}}})]},
    "a traceback": {
        "outputs": [
            {
                "output_type": "error",
                "ename": "HTTPError",
                "evalue": "401",
                "traceback": [f"\x1b[31mtoken\x1b[0m=\x1b[32m{HEX}\x1b[0m"],
            }
        ]
    },
    "the metadata of an output": {"outputs": [output(data={}, metadata={"url": f"https://ada:{HEX}@example.org"})]},
}


@pytest.mark.parametrize("cell", PLACES.values(), ids=PLACES)
def test_a_key_is_found_wherever_a_notebook_keeps_text(here, cell):
    folder = kernel(here / "k", "x = 1")
    notebook = json.loads((folder / "kernel.ipynb").read_text())
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": "", "outputs": [], **cell})
    (folder / "kernel.ipynb").write_text(json.dumps(notebook))
    (finding, *_) = check_kernel(folder).secrets
    assert finding.where.startswith("cell 2") and HF not in str(finding) and HEX not in str(finding)


def test_a_key_in_the_metadata_of_notebook_and_kernel_is_found(here):
    folder = kernel(here / "k", "x = 1", metadata={"colab": {"token": HEX}}, keywords=[HF])
    assert {finding.where for finding in check_kernel(folder).secrets} == {"its metadata", KERNEL_FILE}


FILES = {
    ".env": f"WANDB_API_KEY={HEX}",
    "settings.json": json.dumps({"db": {"password": "Tr0ub4dor&3xx"}}),
    "settings.yaml": f"hub:\n  token: {HF}\n",
    "settings.toml": f'[hub]\ntoken = "{HF}"\n',
    "notes.txt": f"the token is {HF}",
    "common.py": f"TOKEN = 'hf_' + '{HF[3:]}'",
    "run.sh": f"export HF_TOKEN={HF}",
    "rows.csv": f"id,note\n1,{HF}\n",
    "older.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": [f"login('{HF}')"]}]}),
    "kaggle.json": json.dumps({"username": "ada", "key": HEX[:32]}),
    "account.json": json.dumps({"type": "service_account", "private_key": "-----BEGIN " + "PRIVATE KEY-----\nMIIE\n"}),
    "id_rsa": "anything",
    "deep/er/secrets.py": f"KEY = '{HF}'",
}


def test_keys_in_the_files_beside_a_kernel_are_told(here):
    folder = kernel(here / "k", "x = 1")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("home/.netrc", "machine example.org")
        archive.writestr("home/run.sh", f"export HF_TOKEN={HF}")
    told = [finding for finding in check_kernel(folder).findings if finding.about == "secret"]
    assert {finding.level for finding in told} == {"warning"}  # a push takes the notebook alone
    names = {Path(name).name for name in FILES}
    assert {finding.where for finding in told} == names | {"all.zip, home/.netrc", "all.zip, home/run.sh"}
    assert HF not in str(told) and HEX not in str(told)


def test_a_broken_archive_and_a_file_that_cannot_be_read_are_no_secrets(here):
    (here / "all.zip").write_bytes(b"PK\x03\x04 and no more")
    (here / "odd.json").write_bytes(b'{"a": ' * 100_000)
    assert leaks_in_file(here / "all.zip") == leaks_in_file(here / "odd.json") == leaks_in_file(here / "gone.py") == []


HARMLESS = [
    "commit = '" + HEX + "'",
    "# sha256:" + "0f1e" * 16,
    "model.safetensors  sha256=" + "0f1e" * 16,
    "digest = 'md5:" + "0f1e" * 8 + "'",
    "run_id = '1x9fk2ab'",
    "wandb.init(project='soil', id='3k2j1h4g')",
    "uuid = '123e4567-e89b-12d3-a456-426614174000'",
    "model = 'microsoft/deberta-v3-large'",
    "model = 'facebook/dinov2-with-registers-giant-imagenet1k-1-layer'",
    "timm.create_model('vit_so400m_patch14_siglip_384.webli')",
    "tokenizer = AutoTokenizer.from_pretrained('bert-base-uncased')",
    "tokenizer.pad_token = tokenizer.eos_token",
    "pad_token = '[PAD]'",
    "eos_token_id = 50256",
    "max_tokens = 4096\ntokens_per_s = 1234.5",
    "sort_key = 'feature_12'",
    "df.groupby(key='customer_id_2')",
    "primary_key = 'row_id'",
    "key = 'val/macro_f1'",
    "for key, value in items: print(key)",
    "API_KEY = os.environ['API_KEY']",
    "api_key = UserSecretsClient().get_secret('WANDB_API_KEY')",
    "api_key = userdata.get('WANDB_API_KEY')",
    "token = sk.secret('HF_TOKEN').reveal()",
    "login(token='YOUR_TOKEN_HERE')",
    "password = '<your password>'",
    "password = getpass('Password: ')",
    "token = 'xxxxxxxxxxxxxxxxxxxx'",
    "wandb.login('allow', 'never')",
    "requests.get(url, auth=('ada', 'YOUR_PASSWORD'))",
    "label = '%s of %s' % (name, 'key')",
    "os.environ['HF_TOKEN'] = '...'",
    "url = 'https://user:password@example.org/'",
    "url = f'https://{user}:{password}@example.org/'",
    "url = 'https://example.org:8080/a@b'",
    "src = 'data:image/png;base64,iVBORw0KGgo" + "AAAA" * 30 + "'",
    "integrity = 'sha512-" + "aB3dE5fG" * 10 + "=='",
    "checkpoint = 'runs/coffee-20261120-101500/checkpoints/step-00000120'",
    "path = '/kaggle/input/secret-recipes/train.csv'",
    "keyboard = 'qwertyuiop12'",
    "monkey_patch = 'torch.nn.functional'",
    "seed = 0x9E3779B97F4A7C15",
    "!pip install torch==2.9.1 --hash=sha256:" + "0f1e" * 16,
    "from sklearn.metrics import roc_auc_score",
    "author = 'Ada Lovelace 1815'",
    "state_dict['layer1.0.conv2.weight']",
    "secret_santa = random.choice(names)",
    "# Basic understanding of the data; bearer of bad news",
    "# ## Basic Overview",
    "key_frames = [1, 12, 48]",
    "dsn_columns = ['a', 'b']",
    "cache_key = 'a1b2c3d4e5'",
    "passes = 3; forward_pass = model(x)",
    "hf_hub_download('ada/model', 'x.bin')",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_what_is_no_key_is_left_alone(source):
    assert not [leak for leak in leaks_in_code(source) if leak] and not leaks_in_bytes("x.py", source.encode())


def test_pictures_in_outputs_and_lock_files_are_left_alone(here):
    picture = {"image/png": b64("AKIA" + "A7" * 8 + HF), "text/plain": "<Figure size 640x480 with 1 Axes>"}
    folder = kernel(here / "k", ("plot()", [output(data=picture)]))
    lock = "\n".join(f"package-{n}==1.{n} --hash=sha256:{n:064x}" for n in range(40))
    (folder / "requirements.lock").write_text(lock)
    (folder / "package-lock.json").write_text(json.dumps({"lodash": {"integrity": "sha512-" + "aB3dE5fG" * 10 + "=="}}))
    (folder / ".env.example").write_text("WANDB_API_KEY=")
    assert [f.level for f in check_kernel(folder).findings if f.about == "secret"] == ["ok"]
    assert len(HARMLESS) >= 40 and not leaks_in(lock)


@pytest.mark.parametrize("packed", [False, True])
def test_files_that_are_not_searched_are_told(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(secret_scan, "_MOST_FILES", 3)
    names = [f"{number}.txt" for number in range(3)]
    folder = tmp_path / "files"
    folder.mkdir()

    def fill():
        if packed:
            with zipfile.ZipFile(folder / "all.zip", "w") as archive:
                [archive.writestr(name, "plain") for name in names]
        for name in () if packed else names:
            (folder / name).write_text("plain")

    fill()
    assert leaks_in_folder(folder) == []
    names.append("3.txt")
    fill()
    found = leaks_in_folder(folder)
    assert len(found) == 1 and "not searched" in found[0][0].whose and not found[0][0].sure
