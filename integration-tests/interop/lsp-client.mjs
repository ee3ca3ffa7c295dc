// A language client made with the public API of vscode-jsonrpc. It starts the server given after `--` once a scenario
// and cancels its requests. README.md tells how to run it and what its lines mean.
// With RESCIND_OVER_PIPE=1 the server is one that listens: `{pipe}` in its command becomes the path of a fresh pipe, and
// the client connects once the server has said on stderr that it listens.

import { mkdtempSync, rmSync } from "node:fs";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CancellationTokenSource, ResponseError, StreamMessageReader, StreamMessageWriter, createMessageConnection } from "vscode-jsonrpc/node";
import { Peer, main, must, within } from "./harness.mjs";
import { common } from "./scenarios.mjs";

const waitForCancel = (token) =>
  new Promise((_, reject) => {
    const stop = () => reject(new ResponseError(-32800, "Request cancelled"));
    if (token.isCancellationRequested) stop();
    else token.onCancellationRequested(stop);
  });

class RecordedReader extends StreamMessageReader {
  constructor(stream, wire) {
    super(stream);
    this.wire = wire;
  }

  listen(callback) {
    return super.listen((message) => {
      if (this.wire.received(message)) callback(message);
    });
  }
}

class RecordedWriter extends StreamMessageWriter {
  constructor(stream, wire) {
    super(stream);
    this.wire = wire;
  }

  write(message) {
    this.wire.sent(message);
    return super.write(message);
  }
}

class LspPeer extends Peer {
  cancelMethod = "$/cancelRequest";
  cancelFrame = (id) => ({ method: this.cancelMethod, params: { id } });
  cancelledId = (frame) => frame.params?.id;

  constructor(command) {
    super(command);
    this.attach(this.child.stdout, this.child.stdin);
  }

  attach(input, output) {
    const writer = new RecordedWriter(output, this.wire);
    this.write = (frame) => writer.write(frame);
    const connection = createMessageConnection(new RecordedReader(input, this.wire), writer);
    connection.onRequest("test/wait", (_params, token) => waitForCancel(token));
    connection.onRequest("test/echo", (params) => ({ value: params.value }));
    connection.onRequest("test/nested", async ({ depth = 1, width = 1 }, token) => {
      const [method, inner] = depth > 1 ? ["test/nested", { depth: depth - 1, width }] : ["test/wait", {}];
      const asked = Array.from({ length: width }, () => connection.sendRequest(method, inner, token));
      return { answers: await Promise.all(asked) };
    });
    connection.onNotification("test/tick", () => {});
    connection.onError(() => {});
    connection.listen();
    this.connection = connection;
  }

  async handshake() {
    const asked = this.connection.sendRequest("initialize", { processId: null, rootUri: null, capabilities: {} });
    const { capabilities } = await within("the answer to initialize", asked);
    must(capabilities, "the answer to initialize holds no capabilities");
    await this.notify("initialized", {});
  }

  async call(method, params, { cancelled = false } = {}) {
    const source = new CancellationTokenSource();
    if (cancelled) source.cancel();
    const call = await this.started(method, () => this.connection.sendRequest(method, params, source.token));
    return { ...call, cancel: () => source.cancel() };
  }

  notify(method, params) {
    return this.connection.sendNotification(method, params);
  }
}

/** The same over a named pipe. What the scenarios call the agent's end is then the end of the connection. */
class PipePeer extends LspPeer {
  constructor(command) {
    const directory = mkdtempSync(join(tmpdir(), "rescind-lsp-"));
    super(command.map((word) => word.replace("{pipe}", join(directory, "lsp.sock"))));
    this.path = join(directory, "lsp.sock");
    this.directory = directory;
    this.childExited = this.exited;
    this.exited = new Promise((resolve) => (this.ended = resolve));
  }

  /** There is nothing to attach to before the server listens. */
  attach(input, output) {
    if (input !== this.child.stdout) super.attach(input, output);
  }

  async handshake() {
    const listens = new Promise((resolve) => {
      let said = "";
      this.child.stderr.on("data", (data) => (said += data).includes("listening on pipe:") && resolve());
    });
    await within("the line `listening on`", Promise.race([listens, this.childExited.then(() => Promise.reject(new Error("it ended")))]));
    // A half-open socket, so that the end of our output leaves the answers their way.
    this.socket = createConnection({ path: this.path, allowHalfOpen: true });
    this.socket.on("error", () => {});
    this.socket.on("end", () => this.ended({ code: 0, signal: null }));
    this.attach(this.socket, this.socket);
    await super.handshake();
  }

  endInput() {
    this.socket?.end();
  }

  async close() {
    this.socket?.destroy();
    this.child.kill("SIGTERM");
    const { code, signal } = await within("the server's end", this.childExited);
    rmSync(this.directory, { recursive: true, force: true });
    if (code !== 0) console.error(`the server ended with ${code ?? signal}`);
  }
}

const LspOver = process.env.RESCIND_OVER_PIPE ? PipePeer : LspPeer;
await main("lsp-client.mjs", (command) => new LspOver(command), common);
