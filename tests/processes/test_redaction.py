"""What is hidden from logs, and what is not."""

import pytest

from fastutils.processes.redaction import redact


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "API-KEY", "hf_token", "accessToken", "password", "db.password", "clientSecret", "ssh-keys"],
)
def test_names_that_give_a_secret_away(name):
    assert redact({name: "s3cret"}) == {name: "***"}
    assert redact({name: ["s3cret"]}) == {name: "***"}
    assert redact({"x": [{name: "s3cret"}]}) == {"x": [{name: "***"}]}


@pytest.mark.parametrize(
    "harmless",
    [
        {"tokenizer": "t"},
        {"max_num_batched_tokens": 8192},
        {"ssl_keyfile": "/etc/key.pem"},
        {"monkey": "a"},
        {"api_key": None},
        {"bos_token_id": 1},
        {"url": "http://host:80/a?b=c"},
        {"text": "[not json"},
    ],
)
def test_names_that_do_not(harmless):
    assert redact(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:s3cret@host/0", "redis://***@host/0"),
        ("https://s3cret@host", "https://***@host"),
        ("http://h/p?token=s3cret&a=1#f", "http://h/p?token=***&a=1#f"),
        ("http://h/p?a=1&X-Amz-Signature=s3cret", "http://h/p?a=1&X-Amz-Signature=***"),
        ("Authorization: Bearer s3cret", "Authorization: Bearer ***"),
        ("--api-key=s3cret", "--api-key=***"),
        ('{"token": "s3cret"}', '{"token": "***"}'),
    ],
)
def test_secrets_within_text(text, shown):
    assert redact(text) == shown


def test_the_original_is_not_changed():
    original = {"token": "s3cret", "list": [{"password": "s3cret"}]}
    redact(original)
    assert original == {"token": "s3cret", "list": [{"password": "s3cret"}]}
