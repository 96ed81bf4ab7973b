"""No value of a variable that is named like a secret reaches a message, a log or a run's folder."""

import base64
import io
import json

import pytest

from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.system.secret_masking import MaskedStream, mask_file, masked
from tasks import Line

VALUE = "hf_0123456789abcdef"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "MY_APIKEY", "KEY", "db_password", "X_PASSWD", "AWS_SECRET", "CREDENTIALS"]
)
def test_the_value_of_a_secret_variable_is_replaced_by_its_name(monkeypatch, name):
    monkeypatch.setenv(name, VALUE)
    assert masked(f"401 for {VALUE}, twice {VALUE}") == f"401 for <{name}>, twice <{name}>"


@pytest.mark.parametrize("name", ["HOME_DIR", "MONKEY", "KEYBOARD", "MY_NAME"])
def test_other_variables_are_no_secrets(monkeypatch, name):
    monkeypatch.setenv(name, VALUE)
    assert masked(VALUE) == VALUE


def test_a_short_value_is_a_word_that_stands_anywhere(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "train12")
    assert masked("train123") == "train123"
    monkeypatch.setenv("MY_TOKEN", "train123")
    assert masked("train123") == "<MY_TOKEN>"


class Leaking(Line):
    "It fails with an address that holds a password."

    def during(self, number):
        if number == 3:
            raise ConnectionError(f"https://user:{VALUE}@example.org/data")


def test_an_error_is_written_down_without_it(here, monkeypatch, capfd):
    monkeypatch.setenv("DATA_PASSWORD", VALUE)
    run = fit(Leaking(), compose("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8"), show=False)
    assert run.status == "failed" and "https://user:<DATA_PASSWORD>@example.org/data" in run.error
    written = [path for path in run.path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert written == []
    captured = capfd.readouterr()
    assert VALUE not in captured.out + captured.err
    assert "<DATA_PASSWORD>" in json.dumps(run.events[-1])


KEY, PASSWORD = "a1B2" * 6, "Tr0ub4dor"
WRITTEN = {
    "an AWS secret behind its number": ("AKIA" + "Q3EGRZ7JX4M2KDPL" + ":" + "a1B/" * 10, "a1B/" * 10),
    "an address of S3": ("s3://AKIA" + "Q3EGRZ7JX4M2KDPL" + ":" + "a1B/" * 10 + "@bucket/x", "a1B/" * 10),
    "a signed address": ("https://b.example.org/k?X-Amz-Expires=9&X-Amz-Signature=" + "0f1e" * 16, "0f1e" * 16),
    "a webhook with a version": ("https://discord.com/api/v10/" + "webhooks/123456789012345678/" + KEY * 3, KEY),
    "another scheme": (f"{{'Authorization': 'token {KEY}'}}", KEY),
    "a tab": (f"Bearer\t{KEY}", KEY),
    "a colon": (f"Bearer: {KEY}", KEY),
    "a token's short name": (f"GITHUB_PAT={KEY}", KEY),
    "a joined name": (f"PGPASSWORD={PASSWORD}", PASSWORD),
    "curl": (f"curl -u ada:{PASSWORD} https://example.org", PASSWORD),
    "an address with every sign": ("postgres://ada:" + "pa$$w{0}rd" + "@db/x", "w{0}rd"),
    "a line of code in a traceback": (f"os.environ['DB_PASSWORD'] = '{PASSWORD}'", PASSWORD),
    "an item": (f"('DB_PASSWORD', '{PASSWORD}')", PASSWORD),
    "a command that failed": (f"Command '['tool', '--password', '{PASSWORD}']' returned 1", PASSWORD),
    "a block": (f"db:\n  password: |-\n    {PASSWORD}\n  port: 1", PASSWORD),
    "a folded block": (f"token: >\n  {KEY}\n", KEY),
    "the line below": (f"password:\n  {PASSWORD}\nname: x", PASSWORD),
    "an element": (f"<db><password type='plain'>\n  {PASSWORD}\n</password></db>", PASSWORD),
    "attributes": (f"<add key='api_key' value='{KEY}'/>", KEY),
    "a property": (f"<property><name>fs.secret.key</name> <value>{KEY}</value></property>", KEY),
    "a .netrc": (f"machine example.org\n  login ada\n  password {PASSWORD}\n", PASSWORD),
    "a sentence": (f"My API key is {KEY}.", KEY),
    "a list": (f"api_keys: ['{KEY}', 'x{KEY}']", KEY),
}


@pytest.mark.parametrize(("text", "secret"), WRITTEN.values(), ids=WRITTEN)
def test_a_secret_is_masked_however_it_is_written(text, secret):
    assert secret not in masked(text) and masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "docker run -u 100000:100000 image",
        "['password', 'user']",
        "('key', 'feature_12')",
        "pat_id=P12345x9",
        "token=['a']",
        "password:\n  required: true\n  length: 12",
        "token:\n  - first\n  - second",
        "The token is missing, the password was unchanged.",
        "<key>name</key><string>coffee2</string><token>word</token>",
        "the secret is in section_12",
    ],
)
def test_what_only_resembles_one_is_left(text):
    assert masked(text) == text


HF = "hf_" + "aB3" * 12
SEEN = {
    "colour before a token": f"\x1b[31m{HF}\x1b[0m",
    "256 colours": f"\x1b[38;5;196m{HF}",
    "a coloured name, sign and value": f"\x1b[33mpassword\x1b[0m\x1b[2m=\x1b[22m\x1b[32m{HF}\x1b[0m",
    "colours in a repr": repr(f"\x1b[1;31m{HF}"),
    "colours in JSON": json.dumps(f"\x1b[1m{HF}"),
    "colours within": f"{HF[:9]}\x1b[7m{HF[9:]}",
    "a zero-width space": HF[:7] + "\u200b" + HF[7:],
    "a soft hyphen": HF[:12] + "\u00ad" + HF[12:],
    "a letter as a number in JSON": HF.replace("_", "\\u005f"),
    "a letter as a number in an address": "%68" + HF[1:],
    "a colour in one sign": f"\x9b31m{HF}\x9b0m",
    "a sign that is erased": HF[:9] + "q\b" + HF[9:],
    "a null byte": HF[:9] + "\0" + HF[9:],
    "a bell": HF[:20] + "\a" + HF[20:],
    "behind a letter": "x" + HF,
    "behind an underscore and a word": "my_" + HF,
    "a link of a terminal": f"\x1b]8;;https://u:{HF}@h/\x1b\\link\x1b]8;;\x1b\\",
}


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN)
def test_a_secret_is_masked_as_it_would_be_seen(text):
    shown = masked(f"before {text} after")
    assert HF not in shown.replace("\u200b", "") and HF[12:19] not in shown and HF[20:30] not in shown
    assert shown.startswith("before ") and shown.endswith(" after")
    assert masked(shown) == shown


CODED = {
    "base64": base64.b64encode(HF.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"key?{HF}>>".encode()).decode(),
    "base64 without its end": base64.b64encode(f"{HF}!".encode()).decode().rstrip("="),
    "base64 of JSON": base64.b64encode(json.dumps({"db": {"password": PASSWORD}}).encode()).decode(),
    "base64 twice": base64.b64encode(base64.b64encode(HF.encode())).decode(),
    "hexadecimal": HF.encode().hex(),
    "hexadecimal in capitals": f"PASSWORD={PASSWORD}".encode().hex().upper(),
}


@pytest.mark.parametrize("text", CODED.values(), ids=CODED)
def test_a_secret_is_masked_where_it_is_encoded(text):
    assert masked(f"before {text} after") == "before <hidden> after"
    assert masked(f"x='{text}'") == "x='<hidden>'"


WRAPPED = {
    "a narrow window": HF[:20] + "\n" + HF[20:],
    "an indented line": HF[:8] + "\n    " + HF[8:],
    "a table": HF[:30] + " |\n| " + HF[30:],
    "Windows": HF[:25] + "\r\n" + HF[25:],
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_a_secret_is_masked_across_the_end_of_a_line(text):
    assert masked(f"before {text}\nafter") == "before <Hugging Face token>\nafter"


GLUED = {
    "AWS key": "AKIA" + "Q7" * 8,
    "GitLab token": "glpat-" + "aB3x" * 5,
    "Slack token": "xoxb-" + "1234567890-" * 2 + "aB3" * 8,
}


@pytest.mark.parametrize("before", ["x", "my_", "KEY", "\x1b[2Kx"])
@pytest.mark.parametrize("whose", GLUED)
def test_a_key_with_a_beginning_of_its_own_is_masked_behind_other_letters(before, whose):
    assert masked(f"{before}{GLUED[whose]} after") == f"{before}<{whose}> after"


LONG = ("sk-ant-api03-" + "aB3xY9" * 15, "sk-proj-" + "Q7w" * 16, "xoxb-" + "1234567890-" * 2 + "aB3xY9" * 6)


@pytest.mark.parametrize("key", LONG)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_no_half_of_a_key_stays_in_the_next_line(key, share):
    "The first half of a long key is one by itself."
    at = int(share * len(key))
    shown = masked(f"{key[:at]}\n{key[at:]}\nEpoch done")
    assert key[at : at + 8] not in shown and shown.endswith("\nEpoch done")
    assert masked(f"{key}\nEpoch done").endswith(">\nEpoch done")


@pytest.mark.parametrize("lines", [2, 5])
def test_a_known_value_is_masked_over_any_number_of_lines(monkeypatch, lines):
    value = "Correct-horse.battery+staple-42"
    monkeypatch.setenv("LAB_TOKEN", value)
    size = -(-len(value) // lines)
    text = "\n  ".join(value[at : at + size] for at in range(0, len(value), size))
    assert masked(f"with {text}\nafter") == "with <LAB_TOKEN>\nafter"


@pytest.mark.parametrize(
    "text",
    [
        "hf_transfer\nhuggingface\nhumanfriendly\nidna\nnumpy",
        "sha256:" + "0f1e2d3c4b5a6978" * 4,
        base64.b64encode(b"only words, and nothing that is secret").decode(),
        base64.b64encode(bytes(range(256))).decode(),
        "checkpoints/step-00000100/rank-00000/model",
        b"words in hexadecimal".hex(),
    ],
)
def test_what_is_encoded_or_wrapped_is_left_where_nothing_is_secret(text):
    assert masked(text) == text


def test_a_known_value_is_masked_in_colours(monkeypatch):
    monkeypatch.setenv("LAB_TOKEN", "sesame-4711")
    assert masked("\x1b[1msesame\x1b[0m-4711!") == "\x1b[1m<LAB_TOKEN>!"


@pytest.mark.parametrize(
    "text",
    ["\x1b[32mstep 1200\x1b[0m loss 0.41", "100%20done", r"C:\x41\u0041", "task-" + "a" * 40, "self_hf_" + "a" * 40],
)
def test_colours_and_spelled_letters_stay_where_nothing_is_secret(text):
    assert masked(text) == text


@pytest.mark.parametrize("before", [0, 30_000, 32_760, 65_500, 65_530])
@pytest.mark.parametrize("secret", [HF, f"password={PASSWORD}", "Bearer " + "a1B2c3" * 20])
def test_a_secret_across_the_border_of_a_buffer_is_masked(before, secret):
    kept = io.StringIO()
    stream = MaskedStream(kept)
    for piece in ("x" * before, " " + secret[:12], secret[12:], " ", "y" * 70_000, "\n"):
        stream.write(piece)
    stream.flush()
    shown = kept.getvalue()
    assert secret[-20:] not in shown and PASSWORD not in shown
    assert len(shown) > 70_000 + before


def test_a_file_of_one_endless_line_is_masked(tmp_path):
    file = tmp_path / "rank-0.log"
    file.write_text("x" * (2**20 - 10) + f" {HF} " + "y" * 2**20)
    assert mask_file(file) and HF not in file.read_text() and len(file.read_text()) > 2**21 - 50
    assert not mask_file(file)
