// An MCP client made with the public API of @modelcontextprotocol/client: of revision 2026-07-28, or with
// `--revision 2025-06-18` of that one. It starts the server given after `--` once a scenario and cancels its requests.
// README.md tells how to run it and what its lines mean.

import { CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, Client, PROTOCOL_VERSION_META_KEY, ReadBuffer, StreamableHTTPClientTransport, serializeMessage } from "@modelcontextprotocol/client";
import { main } from "./harness.mjs";
import { McpPeer } from "./mcp-peer.mjs";
import { PipeTransport } from "./mcp-pipe.mjs";
import { scenariosOver } from "./mcp-scenarios.mjs";

const STATELESS = "2026-07-28";
const NAME = { name: "mcp-client-2", version: "0.0.0" };

class ClientPeer extends McpPeer {
  constructor(command, over, revision = STATELESS) {
    super(command, over);
    this.revision = revision;
    this.byMessage = over === "stdio" || revision !== STATELESS;
  }

  transport(address) {
    if (address) return new StreamableHTTPClientTransport(new URL(address));
    return new PipeTransport(this.child, new ReadBuffer(), serializeMessage);
  }

  client() {
    if (this.revision !== STATELESS) return new Client(NAME, { supportedProtocolVersions: [this.revision] });
    return new Client(NAME, { versionNegotiation: { mode: { pin: STATELESS } } });
  }

  callTool(name, args, options) {
    return this.library.callTool({ name, arguments: args }, options);
  }

  /** What the library puts into the messages it makes, also into ours. */
  send(frame) {
    if (this.revision !== STATELESS || !("id" in frame)) return super.send(frame);
    const _meta = { [PROTOCOL_VERSION_META_KEY]: STATELESS, [CLIENT_INFO_META_KEY]: NAME, [CLIENT_CAPABILITIES_META_KEY]: {} };
    return super.send({ ...frame, params: { ...frame.params, _meta } });
  }
}

await main("mcp-2026-client.mjs", (command, { over, revision }) => new ClientPeer(command, over, revision), ({ over, revision }) =>
  ["stdio", "http"].includes(over) ? scenariosOver(over, { stateless: revision === undefined }) : undefined,
);
