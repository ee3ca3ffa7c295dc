"""An MCP server made with the PyPI package `fastmcp`, as its documentation shows. Usage: fastmcp_server.py [http PORT]."""

import asyncio
import sys

from fastmcp import Context, FastMCP

server = FastMCP("scoreboard")


@server.tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count, five numbers a second, and report progress."""
    for step in range(1, to + 1):
        await asyncio.sleep(0.2)
        await ctx.report_progress(step, to)
    return "counted"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run(transport="http", port=int(sys.argv[2]))
    else:
        server.run()
