// An ACP agent made with @agentclientprotocol/sdk, as its documentation shows. A prompt's text is `wait SECONDS`, `count NUMBERS` or
// anything else, which is answered at once. A prompt ends for `$/cancel_request` (the request's signal) and for `session/cancel`.

import { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import * as acp from "@agentclientprotocol/sdk";

const sessions = new Map(); // session id -> the AbortController of its prompt

async function work({ params, client }, signal) {
  const [name, number] = (params.prompt.find((block) => block.type === "text")?.text ?? "").split(" ");
  if (name === "wait") await sleep(Number(number) * 1000, undefined, { signal });
  if (name !== "count") return;
  for (let step = 1; step <= Number(number); step += 1) {
    await sleep(200, undefined, { signal });
    const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text: String(step) } };
    await client.notify("session/update", { sessionId: params.sessionId, update });
  }
}

async function prompt(context) {
  const { params, signal } = context;
  if (!sessions.has(params.sessionId)) throw acp.RequestError.sessionNotFound(params.sessionId);
  const turn = new AbortController();
  sessions.set(params.sessionId, turn);
  try {
    await work(context, AbortSignal.any([signal, turn.signal]));
    return { stopReason: "end_turn" };
  } catch (error) {
    if (turn.signal.aborted) return { stopReason: "cancelled" };
    throw error; // An AbortError of the request's signal is the SDK's -32800.
  }
}

acp
  .agent({ name: "scoreboard" })
  .onRequest("initialize", () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest("session/new", () => {
    const sessionId = `session-${sessions.size + 1}`;
    sessions.set(sessionId, new AbortController());
    return { sessionId };
  })
  .onRequest("session/prompt", prompt)
  .onNotification("session/cancel", ({ params }) => sessions.get(params.sessionId)?.abort())
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
