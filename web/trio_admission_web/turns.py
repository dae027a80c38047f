"""Between two rounds of a conversation: its lease is parked while people decide and tools run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio_admission import Cost, Lease, Parked

    from .calls import Caller
    from .wire.exchange import Conversation


@final
class Turns:
    """Takes the tools' turns of one conversation.

    Args:
        conversation: The request and its answer.
        caller: Runs what the model calls.
    """

    def __init__(self, conversation: Conversation, caller: Caller) -> None:
        self._conversation = conversation
        self._caller = caller
        self._parked: Parked | None = None

    @property
    def due(self) -> bool:
        """Whether the model has called tools and waits for their results."""
        return bool(self._conversation.calls)

    @property
    def parked(self) -> Parked | None:
        """The park, while there is one."""
        return self._parked

    async def take(
        self, lease: Lease, send: Callable[[bytes], None], weigh: Callable[[], Awaitable[Cost]]
    ) -> None:
        """Run what the model has called, and begin the next round.

        The slot is given on before anybody is asked, and held again when this returns; so it blocks for as
        long as people and tools take, and then until there is a slot. When the park budget refuses, the slot
        is kept for all that time.

        Args:
            lease: Held.
            send: Takes events for the client.
            weigh: Tells what the conversation costs, which has grown; what it raises ends the lease.
        """

        def tell(facts: dict[str, Any]) -> None:
            if self._conversation.stream:
                send(self._conversation.notice(facts))

        done = trio.Event()

        async def announce(parked: Parked) -> None:
            await done.wait()
            if parked.position:  # else it has its slot already
                wait = parked.estimated_wait
                tell({
                    "type": "returning",
                    "position": parked.position,
                    "estimated_wait": None if wait is None else round(wait, 1),
                })

        try:
            async with lease.parked() as parked:
                self._parked = parked
                parked.nursery.start_soon(announce, parked)
                self._conversation.go_on(await self._caller.run(self._conversation.calls, tell))
                parked.cost = await weigh()
                done.set()
        finally:
            self._parked = None
        tell({"type": "resumed"})
