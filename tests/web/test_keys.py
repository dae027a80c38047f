from __future__ import annotations

import hashlib

import pytest

from trio_admission_web.keys import ApiKey, KeyRing, new_key


def a_key(name: str, secret: bytes, **limits: object) -> ApiKey:
    return ApiKey(name=name, hash="sha256:" + hashlib.sha256(secret).hexdigest(), **limits)  # type: ignore[arg-type]


RING = KeyRing([a_key("ada", b"secret-a"), a_key("ben", b"secret-b", flow="team")])


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer secret-a"),
        (b"authorization", b"bearer secret-a"),
        (b"authorization", b"BEARER  secret-a "),
        (b"x-api-key", b"secret-a"),
    ],
)
def test_a_known_key_is_found_in_either_header(header: tuple[bytes, bytes]) -> None:
    found = RING.find([(b"host", b"x"), header])
    assert found is not None
    assert found.name == "ada"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer secret-c")],
        [(b"authorization", b"Basic secret-a")],
        [(b"authorization", b"secret-a")],
        [(b"authorization", b"Bearer ")],
        [(b"x-api-key", b"")],
        [(b"api-key", b"secret-a")],
        [(b"cookie", b"secret-a")],
        [(b"x-api-key", b"secret-a\xff")],
    ],
)
def test_nothing_else_is_a_key(headers: list[tuple[bytes, bytes]]) -> None:
    assert RING.find(headers) is None


def test_two_different_keys_are_none_and_the_same_twice_is_one() -> None:
    assert RING.find([(b"x-api-key", b"secret-a"), (b"authorization", b"Bearer secret-b")]) is None
    assert RING.find([(b"x-api-key", b"secret-a"), (b"authorization", b"Bearer secret-a")]) is not None


def test_a_flow_is_named_after_its_key_unless_it_is_given() -> None:
    assert a_key("ada", b"1").flow == "ada"
    assert a_key("ben", b"1", flow="team").flow == "team"


def test_an_empty_ring_locks_nothing_and_knows_nobody() -> None:
    ring = KeyRing()
    assert not ring.locked
    assert ring.find([(b"x-api-key", b"secret-a")]) is None


def test_a_new_key_opens_the_ring_that_has_its_hash() -> None:
    key, digest = new_key()
    ring = KeyRing([ApiKey(name="new", hash=digest)])
    assert ring.find([(b"x-api-key", key.encode())]) is not None
    assert key not in repr(ring) + digest


def test_models_bound_what_may_be_named() -> None:
    key = a_key("ada", b"1", models=frozenset({"small"}))
    assert key.may_use("small")
    assert key.may_use(None)
    assert not key.may_use("large")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", 0),
        ("weight", float("nan")),
        ("max_requests", 0),
        ("max_waiting", -1),
        ("name", ""),
        ("hash", "x"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    good = {"name": "ada", "hash": "sha256:" + "0" * 64}
    with pytest.raises(ValueError, match=rf"^{field} "):
        ApiKey(**(good | {field: value}))  # type: ignore[arg-type]
