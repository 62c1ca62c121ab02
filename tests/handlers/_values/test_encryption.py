"""Sealed text opens only with its key and in its place. Errors about keys never show a key."""

from __future__ import annotations

import base64

import pytest

from jobherd import Client, KeyMissingError, PayloadError, decrypt, handler
from jobherd.handlers._enqueue.bulk import many_by_name, one_by_name
from jobherd.handlers._run.unrunnable import unreadable
from jobherd.handlers._values import encryption as sealing
from jobherd.handlers._values.keys import ring
from jobherd.handlers._values.outcome import KEY_MISSING

OLD, NEW = (f"{name}=" + base64.b64encode(bytes([n]) * 32).decode() for n, name in enumerate(("2025", "2026")))


@pytest.fixture
def keys(monkeypatch):
    """Set the keys of this process and clear the cached ones."""

    def use(text="", **more):
        monkeypatch.setenv("JOBHERD_KEYS", text)
        monkeypatch.delenv("JOBHERD_KEYS_FILE", raising=False)
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        ring.cache_clear()

    yield use
    ring.cache_clear()


def test_newest_key_seals_and_every_key_opens(keys):
    keys(OLD)
    before = sealing.seal_text("a secret", "error", "a:b", 7)
    keys(f"{NEW}, {OLD}")
    after = sealing.seal_text("a secret", "error", "a:b", 7)
    for text in (before, after):
        assert "secret" not in text
        assert sealing.open_text(text, "error", "a:b", 7) == "a secret"
    keys(OLD)
    assert sealing.open_text(before, "error", "a:b", 7) == "a secret"
    with pytest.raises(KeyMissingError, match="'2026', which is not configured"):
        sealing.open_text(after, "error", "a:b", 7)
    assert sealing.seal_text("a secret", "error", "a:b", 7) != before, "a nonce is used once"


@pytest.mark.parametrize(
    "place", [("error", "a:c", 7), ("error", "a:b", 8), ("traceback", "a:b", 7), ("error", "a:b", "7")]
)
def test_sealed_text_does_not_open_for_another_kind_job_or_field(keys, place):
    keys(NEW)
    with pytest.raises(PayloadError, match="another kind or job"):
        sealing.open_text(sealing.seal_text("a secret", "error", "a:b", 7), *place)


def test_every_changed_byte_and_every_truncation_is_detected(keys):
    keys(NEW)
    sealed = ring().seal(b"a secret", "payload", "a:b")
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        with pytest.raises((PayloadError, KeyMissingError)):
            ring().open(changed, "payload", "a:b")
    for length in range(len(sealed)):
        with pytest.raises((PayloadError, KeyMissingError)):
            ring().open(sealed[:length], "payload", "a:b")


@pytest.mark.parametrize(
    "text", ["x", "2026=short", "2026=" + "A" * 60, f"{NEW},{NEW}", "=" + "A" * 43, NEW + "!", f"{NEW} nonsense"]
)
def test_invalid_keys_are_rejected_and_not_shown(keys, text):
    keys(text)
    with pytest.raises(KeyMissingError) as problem:
        ring()
    assert "AAAA" not in str(problem.value)
    assert NEW[5:] not in str(problem.value)


def test_keys_are_read_from_a_file_with_comments(keys, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# the newest first\n{NEW}\n{OLD}\n")
    keys(JOBHERD_KEYS_FILE=str(file))
    assert ring().names == ("2026", "2025")
    keys(JOBHERD_KEYS_FILE=str(tmp_path / "none"))
    with pytest.raises(KeyMissingError, match="JOBHERD_KEYS_FILE cannot be read: FileNotFoundError"):
        ring()


def test_producer_and_client_encrypt_payloads_and_compute_the_cost_before(keys):
    keys(NEW)

    @handler("a:b", encrypt=True, cost=lambda payload: {"memory_mb": payload["size"]})
    def sized(size: int) -> None: ...

    many = list(sized._many([{"size": 3}, {"size": 4}]))
    assert [chunk.costs for chunk in many] == [[{"memory_mb": 3.0}, {"memory_mb": 4.0}]]
    for chunk in (
        *many,
        sized._one((5,), {}),
        sized.options(delay=5)._one((5,), {}),
        one_by_name("a:b", {"size": 5}, {"encrypt": True, "payload_bytes": b"5" * 50}),
        *many_by_name("a:b", [{"size": 5}], {"encrypt": True}),
    ):
        assert all(text.startswith(sealing.HEAD) and "size" not in text for text in chunk.texts)
        assert chunk.options.payload_bytes is None or b"555" not in chunk.options.payload_bytes
    assert one_by_name("a:b", {"size": 5}, {}).texts == ['{"size":5}']
    keys()
    with pytest.raises(KeyMissingError, match="openssl rand"):
        sized._one((5,), {})
    with pytest.raises(TypeError, match="encrypt must be True or False"):
        Client(connection=None).enqueue("a:b", {}, encrypt="yes")


def test_unencrypted_payload_is_accepted_unless_only_encrypted_ones_are_allowed(keys):
    keys(NEW)
    assert sealing.open_payload({"size": 3}, "a:b", only=False) == {"size": 3}
    with pytest.raises(PayloadError, match="not encrypted"):
        sealing.open_payload({"size": 3}, "a:b", only=True)
    keys()
    with pytest.raises(KeyMissingError):
        sealing.open_payload({"size": 3}, "a:b", only=False)


def test_job_with_a_missing_key_is_snoozed_and_its_attempt_is_not_counted():
    outcome = unreadable(KeyMissingError("no key"))
    assert (outcome.label, outcome.state, outcome.counted, outcome.code) == ("snoozed", "scheduled", False, KEY_MISSING)


def test_cover_replaces_sealed_parts_of_a_text(keys):
    keys(NEW)
    sealed = sealing.seal_document('{"card": 4111}', "payload", "a:b")
    assert (
        sealing.cover(f"payload {sealed} and {sealing.seal_text('x', 'error')}.")
        == "payload (encrypted) and (encrypted)."
    )


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_encrypt_accepts_only_a_boolean_or_only(value):
    with pytest.raises(TypeError, match="encrypt must be"):
        handler("a:b", encrypt=value)


def test_decrypt_opens_all_encrypted_fields_of_a_row(keys):
    keys(NEW)
    row = {
        "id": 7,
        "kind": "a:b",
        "payload": sealing.is_sealed({})
        or {sealing.MARK: sealing.seal_document('{"a":1}', "payload", "a:b")[len(sealing.HEAD) : -2]},
        "payload_bytes": sealing.seal_bytes(b"PNG", "a:b"),
        "error": sealing.seal_text("ValueError: 1", "error", "a:b", 7),
        "history": [{"attempt": 1, "error": sealing.seal_text("ValueError: 1", "error", "a:b", 7)}],
    }
    opened = decrypt(row)
    assert opened == {
        "id": 7,
        "kind": "a:b",
        "payload": {"a": 1},
        "payload_bytes": b"PNG",
        "error": "ValueError: 1",
        "history": [{"attempt": 1, "error": "ValueError: 1"}],
    }
