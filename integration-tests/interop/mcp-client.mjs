// An MCP client of the 2025 revisions, made with the public API of @modelcontextprotocol/sdk. It starts the server given
// after `--` once a scenario and cancels its requests. README.md tells how to run it and what its lines mean.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ReadBuffer, serializeMessage } from "@modelcontextprotocol/sdk/shared/stdio.js";
import { CallToolResultSchema, ErrorCode, McpError, ResultSchema } from "@modelcontextprotocol/sdk/types.js";
import { main } from "./harness.mjs";
import { McpPeer } from "./mcp-peer.mjs";
import { scenariosOver } from "./mcp-scenarios.mjs";
import { PipeTransport } from "./mcp-pipe.mjs";

/** What the server may ask of this client, as the fixture's own client answers it. */
async function serve({ method, params }, { signal, sendRequest }) {
  if (method === "test/wait") {
    await new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve, { once: true })));
    throw signal.reason;
  }
  if (method === "test/nested") {
    const { depth = 1, width = 1 } = params ?? {};
    const [inner, asked] = depth > 1 ? ["test/nested", { depth: depth - 1, width }] : ["test/wait", {}];
    const all = Array.from({ length: width }, () => sendRequest({ method: inner, params: asked }, ResultSchema, { signal }));
    return { answers: await Promise.all(all) };
  }
  throw new McpError(ErrorCode.MethodNotFound, "Method not found");
}

class SdkPeer extends McpPeer {
  byMessage = true;

  transport(address) {
    // The transport of 2024-11-05, on a path of its own.
    if (this.over === "sse") return new SSEClientTransport(new URL("/sse", address));
    if (address) return new StreamableHTTPClientTransport(new URL(address));
    return new PipeTransport(this.child, new ReadBuffer(), serializeMessage);
  }

  client() {
    const client = new Client({ name: "mcp-sdk-client", version: "0.0.0" }, { capabilities: {} });
    client.fallbackRequestHandler = serve;
    return client;
  }

  callTool(name, args, options) {
    return this.library.callTool({ name, arguments: args }, CallToolResultSchema, options);
  }

  get tasks() {
    return this.library.experimental.tasks;
  }

  callToolAsTask(name, args) {
    return this.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: 60_000 } });
  }
}

await main("mcp-client.mjs", (command, { over }) => new SdkPeer(command, over), ({ over, bridged }) =>
  ["stdio", "http", "sse"].includes(over) ? scenariosOver(over, { asks: true, bridged, tasks: !bridged }) : undefined,
);
