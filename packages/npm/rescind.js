#!/usr/bin/env node
// Runs the program that the package of this platform has, with its own stdin, stdout and stderr.
"use strict";
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const name = `@rescind/cli-${process.platform}-${process.arch}`;
const platforms = require("./package.json").optionalDependencies;

function fail(text) {
  process.stderr.write(`rescind: ${text}\n`);
  process.exit(2);
}

if (!(name in platforms)) {
  const names = Object.keys(platforms).map((each) => each.slice("@rescind/cli-".length));
  fail(`npm has no program for ${process.platform}-${process.arch}, only for ${names.join(", ")}. Build it: cargo install rescind-cli`);
}
let program;
try {
  const folder = path.dirname(require.resolve(`${name}/package.json`));
  program = path.join(folder, process.platform === "win32" ? "rescind.exe" : "rescind");
} catch {
  fail(`the package ${name} is not installed. Install rescind-cli again, without --omit=optional or --no-optional`);
}

// A terminal sends its signals to the child too, for which a second SIGINT means something else.
function hasTerminal() {
  try {
    fs.closeSync(fs.openSync("/dev/tty", "r"));
    return true;
  } catch {
    return false;
  }
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
const fromTerminal = process.platform === "win32" || hasTerminal() ? ["SIGINT", "SIGHUP"] : [];
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    if (!fromTerminal.includes(signal)) child.kill(signal);
  });
}
child.on("error", (error) => fail(`${program} cannot be started: ${error.message}`));
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  // End as the child did.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  setTimeout(() => process.exit(128 + os.constants.signals[signal]), 1000);
});
