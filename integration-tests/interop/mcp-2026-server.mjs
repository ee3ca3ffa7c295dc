// An MCP server made with the public API of @modelcontextprotocol/server, over its own stdin and stdout, or with `--http`
// over HTTP on a free port. It serves revision 2026-07-28, and without state the 2025 ones. It has the methods of work.mjs.

import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { ProtocolError, ProtocolErrorCode, Server, createMcpHandler } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { listen } from "./listen.mjs";
import { perform, toolResult, tools } from "./mcp-tools.mjs";

/** What the library lends a handler. This revision's servers ask their clients nothing. */
const lent = ({ mcpReq }) => ({
  signal: mcpReq.signal,
  progress: async (progress, total) => {
    const progressToken = mcpReq._meta?.progressToken;
    if (progressToken === undefined) return;
    await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total } });
  },
  ask: () => Promise.reject(new Error("a server of this revision asks its client nothing")),
});

function server() {
  const served = new Server({ name: "mcp-server-2", version: "0.0.0" }, { capabilities: { tools: {} } });
  served.setRequestHandler("tools/list", () => ({ tools }));
  served.setRequestHandler("tools/call", async ({ params }, context) => {
    const done = perform(params.name, params.arguments, lent(context));
    if (done === undefined) throw new ProtocolError(ProtocolErrorCode.InvalidParams, `no tool is called "${params.name}"`);
    return toolResult(await done);
  });
  served.fallbackRequestHandler = async ({ method, params }, context) => {
    const done = method.startsWith("test/") ? perform(method.slice("test/".length), params, lent(context)) : undefined;
    if (done === undefined) throw new ProtocolError(ProtocolErrorCode.MethodNotFound, "Method not found");
    return done;
  };
  return served;
}

if (process.argv[2] === "--http") listen(createServer(toNodeHandler(createMcpHandler(server))), "/mcp");
else serveStdio(server);
