// A client of @modelcontextprotocol/sdk for: rescind check --client --dialect mcp [--listen http://127.0.0.1:0/mcp] -- node mcp-sdk.mjs
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ListRootsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const { RESCIND_SCENARIO: scenario, RESCIND_ENDPOINT: endpoint, RESCIND_WAIT_MS } = process.env;
const wait = Number(RESCIND_WAIT_MS);
const [command, ...args] = JSON.parse(process.env.RESCIND_COMMAND);
const transport = command ? new StdioClientTransport({ command, args }) : new StreamableHTTPClientTransport(new URL(endpoint));
const client = new Client({ name: "mcp-sdk", version: "0" }, { capabilities: { roots: {} } });
const call = (name, options) => client.callTool({ name, arguments: {} }, undefined, options);
const after = (ms) => { const abort = new AbortController(); setTimeout(() => abort.abort(), ms); return abort.signal; };

client.setRequestHandler(ListRootsRequestSchema, (_, { signal }) => new Promise((_, reject) =>
  signal.addEventListener("abort", () => { call("quick"); reject(signal.reason); })));
if (scenario === "initialize") {
  await client.connect(transport, { timeout: wait }).catch(() => {});
} else {
  await client.connect(transport);
  if (scenario === "cancel") await call("slow", { signal: after(wait) }).catch(() => {});
  if (scenario === "pair") await Promise.all([call("slow", { signal: after(wait) }).catch(() => {}), call("slow")]);
  if (scenario === "serve") await call("slow");
  if (scenario === "timeout") await call("slow", { timeout: wait }).catch(() => {});
  if (scenario === "close") { call("slow").catch(() => {}); await new Promise((done) => setTimeout(done, wait)); }
  if (scenario !== "close" && (await call("quick")).content[0].text !== "quick") process.exit(1);
}
await client.close();
process.exit(0);
