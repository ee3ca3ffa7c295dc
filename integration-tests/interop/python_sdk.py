"""The Python SDK of MCP: as a client, and as a server of the transport of 2024-11-05.

python_sdk.py serve            a server; prints "listening on URL" to stderr
python_sdk.py call URL         a client: of that transport if the path is /sse, else over streamable HTTP
python_sdk.py call COMMAND..   a client that starts a server and speaks to its stdin and stdout

A client cancels a call of the tool `wait` by its scope, and prints "cancelled" when the server has counted the cancel.
"""

import asyncio
import socket
import sys

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer


def serve() -> None:
    import uvicorn

    server = MCPServer("python-sse")
    counts = {"started": 0, "cancelled": 0}

    @server.tool()
    async def wait() -> str:
        counts["started"] += 1
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            counts["cancelled"] += 1
            raise
        return "never"

    @server.tool()
    async def stats() -> dict[str, int]:
        return counts

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/sse", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(server.sse_app(), log_level="error")).run(sockets=[listener])


async def call(words: list[str]) -> None:
    if words[0].endswith("/sse"):
        opened = sse_client(words[0])
    elif words[0].startswith("http"):
        opened = streamable_http_client(words[0])
    else:
        opened = stdio_client(StdioServerParameters(command=words[0], args=words[1:]))
    async with opened as (read, write), ClientSession(read, write) as session:
        await session.initialize()

        async def stats() -> dict[str, int]:
            return (await session.call_tool("stats", {})).structured_content

        async def until(count: str) -> None:
            with anyio.fail_after(30):
                while (await stats())[count] < 1:
                    await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            waiting = anyio.CancelScope()

            async def wait() -> None:
                with waiting:
                    await session.call_tool("wait", {})

            tasks.start_soon(wait)
            await until("started")
            waiting.cancel()
        await until("cancelled")
        print("cancelled", flush=True)


if sys.argv[1:] == ["serve"]:
    serve()
elif sys.argv[1:2] == ["call"] and len(sys.argv) > 2:
    anyio.run(call, sys.argv[2:])
else:
    sys.exit(__doc__)
