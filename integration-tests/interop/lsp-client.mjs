// A language client made with the public API of vscode-jsonrpc. It starts the server given after `--` once a scenario
// and cancels its requests. README.md tells how to run it and what its lines mean.

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
    const writer = new RecordedWriter(this.child.stdin, this.wire);
    this.write = (frame) => writer.write(frame);
    const connection = createMessageConnection(new RecordedReader(this.child.stdout, this.wire), writer);
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

await main("lsp-client.mjs", (command) => new LspPeer(command), common);
