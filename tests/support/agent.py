"""An agent that talks, calls a tool of its own, and comes back with the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tests.support.engine import CHAT

if TYPE_CHECKING:
    import httpx2

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up one word in the dictionary",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 12}},
            "required": ["word"],
        },
    },
}
_FORCE = {
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"force_tool_call": True},
}


@dataclass
class Turn:
    """What one turn has cost."""

    cached: int
    prompt: int
    generated: int
    seconds: float
    """From the request to the beginning of the answer."""

    @property
    def context(self) -> int:
        """Tokens that the server has of the conversation afterwards."""
        return self.cached + self.prompt + self.generated


@dataclass
class Agent:
    """One conversation.

    ``client`` talks to a server or to a gateway; ``members`` are of each request.
    """

    client: httpx2.AsyncClient
    messages: list[dict[str, Any]]
    members: dict[str, Any] = field(default_factory=dict)
    ticket: str | None = None
    text: str = ""

    @classmethod
    def named(
        cls, client: httpx2.AsyncClient, name: str, *, words: int, shared: int = 0, **members: Any
    ) -> Agent:
        """An agent that begins with as many words as all others do, and goes on with some of its own."""
        system = " ".join(["You", "are", "helpful", "and", "calm"] * (shared // 5)) or "Be brief."
        own = " ".join(f"{name}{number}" for number in range(words // 3))  # three tokens each, or so
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{name} asks: {own}"}]
        return cls(client, messages, members)

    async def say(self, text: str | None = None) -> Turn:
        """Say something, or what there is to say, and hear the answer."""
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        return await self._ask({})

    async def call(self) -> Turn:
        """Let the model call the agent's tool."""
        return await self._ask({"tools": [TOOL], "max_tokens": 40, **_FORCE})

    async def bring(self, result: str, *, again: bool = False) -> Turn:
        """Come back with the tool's result; ``again``: for the next call."""
        [called] = self.messages[-1]["tool_calls"]
        self.messages.append({"role": "tool", "tool_call_id": called["id"], "content": result})
        return await (self.call() if again else self._ask({"tools": [TOOL]}))

    async def _ask(self, members: dict[str, Any]) -> Turn:
        body = {"messages": self.messages, "temperature": 0, "max_tokens": 4, **self.members, **members}
        headers = {} if self.ticket is None else {"admission-resume": self.ticket}
        begun = trio.current_time()
        answer = (await self.client.post(CHAT, json=body, headers=headers)).raise_for_status()
        seconds = trio.current_time() - begun
        self.ticket = answer.headers.get("admission-resume")
        message = answer.json()["choices"][0]["message"]
        self.messages.append({name: message[name] for name in message if name != "reasoning_content"})
        self.text = message.get("content") or ""
        timings = answer.json()["timings"]
        seconds -= timings["predicted_ms"] / 1000
        return Turn(timings["cache_n"], timings["prompt_n"], timings["predicted_n"], seconds)
