"""The server client against a real HTTP server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import pytest
from misbehaving_server import (
    Answer,
    Misbehaving,
    Server,
    broken_json,
    reset,
    running,
    stall,
    status,
    text,
    tops,
    well,
)

from sim.engines.limits import AdaptiveLimit
from sim.engines.models import ModelConfig, Template
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import (
    BadReply,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineDown,
    EngineError,
    Turn,
)
from sim.errors import UserError

ASK = ChatRequest(
    (Turn("system", "Be brief."), Turn("user", "Say yes.")), max_tokens=7, key=5, affinity="t/0"
)
PICK = ChooseRequest((Turn("user", "Which?"),), ("A", "B", "C"), "t/0")


def engine(server: Server, **settings: Any) -> OpenAIServerEngine:
    """A client of the server, impatient."""
    config = ServerEngineConfig(
        **{
            "urls": (server.url,),
            "timeout_s": 5.0,
            "attempts": 3,
            "first_wait_s": 0.02,
            "patience_s": 5.0,
            **settings,
        }
    )
    return OpenAIServerEngine(ModelConfig("tiny", "tiny", 4096), config)


def chat(server: Server, *script: Answer, request: ChatRequest = ASK, **settings: Any) -> ChatReply:
    """One text from a started engine, under a script that begins after the canary."""
    server.script = []

    async def go() -> ChatReply:
        async with engine(server, **settings) as opened:
            server.script = list(script)
            server.requests.clear()
            return await opened.chat(request)

    return asyncio.run(go())


def choose(server: Server, *script: Answer) -> ChooseReply:
    """One choice from a started engine."""

    async def go() -> ChooseReply:
        async with engine(server) as opened:
            server.script = list(script)
            return await opened.choose(PICK)

    return asyncio.run(go())


def test_the_canary_records_what_it_found(server: Server) -> None:
    async def go() -> None:
        async with engine(server) as opened:
            found = opened.capabilities
            assert found.structured
            assert found.label_logprobs
            assert found.system_role
            assert not found.alternation
            assert found.cached_tokens
            assert found.thinking_switch
            assert not found.seeds

    asyncio.run(go())
    assert all(body["max_tokens"] >= 1 for body in server.requests)


def test_the_canary_notices_a_constraint_that_does_not_bind_and_a_refused_system_role(server: Server) -> None:
    server.script = [well, text("Z"), status(400), status(400)]

    async def go() -> None:
        async with engine(server) as opened:
            assert not opened.capabilities.structured
            assert not opened.capabilities.label_logprobs
            assert not opened.capabilities.system_role
            assert opened.capabilities.alternation
            server.requests.clear()
            await opened.chat(ASK)

    asyncio.run(go())
    assert [turn["role"] for turn in server.requests[0]["messages"]] == ["user"]
    assert server.requests[0]["messages"][0]["content"] == "Be brief.\n\nSay yes."


def test_a_request_sends_every_sampling_parameter_and_a_bound(server: Server) -> None:
    assert chat(server).text == "yes"
    body = server.requests[0]
    assert body["max_tokens"] == 7
    assert (body["temperature"], body["top_p"]) == (0.8, 0.95)
    assert {"top_k", "min_p", "repetition_penalty"} <= body.keys()
    assert "seed" not in body
    chat(server, seeds=True)
    assert server.requests[-1]["seed"] == 5


PASSING = {
    "overload": status(429, Retry_After="0.1"),
    "error": status(500),
    "unavailable": status(503),
    "reset": reset,
    "broken json": broken_json,
    "stall": stall,
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_retried(server: Server, fault: str) -> None:
    patience: dict[str, Any] = {"timeout_s": 0.4} if fault == "stall" else {}
    reply = chat(server, PASSING[fault], PASSING[fault], **patience)
    assert reply.text == "yes"
    assert reply.usage.retries == 2
    assert reply.usage.cached_tokens == 8


@pytest.mark.parametrize(("fault", "words"), [(status(500), "status 500"), (status(429), "status 429")])
def test_retries_are_bounded(server: Server, fault: Answer, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        chat(server, *[fault] * 50)
    assert len(server.requests) == 3


def test_a_stalled_or_absent_server_is_down(server: Server) -> None:
    with pytest.raises(EngineDown, match="no answer"):
        chat(server, *[stall] * 50, timeout_s=0.4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineDown, match=rf"127\.0\.0\.1:{port}"):
        asyncio.run(_enter(engine(server, urls=(f"http://127.0.0.1:{port}/v1",), patience_s=1.0)))


async def _enter(opened: OpenAIServerEngine) -> None:
    async with opened:
        pass


def test_a_wrong_request_is_never_repeated(server: Server) -> None:
    with pytest.raises(EngineError, match="status 400"):
        chat(server, status(400))
    assert len(server.requests) == 1


def test_empty_text_and_a_cut_one_come_back_as_they_are(server: Server) -> None:
    assert chat(server, text(None)).text == ""
    assert chat(server, text("{", finish="length")).finish_reason == "length"


def test_label_probabilities_are_renormalised_in_the_order_of_the_labels(server: Server) -> None:
    found = choose(server, tops({" B": math.log(0.3), "A": math.log(0.1), "the": math.log(0.5)}))
    assert found.probabilities == pytest.approx((0.25, 0.75, 0.0))
    assert sum(choose(server).probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (tops({"A": float("nan")}), "no number"),
        (tops({"yes": -0.1}), "none of the labels"),
        (text("A"), "no log-prob"),
    ],
)
def test_a_choice_that_holds_none_is_a_bad_reply(server: Server, answer: Answer, words: str) -> None:
    with pytest.raises(BadReply, match=words):
        choose(server, answer)


def test_replicas_share_the_load_by_discussion(server: Server) -> None:
    async def go(second: Server) -> None:
        async with engine(server, urls=(server.url, second.url)) as opened:
            server.requests.clear()
            second.requests.clear()
            for _ in range(3):
                await asyncio.gather(
                    *(opened.choose(ChooseRequest(PICK.turns, ("A", "B"), f"t/{i}")) for i in range(12))
                )

    with running() as second:
        asyncio.run(go(second))
        assert len(server.requests) + len(second.requests) == 36
        assert len(server.requests) % 3 == 0
        assert server.requests
        assert second.requests


def test_another_model_than_the_one_served_is_refused(server: Server) -> None:
    other = OpenAIServerEngine(ModelConfig("big", "org/big", 4096), ServerEngineConfig((server.url,)))
    with pytest.raises(UserError, match=r"model\.name is 'big', but the server .* serves tiny"):
        asyncio.run(_enter(other))


def thinking(server: Server) -> OpenAIServerEngine:
    """A client of a model whose thinking is to be switched off."""
    model = ModelConfig("tiny", "tiny", 4096, template=Template(arguments={"enable_thinking": False}))
    return OpenAIServerEngine(model, ServerEngineConfig((server.url,)))


def test_thinking_is_switched_off_with_every_request(server: Server) -> None:
    async def go() -> None:
        async with thinking(server) as opened:
            assert opened.capabilities.thinking_switch
            server.requests.clear()
            await opened.chat(ASK)
            await opened.choose(PICK)

    asyncio.run(go())
    assert [body["chat_template_kwargs"] for body in server.requests] == [{"enable_thinking": False}] * 2


def blind(handler: Misbehaving, body: dict[str, Any]) -> None:
    """A server whose template knows no switch: the prompt is as long with it as without."""
    well(handler, {name: value for name, value in body.items() if name != "chat_template_kwargs"})


def strict(handler: Misbehaving, body: dict[str, Any]) -> None:
    """A server that refuses the argument it does not know."""
    (status(400) if "chat_template_kwargs" in body else well)(handler, body)


@pytest.mark.parametrize("usual", [blind, strict])
def test_a_switch_that_switches_nothing_is_found_out(server: Server, usual: Answer) -> None:
    server.usual = usual

    async def go() -> bool:
        async with engine(server) as opened:
            return opened.capabilities.thinking_switch

    assert not asyncio.run(go())


def test_a_missing_key_names_the_variable_and_no_secret(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UserError, match="SOME_KEY is not set"):
        engine(server, key_variable="SOME_KEY")


def test_the_limit_gives_way_and_recovers() -> None:
    limit = AdaptiveLimit(8)
    limit.overloaded(0)
    assert limit.allowed == 4
    for _ in range(4):
        limit.succeeded()
    assert limit.allowed == 5

    async def crowd() -> int:
        most = 0

        async def one() -> None:
            nonlocal most
            async with limit.slot():
                most = max(most, limit.running)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(40)))
        return most

    assert asyncio.run(crowd()) == 5
    assert limit.running == 0


def test_a_burst_of_refusals_halves_the_limit_once_and_a_later_one_again() -> None:
    async def refused(limit: AdaptiveLimit, count: int) -> int:
        async def one() -> None:
            async with limit.slot() as bursts_before:
                await asyncio.sleep(0.01)
                limit.overloaded(bursts_before)

        await asyncio.gather(*(one() for _ in range(count)))
        return limit.allowed

    assert asyncio.run(refused(AdaptiveLimit(16), 16)) == 8
    assert asyncio.run(refused(AdaptiveLimit(16), 17)) == 4  # the seventeenth left after the first burst


def test_a_burst_of_429_reaches_everybody_in_the_end_at_half_the_rate(server: Server) -> None:
    async def go() -> tuple[int, int]:
        async with engine(server, in_flight=8, attempts=4) as opened:
            server.script = [status(429)] * 8
            replies = await asyncio.gather(*(opened.chat(ASK) for _ in range(8)))
            return sum(reply.usage.retries for reply in replies), opened.limit

    retries, limit = asyncio.run(go())
    assert retries == 8
    assert limit == 5  # halved once, and grown by one after four successes of the eight


def test_who_leaves_while_waiting_takes_no_place_with_him() -> None:
    async def go() -> int:
        limit = AdaptiveLimit(1)
        served = 0

        async def one() -> None:
            nonlocal served
            async with limit.slot():
                await asyncio.sleep(0.001)
                served += 1

        jobs = [asyncio.create_task(one()) for _ in range(20)]
        for at, job in enumerate(jobs):
            if at % 2:
                await asyncio.sleep(0.0012)
                job.cancel()
        await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 5)
        return served + sum(job.cancelled() for job in jobs)

    assert asyncio.run(go()) == 20


def test_the_server_says_when_to_come_back_within_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = chat(server, status(429, Retry_After="0.4"), first_wait_s=0.01)
    assert reply.usage.latency_s >= 0.4
    monkeypatch.setattr("sim.engines.openai_server._LONGEST_WAIT_S", 0.1)
    for asked in ("86400", "Wed, 21 Oct 2026 07:28:00 GMT"):
        assert chat(server, status(503, Retry_After=asked), first_wait_s=0.01).usage.latency_s < 3


def test_a_dead_engine_behind_a_living_server_is_down_and_a_living_one_is_not(server: Server) -> None:
    with pytest.raises(EngineError, match="status 500") as refused:
        chat(server, *[status(500)] * 50)
    assert not isinstance(refused.value, EngineDown)
    server.health = 503
    with pytest.raises(EngineDown, match=r"status 500: .* health check says that its engine is dead"):
        chat(server, *[status(500)] * 50)
    server.health = 404
    with pytest.raises(EngineError, match="status 503") as unknown:
        chat(server, *[status(503)] * 50)
    assert not isinstance(unknown.value, EngineDown)
