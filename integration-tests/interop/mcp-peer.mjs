// What the MCP clients share, whichever of the two libraries they are made with.

import { Peer, must, within } from "./harness.mjs";

/** Puts every message of a transport on record, and keeps the answers of raw requests from the library. */
export function record(transport, wire) {
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    wire.sent(message);
    return send(message, options);
  };
  let handler;
  Object.defineProperty(transport, "onmessage", {
    configurable: true,
    get: () => handler,
    set: (wanted) => {
      handler = wanted && ((message, extra) => wire.received(message) && wanted(message, extra));
    },
  });
  return transport;
}

/**
 * A conversation with an MCP server. A kit's subclass gives `transport(endpoint)`, a new one over the child's streams or
 * to an endpoint, and `client()`, and says with `byMessage` whether its cancels are messages.
 */
export class McpPeer extends Peer {
  cancelMethod = "notifications/cancelled";
  cancelFrame = (requestId) => ({ method: this.cancelMethod, params: { requestId } });
  cancelledId = (frame) => frame.params?.requestId;
  asked = 0;

  async handshake() {
    this.address = this.over === "stdio" ? undefined : await this.endpoint();
    await this.open();
  }

  async open() {
    this.link = record(this.transport(this.address), this.wire);
    this.library = this.client();
    await within("the end of the handshake", this.library.connect(this.link));
  }

  /** Another client of the same server, for the wires on which a server has several. */
  async another() {
    const other = Object.create(this, {
      wire: { value: new this.wire.constructor() },
      link: { value: undefined, writable: true },
      library: { value: undefined, writable: true },
    });
    await other.open();
    return other;
  }

  write(frame) {
    return this.link.send(frame);
  }

  /** Starts a tool the library's way. `options` are the library's own, such as a time limit. */
  async tool(name, args = {}, options = {}) {
    const abort = new AbortController();
    const call = await this.started("tools/call", () => this.callTool(name, args, { signal: abort.signal, ...options }));
    return { ...call, cancel: (reason) => abort.abort(reason) };
  }

  async stats() {
    const answer = await this.ask(`stats-${(this.asked += 1)}`, "tools/call", { name: "stats", arguments: {} });
    must(answer.result?.structuredContent, `the tool stats was answered with ${JSON.stringify(answer)}`);
    return answer.result.structuredContent;
  }

  async barrier() {
    const id = `barrier-${(this.asked += 1)}`;
    const answer = await this.ask(id, "tools/call", { name: "echo", arguments: { value: id } });
    must(answer.result?.structuredContent?.value === id, `the tool echo was answered with ${JSON.stringify(answer)}`);
  }

  async close(patience) {
    // Over HTTP the library may be waiting for streams that its end cuts off.
    if (this.library) await within("the library's end", this.library.close(), 2000).catch(() => {});
    await super.close(patience);
  }
}
