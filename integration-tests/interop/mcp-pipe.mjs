// The byte stream of a child process as the transport both MCP libraries expect. Their own stdio transports start the
// child themselves; here the harness did, since it must be able to end it. The framing is the library's.

export class PipeTransport {
  constructor(child, buffer, serialize) {
    this.child = child;
    this.buffer = buffer;
    this.serialize = serialize;
  }

  async start() {
    this.child.stdout.on("data", (data) => {
      this.buffer.append(data);
      for (;;) {
        try {
          const message = this.buffer.readMessage();
          if (message === null) return;
          this.onmessage?.(message);
        } catch (error) {
          this.onerror?.(error);
        }
      }
    });
    this.child.stdout.on("end", () => this.onclose?.());
  }

  send(message) {
    return new Promise((resolve) => {
      if (this.child.stdin.write(this.serialize(message))) resolve();
      else this.child.stdin.once("drain", resolve);
    });
  }

  async close() {
    this.child.stdin.end();
  }
}
