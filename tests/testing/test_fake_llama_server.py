"""The fake server's slots, queue and memory, and how it notices that clients leave."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.raw_client import Answer, RawClient, data_of
from tests.support.upstream import upstream_transport
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Raw, Request, Script

CHAT = "/v1/chat/completions"
ENDLESS = Script(tokens=1000, interval=0.1)


def chat(content: str = "hi", **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **members}


async def ask(server: FakeLlamaServer, body: object = None, path: str = CHAT) -> Answer:
    client = RawClient(server.connect())
    answer = await client.ask("GET" if body is None else "POST", path, body)
    await client.close()
    return answer


async def start(server: FakeLlamaServer, **members: Any) -> RawClient:
    client = RawClient(server.connect())
    await client.request("POST", CHAT, chat(**members))
    await wait_all_tasks_blocked()
    return client


async def metric(server: FakeLlamaServer, name: str) -> float:
    lines = (await ask(server, path="/metrics")).body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"llamacpp:{name} "))


async def test_requests_beyond_the_slots_wait_their_turn_in_order() -> None:
    async with FakeLlamaServer(total_slots=2, interval=1, words=3) as server, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, server, chat())
            await wait_all_tasks_blocked()
        assert (server.busy_slots, server.deferred, server.in_flight) == ([0, 1], 3, 5)
        assert (await metric(server, "requests_processing"), await metric(server, "requests_deferred")) == (
            2,
            3,
        )
    assert [request.launched for request in server.generations] == [0, 0, 3, 3, 6]
    assert [request.released for request in server.generations] == [3, 3, 6, 6, 9]
    assert (server.total, server.max_in_flight, server.in_flight) == (5, 5, 0)


async def test_tokens_come_one_by_one_after_the_prefill() -> None:
    async with FakeLlamaServer() as server:
        server.script(Script(tokens=["a", "b", "c"], prefill=2, interval=0.5, pauses={2: 10}))
        client = RawClient(server.connect())
        await client.request("POST", CHAT, chat(stream=True))
        answer = await client.read_head()
        assert trio.current_time() == 0  # the status goes out when the slot is given
        times = []
        while await client.read_more(answer):
            times.append(trio.current_time())
    assert times == [2.5, 3, 13.5, 13.5, 13.5]  # three tokens, the finish and [DONE]


async def test_the_text_tells_which_request_it_answers() -> None:
    async with FakeLlamaServer() as server:
        first = await ask(server, chat(max_tokens=3))
        second = await ask(server, chat(max_tokens=2, n=2))
    assert first.json["choices"][0]["message"]["content"] == "r1w0 r1w1 r1w2"
    contents = [choice["message"]["content"] for choice in second.json["choices"]]
    assert contents == ["r2w0 r2w1", "r2c1w0 r2c1w1"]


async def test_several_choices_get_their_slots_together() -> None:
    async with FakeLlamaServer(total_slots=2, interval=1, words=2) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, chat())
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, server, chat(n=2))
        await wait_all_tasks_blocked()
        assert (len(server.busy_slots), server.deferred) == (1, 1)  # one idle slot is not enough
    assert server.generations[1].launched == 2
    assert sorted(server.generations[1].slots) == [0, 1]


async def test_each_prompt_of_an_array_takes_a_slot_of_its_own() -> None:
    async with FakeLlamaServer(total_slots=2, interval=1) as server:
        client = RawClient(server.connect())
        await client.request("POST", "/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 1})
        await trio.sleep(1.5)
        assert (len(server.busy_slots), server.in_flight) == (1, 1)  # the third waited for a slot
        answer = await client.read_answer()
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]
        (request,) = server.generations
        assert (request.launched, request.released, server.max_in_flight) == (0, 2, 1)


async def test_a_pinned_request_waits_for_its_slot_and_spoils_who_runs_there() -> None:
    async with FakeLlamaServer(total_slots=2, interval=1, words=4) as server, trio.open_nursery() as nursery:
        answers = {}

        async def run(name: str, **members: Any) -> None:
            answers[name] = await ask(server, chat(**members))

        nursery.start_soon(partial(run, "victim", id_slot=0))
        await trio.sleep(1.5)
        nursery.start_soon(partial(run, "pinned", id_slot=2))  # 2 % 2 is slot 0, although slot 1 is idle
        await wait_all_tasks_blocked()
        assert (server.busy_slots, server.deferred) == ([0], 1)
    victim, pinned = server.generations
    assert (victim.slots, pinned.slots, pinned.launched) == ([0], [0], 4)
    assert (victim.corrupted, pinned.corrupted) == (True, False)
    spoilt = answers["victim"].json["choices"][0]["message"]["content"]
    assert spoilt.startswith("r1w0") and not spoilt.endswith("r1w3")  # noqa: PT018


async def test_a_deferred_request_that_cannot_run_goes_behind_the_others() -> None:
    async with FakeLlamaServer(total_slots=2, interval=1) as server, trio.open_nursery() as nursery:
        for pin, tokens in ((0, 2), (1, 8), (1, 1), (None, 1)):
            nursery.start_soon(ask, server, chat(id_slot=pin, max_tokens=tokens))
            await wait_all_tasks_blocked()
    # slot 0 came back at 2: the pinned one was looked at and nobody else, so the slot stood idle until 8
    assert [request.launched for request in server.generations] == [0, 0, 8, 9]


async def test_a_slot_remembers_its_conversation() -> None:
    async with FakeLlamaServer(total_slots=2) as server:
        turns = chat("one two three four five", max_tokens=2)
        first = (await ask(server, turns)).json
        await ask(server, chat("something else entirely " * 20))
        turns["messages"] += [first["choices"][0]["message"], {"role": "user", "content": "six"}]
        again = (await ask(server, turns)).json
    assert server.generations[0].slots == server.generations[2].slots
    assert first["timings"]["cache_n"] == 0
    assert again["timings"]["cache_n"] > first["usage"]["prompt_tokens"]  # the answer is remembered too
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert (cached, again["timings"]["prompt_n"]) == (
        again["timings"]["cache_n"],
        again["usage"]["prompt_tokens"] - cached,
    )


async def test_what_a_slot_remembers_can_be_saved_and_restored_elsewhere() -> None:
    async with FakeLlamaServer(total_slots=2, slot_save=True) as server:
        await ask(server, chat("a long conversation", id_slot=0))
        saved = (await ask(server, {"filename": "a.bin"}, "/slots/0?action=save")).json
        assert saved["n_saved"] == len(server.saved["a.bin"]) > 10
        erased = (await ask(server, {}, "/slots/0?action=erase")).json
        assert erased == {"id_slot": 0, "n_erased": saved["n_saved"]}
        server.restart()
        restored = (await ask(server, {"filename": "a.bin"}, "/slots/1?action=restore")).json
        assert restored["n_restored"] == saved["n_saved"]
        warm = (await ask(server, chat("a long conversation", id_slot=1))).json
        assert warm["timings"]["prompt_n"] == 1
        missing = await ask(server, {"filename": "b.bin"}, "/slots/1?action=restore")
        assert (missing.status, missing.json["error"]["message"][:22]) == (400, "Unable to restore slot")


async def test_saving_a_busy_slot_waits_for_its_run() -> None:
    async with FakeLlamaServer(total_slots=1, slot_save=True, interval=1, words=3) as server:
        await start(server)
        await ask(server, {"filename": "a.bin"}, "/slots/0?action=save")
        assert trio.current_time() == 3


async def test_too_many_tokens_together_end_everything_in_a_unified_cache() -> None:
    async with FakeLlamaServer(total_slots=2, n_ctx=60, kv_unified=True, interval=1) as server:
        server.script(Script(tokens=50), Script(tokens=50), Script(tokens=2))
        stream, plain, deferred = [await start(server, stream=one) for one in (True, False, False)]
        cut, refused, served = [await client.read_answer() for client in (stream, plain, deferred)]
    error = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    assert (refused.status, refused.json) == (500, {"error": error})
    assert (cut.status, cut.complete, data_of(cut.body)[-1]) == (200, True, {"error": error})
    assert not any(event["choices"][0]["finish_reason"] for event in data_of(cut.body)[:-1])
    died, died_too, survived = server.generations
    assert died.released == died_too.released == survived.launched
    assert served.json["usage"]["completion_tokens"] == 2


async def test_what_idle_slots_remember_makes_room_in_a_unified_cache() -> None:
    async with FakeLlamaServer(total_slots=2, n_ctx=40, kv_unified=True, words=12) as server:
        await ask(server, chat("one two three four five", id_slot=0))
        slots = (await ask(server, path="/slots")).json
        assert slots[0]["n_prompt_tokens"] > 20
        assert (await ask(server, chat("something else", id_slot=1))).status == 200
        slots = (await ask(server, path="/slots")).json
        assert (slots[0]["n_prompt_tokens"], slots[1]["n_prompt_tokens"] > 15) == (0, True)


async def test_a_prompt_that_fits_in_no_slot_is_refused_once_it_has_one() -> None:
    async with FakeLlamaServer(total_slots=1, n_ctx=50, interval=1, words=3) as server:
        await start(server)
        answer = await ask(server, chat("word " * 100, stream=True))
        assert trio.current_time() == 3
    error = answer.json["error"]
    assert (answer.status, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"] > 100, error["n_ctx"]) == (True, 50)


async def test_a_generation_stops_where_its_slot_is_full() -> None:
    async with FakeLlamaServer(n_ctx=20, words=100) as server:
        answer = (await ask(server, chat())).json
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 20


@pytest.mark.parametrize("how", ["fin", "half close", "reset"])
async def test_a_stream_s_slot_comes_back_at_the_next_token_after_its_client_left(how: str) -> None:
    async with FakeLlamaServer(default=ENDLESS) as server:
        client = await start(server, stream=True)
        await trio.sleep(1.25)
        if how == "fin":
            await client.close()
        elif how == "half close":
            await client.half_close()
        else:
            client.reset()
        await trio.sleep(1)
        (request,) = server.requests
        assert request.connection.peer_closed == 1.25
        assert request.connection.peer_close == ("reset" if how == "reset" else "fin")
        assert request.released == pytest.approx(1.3)
        assert (server.in_flight, server.open_connections) == (0, 0)


async def test_another_client_s_leaving_is_noticed_after_a_quiet_second() -> None:
    async with FakeLlamaServer(default=ENDLESS) as server:
        client = await start(server)
        await trio.sleep(5.5)
        await client.close()
        await trio.sleep(2)
        assert server.requests[0].released == 6  # no token of a plain request is a result for its client


async def test_another_client_s_leaving_is_not_noticed_while_somebody_gets_results() -> None:
    async with FakeLlamaServer(default=ENDLESS) as server:
        client = await start(server)
        stream = await start(server, stream=True)
        await client.close()
        await trio.sleep(20.05)
        assert server.in_flight == 2
        await stream.close()
        await trio.sleep(3)
        assert [request.released for request in server.requests] == pytest.approx([21.1, 20.1])


async def test_polling_the_slots_blinds_the_server_and_polling_health_does_not() -> None:
    async with FakeLlamaServer(default=Script(interval=1000)) as server:
        client = await start(server)
        await client.close()
        for _ in range(10):
            await ask(server, path="/slots")
            await trio.sleep(0.4)
        assert server.in_flight == 1
        for _ in range(10):
            await ask(server, path="/health")
            await trio.sleep(0.4)
        assert server.requests[0].released == pytest.approx(4.6)  # a second after the last look at the slots


async def test_a_prefill_is_finished_for_a_client_that_left() -> None:
    async with FakeLlamaServer(default=Script(prefill=18)) as server:
        client = await start(server, stream=True)
        await trio.sleep(1)
        await client.close()
        await trio.sleep(20)
        assert server.requests[0].released == pytest.approx(18)


async def test_a_deferred_request_leaves_the_queue_when_its_client_left() -> None:
    async with FakeLlamaServer(total_slots=1, default=ENDLESS) as server:
        await start(server)
        waiting = await start(server)
        await trio.sleep(5.5)
        waiting.reset()
        await trio.sleep(2)
        assert server.deferred == 0
        assert (server.requests[1].launched, server.requests[1].released) == (None, 6)


async def test_a_resumable_request_decodes_to_its_end_without_its_client() -> None:
    async with FakeLlamaServer(interval=1) as server:
        client = RawClient(server.connect())
        await client.request("POST", CHAT, chat(stream=True), [("X-Conversation-Id", "abc")])
        await wait_all_tasks_blocked()
        await client.close()
        await trio.sleep(20)
        assert server.requests[0].released == 8


async def test_a_stream_gets_empty_comments_while_it_has_no_data() -> None:
    async with FakeLlamaServer() as server:
        server.script(Script(tokens=["a"], prefill=70))
        answer = await ask(server, chat(stream=True))
    assert answer.chunks[:2] == [b":\n\n", b":\n\n"]
    assert answer.chunks[2].startswith(b"data: ")


async def test_the_hook_answers_what_it_wants_and_may_take_its_time() -> None:
    async def reply(request: Request) -> Raw | None:
        if request.path == "/props":
            await trio.sleep(10)
            return Raw.answer(404, {"error": "gone"})
        return None

    async with FakeLlamaServer(reply=reply) as server:
        assert (await ask(server, path="/health")).json == {"status": "ok"}
        answer = await ask(server, path="/props")
        assert (answer.status, answer.json, trio.current_time()) == (404, {"error": "gone"}, 10)
        patient = RawClient(server.connect())
        await patient.request("GET", "/props")
        await trio.sleep(1)
        await patient.close()
        await wait_all_tasks_blocked()
        assert server.open_connections == 0


async def test_a_hook_s_error_ends_the_test() -> None:
    async def reply(request: Request) -> Raw | None:
        raise AssertionError(request.path)

    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with FakeLlamaServer(reply=reply) as server:
            await ask(server, path="/health")


async def test_a_crash_resets_every_connection_and_a_restart_begins_anew() -> None:
    async with FakeLlamaServer(total_slots=4, default=ENDLESS) as server:
        running = [await start(server, stream=True) for _ in range(2)]
        idle = RawClient(server.connect())
        await idle.ask("GET", "/health")
        server.crash()
        for client in [*running, idle]:
            with pytest.raises(trio.BrokenResourceError):
                await client.read_to_end()
        assert (server.in_flight, server.busy_slots, server.open_connections) == (0, [], 0)
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        server.restart(total_slots=1)
        assert (await ask(server, path="/props")).json["total_slots"] == 1
        with pytest.raises(TypeError, match="no such option: slots"):
            server.restart(slots=2)


async def test_a_crash_also_ends_what_the_hook_still_thinks_about() -> None:
    async def reply(_: Request) -> None:
        await trio.sleep_forever()

    async with FakeLlamaServer(reply=reply) as server:
        await start(server)
        assert server.in_flight == 1
        server.crash()
        assert server.in_flight == 0


async def test_leaving_the_server_ends_all_that_runs_and_keeps_the_body_s_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with FakeLlamaServer(default=Script(prefill=math.inf)) as server:
            client = await start(server)
            raise ZeroDivisionError
    assert (server.in_flight, server.open_connections) == (0, 0)
    with pytest.raises(trio.BrokenResourceError):
        await client.read_to_end()


async def test_the_record_of_a_request_tells_what_came_and_when() -> None:
    async with FakeLlamaServer(interval=1, words=2) as server:
        client = RawClient(server.connect())
        await trio.sleep(3)
        body = b'{"messages": [],  "stream": true}'
        await client.send(
            b"POST /v1/chat/completions?beta=true HTTP/1.1\r\nhOST: a\r\nContent-Length: 33\r\n\r\n"
        )
        await trio.sleep(1)
        await client.send(body)
        await client.read_answer()
        (request,) = server.requests
    assert (request.method, request.path, request.query) == ("POST", CHAT, "beta=true")
    assert request.head.endswith(b"hOST: a\r\nContent-Length: 33\r\n\r\n")
    assert (request.header("HOST"), request.body) == ("a", body)
    assert (request.arrived, request.first_byte, request.last_byte, request.released) == (4, 4, 6, 6)
    assert (request.status, request.number, request.connection.opened) == (200, 1, 0)


async def test_a_real_http_client_keeps_its_connection_and_frees_the_slot_when_it_is_cancelled() -> None:
    async with (
        FakeLlamaServer(interval=1) as server,
        httpx2.AsyncClient(
            transport=upstream_transport(server), base_url="http://llama", timeout=None
        ) as client,
    ):
        for _ in range(2):
            assert (await client.get("/health")).json() == {"status": "ok"}
        assert len(server.connections) == 1
        with trio.move_on_after(2.5):
            async with client.stream("POST", CHAT, json=chat(stream=True)) as response:
                async for _ in response.aiter_raw():
                    pass
        await trio.sleep(1)
        assert (server.in_flight, server.requests[-1].released) == (0, 3)
        await trio.sleep(10)  # the server closed the idle connection
        assert (await client.get("/health")).json() == {"status": "ok"}
