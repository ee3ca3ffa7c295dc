// An MCP server made with @modelcontextprotocol/server, as its documentation shows: tools that look at the signal of their request.

import { setTimeout as sleep } from "node:timers/promises";
import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import * as z from "zod";

const said = (text) => ({ content: [{ type: "text", text }] });

function create() {
  const server = new McpServer({ name: "scoreboard", version: "0.0.0" });

  server.registerTool("wait", { description: "Wait.", inputSchema: z.object({ seconds: z.number() }) }, async ({ seconds }, context) => {
    await sleep(seconds * 1000, undefined, { signal: context.mcpReq.signal });
    return said("waited");
  });

  server.registerTool("echo", { description: "Answer with the text.", inputSchema: z.object({ text: z.string() }) }, async ({ text }) =>
    said(text),
  );

  const count = { description: "Count, five numbers a second, and report progress.", inputSchema: z.object({ to: z.number().int() }) };
  server.registerTool("count", count, async ({ to }, { mcpReq }) => {
    const progressToken = mcpReq._meta?.progressToken;
    for (let step = 1; step <= to; step += 1) {
      await sleep(200, undefined, { signal: mcpReq.signal });
      if (progressToken !== undefined) {
        await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress: step, total: to } });
      }
    }
    return said("counted");
  });
  return server;
}

serveStdio(create);
