// Clients that use no library, one for each transport. Each has `open()`, `call(name, args, id)`, which gives the frame that answers,
// `cancel(id)` and `leave()`.

import { spawn } from "node:child_process";
import { Agent, request } from "node:http";
import { createInterface } from "node:readline";
import { WebSocket } from "ws";

const HELLO = { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "side-by-side", version: "1" } };

class Client {
  next = 1;
  #waiting = new Map();

  async open() {
    await this.connect();
    const answer = await this.ask("initialize", HELLO, this.next++);
    if (!answer.result) throw new Error(`initialize was answered with ${JSON.stringify(answer)}`);
    await this.send({ method: "notifications/initialized" });
    return this;
  }

  /** The frame that answers the request, or an error if the connection ends first. */
  ask(method, params, id) {
    return new Promise((resolve, reject) => {
      this.#waiting.set(JSON.stringify(id), { resolve, reject });
      this.send({ id, method, params }).catch((error) => this.failed(id, error));
    });
  }

  call(name, args = {}, id = this.next++) {
    return this.ask("tools/call", { name, arguments: args }, id);
  }

  cancel(id) {
    return this.send({ method: "notifications/cancelled", params: { requestId: id } });
  }

  received(frame) {
    const key = JSON.stringify(frame.id);
    if ("method" in frame) return;
    this.#waiting.get(key)?.resolve(frame);
    this.#waiting.delete(key);
  }

  failed(id, error) {
    this.#waiting.get(JSON.stringify(id))?.reject(error);
    this.#waiting.delete(JSON.stringify(id));
  }

  lost(error) {
    for (const id of [...this.#waiting.keys()]) this.failed(JSON.parse(id), error);
  }
}

/** Streamable HTTP: a POST for each message, answered as JSON or by an event stream. */
export class HttpClient extends Client {
  #open = new Set();
  #agent = new Agent({ keepAlive: true });

  constructor(url) {
    super();
    this.url = url;
  }

  async connect() {}

  #request(method, body) {
    return new Promise((resolve, reject) => {
      const headers = { accept: "application/json, text/event-stream", "content-type": "application/json" };
      if (this.session) Object.assign(headers, { "mcp-session-id": this.session, "mcp-protocol-version": "2025-06-18" });
      const sent = request(this.url, { method, headers, agent: this.#agent }, resolve);
      sent.on("error", reject);
      this.#open.add(sent);
      sent.on("close", () => this.#open.delete(sent));
      sent.end(body);
    });
  }

  async send(frame) {
    const response = await this.#request("POST", JSON.stringify({ jsonrpc: "2.0", ...frame }));
    this.session ??= response.headers["mcp-session-id"];
    if (frame.id === undefined) return void response.resume();
    let text = "";
    response.setEncoding("utf8");
    response.on("error", (error) => this.failed(frame.id, error));
    if ((response.headers["content-type"] ?? "").startsWith("text/event-stream")) {
      response.on("data", (data) => {
        text += data;
        for (let end; (end = /\r?\n\r?\n/.exec(text)); text = text.slice(end.index + end[0].length)) {
          const event = text.slice(0, end.index).split(/\r?\n/).filter((line) => line.startsWith("data:"));
          const body = event.map((line) => line.slice(5).trimStart()).join("\n");
          if (body) this.received(JSON.parse(body));
        }
      });
      response.on("end", () => this.failed(frame.id, new Error("the event stream ended without an answer")));
    } else {
      response.on("data", (data) => (text += data));
      response.on("end", () => {
        try {
          this.received(JSON.parse(text));
        } catch {
          this.failed(frame.id, new Error(`HTTP status ${response.statusCode}: ${text.slice(0, 200)}`));
        }
      });
    }
  }

  async leave() {
    await this.#request("DELETE").then((response) => response.resume(), () => {});
    for (const sent of this.#open) sent.destroy();
    this.#agent.destroy();
  }
}

export class WsClient extends Client {
  constructor(url) {
    super();
    this.url = url;
  }

  connect() {
    this.socket = new WebSocket(this.url);
    this.socket.on("message", (text) => this.received(JSON.parse(text)));
    this.socket.on("close", (code) => this.lost(new Error(`the WebSocket was closed with ${code}`)));
    return new Promise((resolve, reject) => {
      this.socket.on("open", resolve);
      this.socket.on("error", reject);
    });
  }

  async send(frame) {
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", ...frame }));
  }

  async leave() {
    this.socket.close();
  }
}

/** The stdio of a program that it starts. */
export class StdioClient extends Client {
  constructor(command) {
    super();
    this.command = command;
  }

  async connect() {
    this.child = spawn(this.command[0], this.command.slice(1), { stdio: ["pipe", "pipe", "ignore"] });
    this.child.stdin.on("error", () => {});
    this.child.on("exit", (code, signal) => this.lost(new Error(`the program ended with ${signal ?? code}`)));
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      try {
        this.received(JSON.parse(line));
      } catch {
        // Some programs print other lines.
      }
    });
  }

  async send(frame) {
    this.child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...frame })}\n`);
  }

  async leave() {
    this.child.stdin.end();
  }
}
