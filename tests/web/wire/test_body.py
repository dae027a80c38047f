from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings, strategies as st

from trio_admission_web.problems import Problem, ProblemError
from trio_admission_web.wire import body
from trio_admission_web.wire.body import MAX_DEPTH, MAX_VALUES, read_object

if TYPE_CHECKING:
    from collections.abc import Callable

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def attempt(call: Callable[[], object]) -> object:
    try:
        return call()
    except ProblemError as refused:
        return refused.problem


def refusal(call: Callable[[], object]) -> tuple[str, str | None]:
    with pytest.raises(ProblemError) as caught:
        call()
    problem = caught.value.problem
    assert (problem.status, problem.code) == (400, "invalid_request")
    return problem.message, problem.param


@settings(deadline=None)
@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"\xef\xbb\xbf{}")
@example('{"a":1}'.encode("utf-16"))
@example(b"[" * 200_000)
@example(b'{"a":' * 200_000)
@example(b'{"a":' + b"9" * 10_000 + b"}")
@example(b'{"a":1e999}')
@example(b'{"a":"\\ud800"}')
def test_any_bytes_are_an_object_or_an_invalid_request(raw: bytes) -> None:
    found = attempt(lambda: read_object(raw))
    if isinstance(found, Problem):
        assert found.code == "invalid_request"
    else:
        assert found == json.loads(raw)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values))
def test_every_json_object_is_read(value: dict[str, Any]) -> None:
    assert read_object(json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")) == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "The body is not JSON: Expecting value at character 0."),
        (b'{"a":1} x', "The body is not JSON: Extra data at character 8."),
        (b"[1]", "The body is not a JSON object."),
        (b'"\xff"', "The body is not UTF-8."),
        (b'{"a":NaN}', "The body is not JSON: NaN is not a number."),
        (b'{"a":[{"b":-Infinity}]}', "The body is not JSON: -Infinity is not a number."),
        (b'{"a":' + b"9" * 10_000 + b"}", "The body has a number that is too long."),
    ],
)
def test_a_body_that_is_no_json_object_is_told_why(raw: bytes, message: str) -> None:
    assert refusal(lambda: read_object(raw)) == (message, None)


def test_a_name_that_stands_twice_is_refused_wherever_it_stands() -> None:
    message = "'stream' stands twice in one object."
    assert refusal(lambda: read_object(b'{"stream":true,"n":1,"stream":false}')) == (message, "stream")
    assert refusal(lambda: read_object(b'{"a":[{"stream":1,"str\\u0065am":2}]}')) == (message, "stream")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_has_a_limit(opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + opening * (levels - 2) + b"[]" + closing * (levels - 2) + b"}"

    read_object(nested(MAX_DEPTH))
    message = "The body is nested more than 128 levels deep."
    assert refusal(lambda: read_object(nested(MAX_DEPTH + 1))) == (message, None)
    assert refusal(lambda: read_object(nested(100_000))) == (message, None)


@pytest.mark.parametrize("value", [b"1", b"[]", b"[[[]]]", b'{"a":[]}', b'{"a":1,"b":1}'])
def test_the_number_of_values_has_a_limit_and_no_more_are_read(value: bytes) -> None:
    each = sum(value.count(byte) for byte in b",[{") + 1  # the comma behind it
    most = (MAX_VALUES - 2) // each
    values = b",".join([value] * most)
    assert len(read_object(b'{"a":[' + values + b"]}")["a"]) == most
    message = "The body has more than 1,000,000 values (commas and opening brackets, those in texts too)."
    assert refusal(lambda: read_object(b'{"a":[' + values + b",[],[] this is no JSON")) == (message, None)


@settings(deadline=None)
@given(json_values)
def test_a_field_of_any_kind_is_read_or_refused_by_name(value: object) -> None:
    fields = {"it": value}
    for reader in (body.read_text, body.read_flag, body.read_integer, body.read_count, body.read_list):
        found = attempt(partial(reader, fields, "it"))
        if isinstance(found, Problem):
            assert (found.code, found.param) == ("invalid_request", "it")


def test_what_clients_leave_out_or_set_to_null_is_the_default() -> None:
    for fields in ({}, {"it": None}):
        assert body.read_text(fields, "it") is None
        assert body.read_flag(fields, "it") is False
        assert body.read_integer(fields, "it") is None
        assert body.read_count(fields, "it") == 1
        assert body.read_limit(fields, "it") is None


@pytest.mark.parametrize("value", ["yes", 1, 0, [], {}])
def test_a_flag_is_true_or_false(value: object) -> None:
    assert refusal(lambda: body.read_flag({"stream": value}, "stream")) == (
        "'stream' must be true or false.",
        "stream",
    )


@pytest.mark.parametrize(("value", "expected"), [(3, 3), (3.0, 3), (2.7, 2), (-1, -1)])
def test_a_fraction_is_dropped_as_the_server_drops_it(value: float, expected: int) -> None:
    assert body.read_integer({"n": value}, "n") == expected


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), 2**31])
def test_a_number_that_no_server_takes_is_refused(value: float) -> None:
    assert refusal(lambda: body.read_integer({"n": value}, "n")) == ("'n' is too large.", "n")


@pytest.mark.parametrize("value", [True, "2", [2]])
def test_a_number_is_a_number(value: object) -> None:
    assert refusal(lambda: body.read_integer({"n": value}, "n")) == ("'n' must be a whole number.", "n")


def test_a_count_is_at_least_one() -> None:
    assert refusal(lambda: body.read_count({"n": 0}, "n")) == ("'n' must be at least 1.", "n")


def test_text_that_has_no_utf8_is_refused() -> None:
    assert refusal(lambda: body.read_text({"model": "\ud800"}, "model")) == ("'model' must be text.", "model")


def test_a_list_must_be_there() -> None:
    assert refusal(lambda: body.read_list({}, "messages")) == ("'messages' is missing.", "messages")
    assert refusal(lambda: body.read_list({"messages": "hi"}, "messages")) == (
        "'messages' must be a list.",
        "messages",
    )


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "n_predict": 9, "max_completion_tokens": None}, 9),
        ({"max_tokens": 5, "n_predict": -1}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_the_largest_spelling_of_the_output_limit_counts(fields: dict[str, Any], limit: int | None) -> None:
    assert body.read_limit(fields, "max_tokens", "max_completion_tokens", "n_predict") == limit


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("text", 1),
        ([1, 2, 3], 1),
        ([1, "text", 2], 1),
        (["a", "b"], 2),
        ([[1, 2], [3]], 2),
        ([[1, "a"], "b", {"prompt_string": "c"}], 3),
        ([], 1),
        (None, 1),
    ],
)
def test_inputs_are_counted_as_the_server_counts_them(value: object, count: int) -> None:
    assert body.count_inputs(value) == count


@pytest.mark.parametrize(
    ("fields", "choices"), [({}, 1), ({"n": 3}, 3), ({"n": 3, "n_cmpl": None}, 3), ({"n": 3, "n_cmpl": 2}, 2)]
)
def test_the_servers_own_name_for_n_wins(fields: dict[str, Any], choices: int) -> None:
    assert body.read_choices(fields) == choices
