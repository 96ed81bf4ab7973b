"""detect-secrets (Apache-2.0), a scanner of others, is asked as well: what its rules find in a text, `masked` hides."""

import base64

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.settings import transient_settings
from test_secret_table import TEXTS

from spectrakit.system.secret_masking import masked

LOW, MIXED, HEX = "k3m9q7x2w8z4" * 6, "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0" * 4, "0f1e2d3c4b5a6978" * 6
DETECTORS = {kind.__name__: kind for kind in get_mapping_from_secret_type_to_class().values()}
NOT_ASKED = {
    "Base64HighEntropyString": "any long word in quotes, as the names of layers and hashes",
    "HexHighEntropyString": "any long number, as the hash of a file or a commit",
    "IPPublicDetector": "the address of a machine is no secret",
}

# Put together here, so that no scanner takes this file for a leak. Each kind has two texts at least.
SAMPLES = {
    "ArtifactoryDetector": ["artifactory=AKC" + MIXED[:30], 'key "AP5' + MIXED[:30] + '"'],
    "AWSKeyDetector": [
        "with AKIA" + "Q3EGRZ7JX4M2KDPL",
        "A3T" + "XQ3EGRZ7JX4M2KDPL is one",
        "aws_key = '" + MIXED[:40] + "'",
        'aws token: "' + "a1B/" * 10 + '"',
    ],
    "AzureStorageKeyDetector": ["AccountKey=" + MIXED[:86] + "==", "x;AccountKey=" + ("aB3/" * 22)[:86] + "==;y"],
    "BasicAuthDetector": ["https://ada:s3cretword@example.org", "postgres://u:hunter22@db/x"],
    "CloudantDetector": [
        "cloudant_password='" + HEX[:64] + "'",
        "cl_key: " + HEX[:64],
        "https://ada:" + HEX[:64] + "@ada.cloudant.com",
        "cloudant_apikey = " + "abcdefghijklmnopqrstuvwx",
    ],
    "DiscordBotTokenDetector": [first + MIXED[:23] + "." + MIXED[:6] + "." + MIXED[:27] for first in "MNO"],
    "GitHubTokenDetector": [start + MIXED[:36] for start in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")],
    "GitLabTokenDetector": [
        *(start + MIXED[:20] for start in ("glpat-", "gldt-", "glft-", "glsoat-", "glrt-", "GR1348941", "glcbt-4a_")),
        *("glimt-" + MIXED[:25], "glptt-" + MIXED[:40], "glagent-" + MIXED[:50], "gloas-" + MIXED[:64]),
    ],
    "IbmCloudIamDetector": ["ibm_cloud_iam_api_key = " + MIXED[:44], 'iam-token: "' + MIXED[:44] + '"'],
    "IbmCosHmacDetector": ["cos_hmac_secret_access_key=" + HEX[:48], '"secret_access_key": "' + HEX[:48] + '"'],
    "JwtTokenDetector": [
        ".".join(
            base64.urlsafe_b64encode(part).decode().rstrip("=")
            for part in (b'{"alg":"HS256"}', b'{"id":12345}', b"k" * 32)
        ),
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + MIXED[:43],
    ],
    "KeywordDetector": [
        "password = 'hunter22!'",
        "api_key: 'a1b2c3d4e5'",
        "db_pass = 's3cretword'",
        'secret = "xyz-77-abc-1"',
        "private_key = 'a1b2c3d4e5f6'",
        'aws_secret_access_key = "a1b2c3d4e5f6"',
        "client_secret => 'a1b2c3d4e5f6'",
        'pwd = "s3cretword"',
    ],
    "MailchimpDetector": [LOW[:32] + "-us7", "with " + HEX[:32] + "-us12"],
    "NpmDetector": [
        "//registry.npmjs.org/:_authToken=npm_" + MIXED[:36],
        "//npm.example.org/:_authToken=" + "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    ],
    "OpenAIDetector": [start + MIXED[:20] + "T3BlbkFJ" + MIXED[20:40] for start in ("sk-", "sk-proj-", "sk-svcacct-")],
    "PrivateKeyDetector": [
        "-----BEGIN " + f"{kind}-----\nMIIE{MIXED[:60]}\n-----END {kind}-----"
        for kind in ("PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "PGP PRIVATE KEY BLOCK")
    ]
    + [
        "PuTTY-User-Key-File-"
        + "2: ssh-rsa\nEncryption: none\nPrivate-Lines: 2\nMIIE"
        + MIXED[:60]
        + "\nMIIE"
        + MIXED[:60]
        + "\nPrivate-MAC: "
        + HEX[:40]
    ],
    "PypiTokenDetector": ["pypi-AgEIcHlwaS5vcmc" + MIXED[:80], "pypi-AgENdGVzdC5weXBpLm9yZw" + MIXED[:80]],
    "SendGridDetector": ["SG." + MIXED[:22] + "." + MIXED[:43], "x=SG." + MIXED[3:25] + "." + MIXED[3:46]],
    "SlackDetector": [
        "xoxb-" + "123456789012-" + LOW[:24],
        "xoxs-" + "1234-5678-" + LOW[:24],
        "https://hooks.slack.com/" + "services/T0A1B2C3D/B0A1B2C3D/" + MIXED[:24],
    ],
    "SoftlayerDetector": [
        "softlayer_api_key = " + LOW[:64],
        "sl-token: '" + LOW[:64] + "'",
        "https://api.softlayer.com/soap/v3/" + LOW[:64],
    ],
    "SquareOAuthDetector": ["sq0csp-" + MIXED[:43], "with sq0csp-" + MIXED[2:45]],
    "StripeDetector": ["sk_live_" + MIXED[:24], "rk_live_" + MIXED[:24]],
    "TelegramBotTokenDetector": ["1234567890:AA" + MIXED[:33], "bot 12345678:" + MIXED[:35]],
    "TwilioKeyDetector": ["SK" + HEX[:32], "AC" + HEX[:32]],
}


def found(name: str, text: str) -> list[str]:
    "What a rule of detect-secrets takes for secrets in `text`."
    with transient_settings({"plugins_used": [], "filters_used": []}):
        lines = text.splitlines()
        return [secret for line in lines for secret in DETECTORS[name]().analyze_string(line)]


def test_each_rule_has_samples_or_a_reason():
    assert SAMPLES.keys() | NOT_ASKED.keys() == DETECTORS.keys() and not SAMPLES.keys() & NOT_ASKED.keys()
    assert all(len(texts) >= 2 for texts in SAMPLES.values())


@pytest.mark.parametrize("name", SAMPLES)
def test_what_another_scanner_finds_is_masked(name):
    for text in SAMPLES[name]:
        secrets = found(name, text)
        assert secrets, f"it finds nothing in {text}"
        for shown in (masked(text), masked(f"step 3\n{text}\nloss 0.4")):
            assert not [secret for secret in secrets if secret in shown], (name, text, shown)
            assert MIXED[4:20] not in shown and HEX[4:20] not in shown and LOW[4:20] not in shown, (name, shown)


def test_masked_finds_more_than_another_scanner():
    "All the kinds that are known here; its rules for words of high entropy are left out, as they take hashes, too."
    theirs = [name for name, (text, secret) in TEXTS.items() if any(found(rule, text) for rule in SAMPLES)]
    ours = [name for name, (text, secret) in TEXTS.items() if secret not in masked(text)]
    assert set(theirs) <= set(ours) and len(ours) > len(theirs), (len(theirs), len(ours))
