"""Secrets of many kinds, none of them real: each is put together here, and leaves by none of the ways out."""

import base64
import io
import json
import re
from urllib.parse import quote

import pytest

from spectrakit.config.compose import compose, diff, snapshot
from spectrakit.runs.events import encode_event
from spectrakit.system.errors import RequestError
from spectrakit.system.secret_masking import FORMS, MaskedStream, mask_file, masked, masked_value
from spectrakit.view.html import plain
from spectrakit.view.svg import escaped
from spectrakit.view.terminal import printable

MIXED = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 3
ENVIRON = "Tr0ub4dor&3/xx+yy="  # the value of a variable

STARTS = re.findall(
    r"\S+",
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- hf_ api_org_ wandb_v1_ sk-proj- sk-svcacct- sk-ant-api03- "
    "sk-or-v1- gsk_ pplx- GOCSPX- ya29. xoxb- xoxp- xapp- sk_live_ rk_test_ whsec_ dckr_pat_ hvs. glsa_ lin_api_ ntn_ "
    "pnu_ pscale_tkn_ dp.pt. NRAK- tskey-auth- npm_",
)
FORMED = {start: start + MIXED[: 36 if start in ("npm_", "pnu_") else 44] for start in STARTS} | {
    "KGAT_": "KGAT_" + HEX[:32],
    "AKIA": "AKIA" + "A7BC" * 4,
    "AIza": "AIza" + MIXED[:35],
    "dapi": "dapi" + HEX[:32],
    "dop_v1_": "dop_v1_" + HEX[:64],
    "shpat_": "shpat_" + HEX[:32],
    "PyPI": "pypi-AgE" + MIXED + MIXED,
    "JWT": ".".join(("eyJ" + MIXED[:20], "eyJ" + MIXED[:30], MIXED[:40])),
    "Telegram": "1234567890:AA" + MIXED[:33],
    "Slack webhook": "hooks.slack.com/" + "services/T0A1B2C3D/B0A1B2C3D/" + MIXED[:24],
    "Discord webhook": "discord.com/api/" + "webhooks/123456789012345678/" + MIXED,
    "Azure": "AccountKey=" + MIXED[:43] + "==",
    "private key": "-----BEGIN " + "PRIVATE KEY-----\nMIIE" + MIXED + "\n-----END PRIVATE KEY-----",
}
FRAMED = {  # text around it → the secret
    "an address": ("https://ada:{}@example.org/x", "s3cretword"),
    "a name in an address": ("https://{}@example.org/x", HEX[:32]),
    "Bearer": ("Authorization: Bearer {}", MIXED[:24]),
    "Basic": ("Authorization: Basic {}", base64.b64encode(b"ada:s3cretword").decode()),
    "a cookie": ("Cookie: session={}", MIXED[:24]),
    "a password": ("connect(password='{}')", "open sesame"),
    "JSON": ('{{"api_key": "{}"}}', HEX[:40]),
    "a flag": ("tool --api-key {} --epochs 3", MIXED[:16]),
    "a query": ("GET https://example.org/x?token={}&page=2", HEX[:24]),
    "AWS": ("aws_secret_access_key = {}", "aB3/" + MIXED[:32] + "iJ9/"),
    "kaggle.json": ('{{"username": "ada", "key": "{}"}}', HEX[:32]),
    "the environment": ("it was {}", ENVIRON),
    "the environment, quoted": ("it was {}", quote(ENVIRON, safe="")),
    "the environment in hexadecimal": ("it was {}", ENVIRON.encode().hex()),
}
TEXTS = {name: (f"with {secret} in it", secret) for name, secret in FORMED.items()} | {
    name: (frame.format(secret), secret) for name, (frame, secret) in FRAMED.items()
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_secret_leaves_by_no_way(name, monkeypatch, tmp_path):
    text, secret = TEXTS[name]
    monkeypatch.setenv("LAB_PASSWORD", ENVIRON)
    kept, log = io.StringIO(), tmp_path / "rank-0.log"
    print(text, file=MaskedStream(kept))
    log.write_text(text + "\n")
    mask_file(log)
    ways = {
        "event": json.loads(encode_event(0, "message", {"text": text}))["text"],
        "stream": kept.getvalue(),
        "file": log.read_text(),
        "error": str(RequestError(text)),
        "environment.json": json.dumps(masked_value({"reasons": {"note": [text]}})),
        "report": plain(text),
        "dashboard": escaped(text, 10_000),
        "terminal": printable(text, kept),
    }
    left = [way for way, found in ways.items() if secret in found or secret.replace("\n", "\\n") in found]
    assert not left and masked(masked(text)) == masked(text)


def test_there_are_many_of_them():
    assert len(TEXTS) >= 60


@pytest.mark.parametrize("before", range(4))
def test_a_value_of_the_environment_is_found_in_base64_at_any_position(before, monkeypatch):
    monkeypatch.setenv("LAB_PASSWORD", ENVIRON)
    packed = base64.b64encode(b"adas"[:before] + ENVIRON.encode() + b" and more").decode()
    assert "<LAB_PASSWORD>" in masked(f"sent {packed}")


def test_a_snapshot_has_no_secret_and_the_process_that_wrote_it_knows_them(tmp_path):
    config = compose("+extra.api_key=open-sesame-17", "task.fold=3")
    file = tmp_path / "config.yaml"
    file.write_text(snapshot(config))
    assert "open-sesame-17" not in file.read_text() and compose(config=file) == config
    other = tmp_path / "other.yaml"  # of another process
    other.write_text(re.sub(r"(?<=form: )[0-9a-f]{64}", "0" * 64, file.read_text()))
    assert compose(config=other).extra["api_key"] == "<hidden>" and not diff(compose(config=other), config)


def repeats(pattern, inside: int = 1):
    "How often at most each repetition of a parsed expression can be tried, with those around it."
    for operation, value in pattern:
        name = str(operation)
        if "REPEAT" in name:
            yield inside * int(value[1])
            yield from repeats(value[2], inside * int(value[1]))
        elif name == "SUBPATTERN":
            yield from repeats(value[3], inside)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from repeats(branch, inside)


def test_the_time_that_a_text_takes_grows_with_its_length():
    "Every repetition of a form is bounded, also one inside another: a beginning costs so much at most."
    for form in FORMS:
        assert max(repeats(re._parser.parse(form.pattern)), default=0) <= 20_000, form
