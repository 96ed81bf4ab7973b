"The secrets of the account, which are /opt/account/secrets.json here."

import json


class SecretNotFoundError(Exception):
    def __init__(self, key: str):
        super().__init__(f"Secret {key} does not exist.")


class NotebookAccessError(Exception):
    def __init__(self, key: str):
        super().__init__(f"Notebook does not have access to secret {key}")


class TimeoutException(Exception):
    def __init__(self, key: str):
        super().__init__(
            f"Requesting secret {key} timed out. Secrets can only be fetched when running from the Colab UI."
        )


def get(key: str) -> str:
    "A secret's value; null among the secrets is one that this notebook may not see."
    with open("/opt/account/secrets.json", encoding="utf-8") as file:
        secrets = json.load(file)
    if key not in secrets:
        raise SecretNotFoundError(key)
    if secrets[key] is None:
        raise NotebookAccessError(key)
    return secrets[key]
