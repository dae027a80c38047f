from __future__ import annotations

import inspect
import json

import pytest

from trio_admission_web import problems
from trio_admission_web.problems import Problem, ProblemError

TABLE = [
    # cause, status, type, code
    (problems.queue_full(waiting=64, slots=4, retry_after=7), 429, "rate_limit_error", "queue_full"),
    (problems.flow_limit(waiting=8, limit=8, retry_after=7), 429, "rate_limit_error", "flow_limit"),
    (problems.request_limit(limit=8, retry_after=7), 429, "rate_limit_error", "flow_limit"),
    (problems.queue_timeout(waiting=64, slots=4, retry_after=7), 503, "api_error", "queue_timeout"),
    (problems.draining(retry_after=7), 503, "api_error", "draining"),
    (problems.backend_unavailable(retry_after=7), 503, "api_error", "backend_unavailable"),
    (problems.cancelled(), 499, "api_error", "cancelled"),
    (problems.loop_detected(), 508, "api_error", "loop_detected"),
    (problems.bad_gateway(), 502, "api_error", "bad_gateway"),
    (problems.upstream_timeout(), 504, "api_error", "upstream_timeout"),
    (
        problems.invalid_request("'n' must be a whole number.", "n"),
        400,
        "invalid_request_error",
        "invalid_request",
    ),
    (problems.malformed(400), 400, "invalid_request_error", "invalid_request"),
    (problems.malformed(505), 505, "invalid_request_error", "invalid_request"),
    (problems.invalid_api_key(), 401, "authentication_error", "invalid_api_key"),
    (problems.permission_denied(), 403, "permission_error", "permission_denied"),
    (problems.local_only(), 403, "permission_error", "permission_denied"),
    (problems.model_not_found("llama-7"), 404, "not_found_error", "model_not_found"),
    (problems.not_found(), 404, "not_found_error", "not_found"),
    (problems.method_not_allowed(), 405, "invalid_request_error", "method_not_allowed"),
    (problems.request_timeout(), 408, "invalid_request_error", "request_timeout"),
    (problems.request_too_large(1000), 413, "request_too_large", "request_too_large"),
    (problems.internal_error(), 500, "api_error", "internal_error"),
]


@pytest.mark.parametrize(("problem", "status", "kind", "code"), TABLE, ids=[row[3] for row in TABLE])
def test_each_cause_has_its_status_type_and_code(problem: Problem, status: int, kind: str, code: str) -> None:
    assert (problem.status, problem.type, problem.code) == (status, kind, code)
    assert problem.message.endswith(".")


def test_the_table_above_has_every_cause() -> None:
    made = {
        name
        for name, value in vars(problems).items()
        if inspect.isfunction(value) and value.__module__ == problems.__name__
    }
    of_others_codes = {
        *("upstream_error", "request_limit", "local_only", "unreachable", "key_refused", "malformed"),
    }
    assert made - of_others_codes == {row[3] for row in TABLE} == problems.CODES


def test_all_that_may_be_tried_again_says_when() -> None:
    for problem, status, *_ in TABLE:
        assert (problem.retry_after == 7) == (status in {429, 503}), problem


def test_the_openai_envelope_has_the_counts() -> None:
    assert problems.queue_full(waiting=64, slots=4, retry_after=7).openai() == {
        "error": {
            "waiting": 64,
            "slots": 4,
            "message": "All 4 slots are busy and the line is full (64 waiting). Try again later.",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
    }


def test_the_anthropic_envelope_has_a_type_at_the_top() -> None:
    assert problems.flow_limit(waiting=8, limit=8, retry_after=7).anthropic() == {
        "type": "error",
        "error": {
            "waiting": 8,
            "limit": 8,
            "type": "rate_limit_error",
            "message": "You have 8 requests waiting and may have 8. Try again later.",
            "code": "flow_limit",
        },
    }


def test_an_error_is_its_sentence() -> None:
    assert str(ProblemError(problems.cancelled())) == "The request was cancelled."


def test_a_long_model_name_is_cut() -> None:
    assert len(problems.model_not_found("m" * 10_000).message) < 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {
                "error": {
                    "code": 400,
                    "message": "too long",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 6010,
                    "n_ctx": 2048,
                }
            },
            Problem(
                400, "exceed_context_size_error", "too long", facts={"n_prompt_tokens": 6010, "n_ctx": 2048}
            ),
        ),
        (
            {"code": 503, "message": "Loading", "type": "unavailable_error"},
            Problem(503, "unavailable_error", "Loading"),
        ),
        ({"error": {"message": "no", "code": "odd", "param": "n"}}, Problem(500, "odd", "no", param="n")),
        ({"error": {"message": "no", "code": 7}}, Problem(500, "upstream_error", "no")),
        ({"error": "busy"}, Problem(500, "upstream_error", "busy")),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            Problem(500, "overloaded_error", "x"),
        ),
    ],
)
def test_an_upstream_error_keeps_its_words_and_figures(body: object, expected: Problem) -> None:
    assert problems.upstream_error(500, json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b"null", b'{"error":{}}', b"[" * 100_000, b'{"error":7}']
)
def test_an_upstream_error_that_says_nothing_is_a_bad_gateway(body: bytes) -> None:
    assert problems.upstream_error(500, body) == problems.bad_gateway()
