// An ACP client made with the public API of @agentclientprotocol/sdk. It starts the agent given after `--` once a
// scenario and cancels its requests. README.md tells how to run it and what its lines mean.

import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import { WebSocket } from "ws";
import { Peer, main, must, within } from "./harness.mjs";
import { cancelFamily, common, idle, list, mustBeCancelled, mustHoldResult, running } from "./scenarios.mjs";

const anyParams = (params) => params ?? {};

/** Waits until the agent cancels what it asked us, and answers as the SDK does then: -32800. */
const waitForAbort = ({ signal }) =>
  new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    else signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

async function nested({ params: { depth = 1, width = 1 }, signal, agent }) {
  const [method, inner] = depth > 1 ? ["test/nested", { depth: depth - 1, width }] : ["test/wait", {}];
  const asked = Array.from({ length: width }, () => agent.request(method, inner, { cancellationSignal: signal }));
  return { answers: await Promise.all(asked) };
}

/** The SDK's stream with every message put on record, and a way in for frames the SDK did not make. */
function recorded(stream, wire) {
  const writer = stream.writable.getWriter();
  const write = (frame) => {
    wire.sent(frame);
    return writer.write(frame);
  };
  const readable = stream.readable.pipeThrough(
    new TransformStream({
      transform(frame, controller) {
        if (wire.received(frame)) controller.enqueue(frame);
      },
    }),
  );
  return { stream: { readable, writable: new WritableStream({ write }) }, write };
}

class AcpPeer extends Peer {
  cancelMethod = "$/cancel_request";
  cancelFrame = (requestId) => ({ method: this.cancelMethod, params: { requestId } });
  cancelledId = (frame) => frame.params?.requestId;

  async handshake() {
    this.address = this.over === "stdio" ? undefined : await this.endpoint();
    await this.open();
  }

  stream() {
    if (this.over === "http") return createHttpStream(this.address);
    if (this.over === "ws") return createWebSocketStream(this.address, { WebSocket });
    return acp.ndJsonStream(Writable.toWeb(this.child.stdin), Readable.toWeb(this.child.stdout));
  }

  async open() {
    const { stream, write } = recorded(this.stream(), this.wire);
    this.write = write;
    this.connection = acp
      .client({ name: "acp-sdk-client" })
      .onRequest("test/wait", anyParams, waitForAbort)
      .onRequest("test/nested", anyParams, nested)
      .onRequest("test/echo", anyParams, ({ params }) => ({ value: params.value }))
      .onRequest("terminal/create", waitForAbort)
      .onRequest("session/request_permission", waitForAbort)
      .onNotification("session/update", () => {})
      .onNotification("test/tick", anyParams, () => {})
      .connect(stream);
    const { agent } = this.connection;
    const asked = agent.request("initialize", { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    const { protocolVersion } = await within("the answer to initialize", asked);
    must(protocolVersion === acp.PROTOCOL_VERSION, `the agent chose protocol version ${protocolVersion}`);
  }

  /** Another client of the same agent, for the wires on which an agent has several. */
  async another() {
    const other = Object.create(this, {
      wire: { value: new this.wire.constructor() },
      write: { value: undefined, writable: true },
      connection: { value: undefined, writable: true },
    });
    await other.open();
    return other;
  }

  async close(patience) {
    this.connection?.close();
    await super.close(patience);
  }

  async call(method, params, { cancelled = false } = {}) {
    const abort = new AbortController();
    if (cancelled) abort.abort();
    const call = await this.started(method, () => this.connection.agent.request(method, params, { cancellationSignal: abort.signal }));
    return { ...call, cancel: () => abort.abort() };
  }

  notify(method, params) {
    return this.connection.agent.notify(method, params);
  }

  async session() {
    const { sessionId } = await within("the answer to session/new", this.connection.agent.request("session/new", { cwd: process.cwd(), mcpServers: [] }));
    return sessionId;
  }

  prompt(sessionId, text) {
    return this.call("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }
}

const cancelledTurn = (answer) => mustHoldResult(answer, { stopReason: "cancelled" }, "the prompt");

const prompts = {
  async "prompt-echo"(peer) {
    const prompt = await peer.prompt(await peer.session(), "echo hello");
    mustHoldResult(await within("the answer", prompt.answer), { stopReason: "end_turn" });
  },

  async "prompt-session-cancel"(peer) {
    const sessionId = await peer.session();
    const prompt = await peer.prompt(sessionId, "wait");
    await peer.statsUntil("the prompt runs", running(1));
    await peer.notify("session/cancel", { sessionId });
    cancelledTurn(await within("the answer", prompt.answer));
    await idle(peer);
  },

  async "prompt-cancel-request"(peer) {
    const prompt = await peer.prompt(await peer.session(), "wait");
    await peer.statsUntil("the prompt runs", running(1));
    prompt.cancel();
    cancelledTurn(await within("the answer", prompt.answer));
    await idle(peer);
  },

  // The other session's prompt goes on.
  async "prompt-session-cancel-of-one-session"(peer) {
    const [one, other] = [await peer.session(), await peer.session()];
    const [first, second] = [await peer.prompt(one, "wait"), await peer.prompt(other, "sleep 300")];
    await peer.statsUntil("both prompts run", running(2));
    await peer.notify("session/cancel", { sessionId: one });
    cancelledTurn(await within("the first answer", first.answer));
    mustHoldResult(await within("the second answer", second.answer), { stopReason: "end_turn" }, "the other session's prompt");
  },

  async "prompt-session-cancel-when-idle"(peer) {
    const sessionId = await peer.session();
    const before = peer.wire.select("received").length;
    await peer.notify("session/cancel", { sessionId });
    await peer.barrier();
    must(peer.wire.select("received").length === before + 1, "session/cancel of an idle session was answered with something");
    const prompt = await peer.prompt(sessionId, "sleep 20");
    mustHoldResult(await within("the answer", prompt.answer), { stopReason: "end_turn" }, "the prompt after it");
  },

  async "prompt-partial"(peer) {
    const prompt = await peer.prompt(await peer.session(), "partial");
    await peer.statsUntil("the prompt runs", running(1));
    prompt.cancel();
    cancelledTurn(await within("the answer", prompt.answer));
  },

  async "prompt-deaf"(peer) {
    const sessionId = await peer.session();
    const prompt = await peer.prompt(sessionId, "ignore 300");
    await peer.statsUntil("the prompt runs", running(1));
    await peer.notify("session/cancel", { sessionId });
    const answer = await within("the answer", prompt.answer);
    must(["end_turn", "cancelled"].includes(answer.result?.stopReason), `the prompt was answered with ${JSON.stringify(answer)}`);
    await idle(peer);
  },

  // The flow drawn in ACP's cancellation page, with test/wait for the two requests.
  async "prompt-cascade"(peer) {
    const sessionId = await peer.session();
    const prompt = await peer.prompt(sessionId, "nested 1 2");
    await cancelFamily(peer, prompt, {
      asks: 2,
      cancelParent: () => peer.notify("session/cancel", { sessionId }),
      cancelledAnswer: cancelledTurn,
    });
  },
};

/** Where an agent has several clients at once. */
const several = {
  // The SDK numbers its requests from the same number on in each.
  async "equal-ids-of-two-clients"(peer) {
    const other = await peer.another();
    const [mine, theirs] = [await peer.call("test/wait", {}), await other.call("test/wait", {})];
    must(mine.id === theirs.id, `the ids are ${mine.id} and ${theirs.id}: this shows nothing`);
    await peer.statsUntil("both run", running(2));
    mine.cancel();
    mustBeCancelled(await within("the answer", mine.answer));
    await peer.statsUntil("one was stopped", running(1));
    must(other.wire.answers(theirs.id).length === 0, "the cancel of one client ended the other's request");
    theirs.cancel();
    mustBeCancelled(await within("the other answer", theirs.answer));
    await idle(peer);
    other.connection.close();
  },

  async "connection-closed-while-waiting"(peer) {
    const other = await peer.another();
    const call = await other.call("test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    other.connection.close();
    const ended = await within("the call's end", call.answer);
    must(ended.error, `the call ended with ${JSON.stringify(ended)}`);
    await idle(peer);
  },
};

/** Where each of several clients has an agent of its own, behind a bridge. The clients' ids are equal too. */
const agentEach = {
  async "equal-ids-of-two-clients-with-an-agent-each"(peer) {
    const other = await peer.another();
    const [mine, theirs] = [await peer.call("test/wait", {}), await other.call("test/wait", {})];
    must(mine.id === theirs.id, `the ids are ${mine.id} and ${theirs.id}: this shows nothing`);
    await peer.statsUntil("the first runs", running(1));
    mine.cancel();
    mustBeCancelled(await within("the answer", mine.answer));
    await idle(peer);
    // Answered after the request before it has begun.
    await other.ask("other-echo", "test/echo", { value: 1 });
    const { result } = await other.ask("other-stats", "test/stats", {});
    must(result?.running === 1, `the agent of the other client reports ${JSON.stringify(result)}`);
    theirs.cancel();
    mustBeCancelled(await within("the other answer", theirs.answer));
    other.connection.close();
  },
};

/** Where two messages may come in another order than they were sent: a cancel may be there before its request. */
const unordered = {
  async "cancel-before-its-request"(peer) {
    await peer.send(peer.cancelFrame(500));
    await peer.barrier();
    mustBeCancelled(await peer.ask(500, "test/sleep", { ms: 20, value: "ran" }));
  },
};

const all = [...common, ...list(prompts)];
const scenarios = {
  stdio: all,
  http: [...all.filter(({ name }) => !name.startsWith("eof-") && name !== "cancel-unknown-then-use"), ...list(several), ...list(unordered)],
  ws: [...all.filter(({ name }) => !name.startsWith("eof-")), ...list(several)],
  "ws to a bridge": [...all.filter(({ name }) => !name.startsWith("eof-")), ...list(agentEach)],
};

await main("acp-client.mjs", (command, { over }) => new AcpPeer(command, over), ({ over, bridged }) => scenarios[bridged ? `${over} to a bridge` : over]);
