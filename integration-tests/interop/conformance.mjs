// Plays scenarios of @modelcontextprotocol/conformance against the server given after `--`, which says on its stderr where
// it listens. What fails must be exactly what conformance-expected.json lists, a check at a time.
//   node conformance.mjs [--only SCENARIO] [--revision REVISION] [--expected NAME] -- COMMAND ARG...
// NAME is a member of conformance-expected.json. Default: `direct`.
// The suite needs Node 22: an older one runs it with the `node` package of the lock file.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Peer, within } from "./harness.mjs";

const SCENARIOS = {
  "2025-11-25": [
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-with-progress",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
    "server-sse-polling",
  ],
  "2026-07-28": ["server-stateless", "http-header-validation", "tools-list", "tools-call-simple-text", "tools-call-with-progress", "dns-rebinding-protection", "server-sse-multiple-streams"],
};
const SCENARIO_MS = 60_000;
const SUITE = new URL("node_modules/@modelcontextprotocol/conformance/dist/index.js", import.meta.url).pathname;
const EXPECTED = JSON.parse(readFileSync(new URL("conformance-expected.json", import.meta.url), "utf8"));

const words = process.argv.slice(2);
const split = words.indexOf("--");
const flags = { "--only": undefined, "--revision": undefined, "--expected": "direct" };
const given = words.slice(0, Math.max(split, 0));
for (let at = 0; at < given.length; at += 2) {
  if (given[at] in flags && given[at + 1] !== undefined) flags[given[at]] = given[at + 1];
  else given.length = 0;
}
const only = flags["--only"];
const expected = EXPECTED[flags["--expected"]];
if (split < 0 || split === words.length - 1 || given.length !== split || expected === undefined) {
  console.error("usage: node conformance.mjs [--only SCENARIO] [--revision REVISION] [--expected NAME] -- COMMAND ARG...");
  process.exit(2);
}

/** A Node the suite runs on: this one, or the one the lock file brings for this machine. */
function node22() {
  if (Number(process.versions.node.split(".")[0]) >= 22) return process.execPath;
  const file = `${process.platform === "win32" ? "" : "bin/"}node${process.platform === "win32" ? ".exe" : ""}`;
  const found = createRequire(import.meta.url).resolve.paths("x").map((path) => join(path, `node-${process.platform}-${process.arch}`, file)).find(existsSync);
  if (found) return found;
  console.error(`the suite needs Node 22 or newer, this is ${process.version}, and npm brought none for ${process.platform}-${process.arch}`);
  process.exit(2);
}

const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));

/** Plays one scenario and gives the checks it made. */
async function play(node, url, revision, scenario) {
  const results = mkdtempSync(join(tmpdir(), "mcp-conformance-"));
  try {
    const child = spawn(node, [SUITE, "server", "--url", url, "--scenario", scenario, "--spec-version", revision, "--output-dir", results], { stdio: ["ignore", "pipe", "pipe"] });
    running.add(child);
    let told = "";
    child.stdout.on("data", (data) => (told += data));
    child.stderr.on("data", (data) => (told += data));
    await within(scenario, new Promise((resolve) => child.on("exit", resolve)), SCENARIO_MS).finally(() => {
      child.kill("SIGKILL");
      running.delete(child);
    });
    const file = readdirSync(results, { recursive: true }).find((name) => name.endsWith("checks.json"));
    if (!file) throw new Error(`the suite left no report: ${told.slice(-2000)}`);
    return JSON.parse(readFileSync(join(results, file), "utf8"));
  } finally {
    rmSync(results, { recursive: true, force: true });
  }
}

const node = node22();
const server = new Peer(words.slice(split + 1), "http");
const total = { scenarios: 0, ok: 0, known: 0, failed: 0 };
try {
  const url = await server.endpoint();
  const revisions = Object.entries(SCENARIOS).filter(([revision]) => [undefined, revision].includes(flags["--revision"]));
  for (const [revision, scenarios] of revisions) {
    for (const scenario of scenarios.filter((name) => only === undefined || name === only)) {
      const known = expected[revision]?.[scenario] ?? {};
      const checks = await play(node, url, revision, scenario);
      const named = (status) => checks.filter((check) => check.status === status);
      const failed = named("FAILURE");
      const faults = failed.filter(({ id }) => !(id in known)).map(({ id, errorMessage }) => `${id}: ${errorMessage}`);
      for (const id of Object.keys(known)) {
        if (!failed.some((check) => check.id === id)) faults.push(`${id} is expected to fail and did not`);
      }
      if (named("SUCCESS").length === 0) faults.push("no check succeeded");
      total.scenarios += 1;
      total[faults.length > 0 ? "failed" : failed.length > 0 ? "known" : "ok"] += 1;
      const line = { scenario, revision, ok: faults.length === 0, success: named("SUCCESS").length, skipped: named("SKIPPED").length };
      const notes = [...named("WARNING"), ...named("INFO")].filter(({ id }) => !id.startsWith("incoming-") && id !== "stream-closed");
      console.log(JSON.stringify({ ...line, ...(faults.length > 0 && { faults }), ...(notes.length > 0 && { notes: notes.map(({ id, status }) => `${status} ${id}`) }) }));
    }
  }
} catch (error) {
  total.failed += 1;
  console.error(`${error.message}\nthe server wrote to stderr:\n${server.stderr}`);
} finally {
  await server.close(2000);
}
console.log(JSON.stringify({ summary: total }));
process.exit(total.failed === 0 && total.scenarios > 0 ? 0 : 1);
