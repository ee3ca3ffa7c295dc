"""An ACP agent made with the PyPI package `agent-client-protocol`: its echo example, with prompts that take time.

A prompt's text is `wait SECONDS`, `count NUMBERS` or anything else, which is answered at once. `session/cancel` reaches the agent by
the method `cancel` of the SDK; `$/cancel_request` has none.
"""

import asyncio
from typing import Any
from uuid import uuid4

from acp import Agent, InitializeResponse, NewSessionResponse, PromptResponse, run_agent, text_block, update_agent_message
from acp.interfaces import Client


class ScoreboardAgent(Agent):
    _conn: Client

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: Client) -> None:
        self._conn = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **kwargs: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id=uuid4().hex)

    async def prompt(self, prompt: list[Any], session_id: str, **kwargs: Any) -> PromptResponse:
        turn = self._turns[session_id] = asyncio.Event()
        name, _, number = getattr(prompt[0], "text", "").partition(" ")
        work = asyncio.ensure_future(self._work(session_id, name, number))
        stopped = asyncio.ensure_future(turn.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return PromptResponse(stop_reason="end_turn")
            return PromptResponse(stop_reason="cancelled")
        finally:
            work.cancel()
            stopped.cancel()

    async def _work(self, session_id: str, name: str, number: str) -> None:
        if name == "wait":
            await asyncio.sleep(float(number))
        elif name == "count":
            for step in range(1, int(number) + 1):
                await asyncio.sleep(0.2)
                await self._conn.session_update(session_id=session_id, update=update_agent_message(text_block(str(step))))

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        if turn := self._turns.get(session_id):
            turn.set()


asyncio.run(run_agent(ScoreboardAgent()))
