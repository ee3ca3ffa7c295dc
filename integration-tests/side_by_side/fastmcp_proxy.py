"""fastmcp's proxy before a program on stdio: fastmcp_proxy.py PORT COMMAND ARG..."""

import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

port, command, *args = sys.argv[1:]
create_proxy(StdioTransport(command=command, args=args)).run(
    transport="http", host="127.0.0.1", port=int(port), path="/mcp", show_banner=False, log_level="ERROR"
)
