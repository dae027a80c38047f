"""The book of approvals: who may decide what, when, and how often."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio

from trio_admission_web.approvals import Approvals, Decision, Question
from trio_admission_web.problems import ProblemError
from trio_admission_web.tools import tool

if TYPE_CHECKING:
    from trio.testing import MockClock

ALLOW = {"decision": "allow"}
DENY = {"decision": "deny"}


@tool
async def move(x: int) -> str:
    """Move."""
    return f"moved by {x}"


async def answer(book: Approvals, question: Question, after: float, **body: Any) -> None:
    await trio.sleep(after)
    book.decide(question.id, body, flow=question.flow)


async def test_a_question_waits_for_its_answer_and_not_longer(autojump_clock: MockClock) -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r", flow="alice") as question:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer(book, question, 600, decision="allow", reason="fine"))
            assert await question.decision() == Decision(allowed=True, by="alice", reason="fine")
            assert trio.current_time() == 600
    assert book.open(None) == []


async def test_a_question_that_nobody_answers_is_denied_when_it_expires(autojump_clock: MockClock) -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r") as question:
        decision = await question.decision()
        assert (trio.current_time(), decision.allowed, decision.word) == (3600, False, "expired")
        assert refused(book, question.id, ALLOW) == 404


async def test_the_first_decision_wins() -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r") as question:
        book.decide(question.id, DENY)
        assert refused(book, question.id, ALLOW) == 404
        assert not (await question.decision()).allowed


async def test_a_question_is_gone_with_the_one_who_asked() -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r") as question:
        assert book.open(None) == [question]
    assert book.open(None) == []
    assert refused(book, question.id, ALLOW) == 404


async def test_a_question_is_shown_to_its_flow_and_decided_by_it_alone() -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r", flow="alice") as question:
        assert (book.open("bob"), book.open("alice"), book.open(None)) == ([], [question], [question])
        assert refused(book, question.id, ALLOW, flow="bob") == 403
        assert refused(book, question.id, ALLOW, flow="") == 403
        assert book.open("alice") == [question]


async def test_ids_cannot_be_guessed() -> None:
    book = Approvals()
    with book.asked(move, {}, request="r") as one, book.asked(move, {}, request="r") as other:
        assert one.id != other.id
        assert len(one.id) >= 24


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "decision"),
        ({"decision": "Allow"}, "decision"),
        ({"decision": ["allow"]}, "decision"),
        (ALLOW | {"reason": 3}, "reason"),
        (ALLOW | {"reason": "x" * 2001}, "reason"),
        (ALLOW | {"arguments": []}, "arguments"),
        (ALLOW | {"arguments": {"x": "1"}}, "arguments"),
        (DENY | {"arguments": {"x": 1}}, "arguments"),
        (ALLOW | {"argument": {"x": 1}}, "argument"),
    ],
)
async def test_a_malformed_decision_decides_nothing(body: dict[str, Any], param: str) -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r") as question:
        with pytest.raises(ProblemError) as caught:
            book.decide(question.id, body)
        assert (caught.value.problem.status, caught.value.problem.param) == (400, param)
        assert book.open(None) == [question]


async def test_other_arguments_come_with_the_decision() -> None:
    book = Approvals()
    with book.asked(move, {"x": 1}, request="r") as question:
        book.decide(question.id, ALLOW | {"arguments": {"x": 2}})
        assert (await question.decision()).arguments == {"x": 2}


async def test_every_decision_leaves_a_line_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    book = Approvals(ttl=5)
    with book.asked(move, {"x": 1}, request="r", flow="a") as one:
        book.decide(one.id, ALLOW | {"arguments": {"x": 2}}, flow="a")
    with book.asked(move, {"x": 1}, request="q", flow="a") as other:
        await other.decision()
    assert caplog.messages == [
        f"approval {one.id}: request r, flow 'a', tool move: allow by 'a' with other arguments after 0.000 s",
        f"approval {other.id}: request q, flow 'a', tool move: expired by None after 5.000 s",
    ]


def refused(book: Approvals, name: str, body: dict[str, Any], flow: str = "") -> int:
    with pytest.raises(ProblemError) as caught:
        book.decide(name, body, flow=flow)
    return caught.value.problem.status
