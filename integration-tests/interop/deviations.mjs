// Compares the deviations that `rescind check --json` found, scenarios and facts, with the [deviations] of the profile it ran
// with. They must be the same: a new one fails, and so does a known one that no longer shows.
//   node deviations.mjs PROFILE.toml REPORT.json EXIT_CODE
// Exit codes: 0 the same, 1 not, 2 wrong usage.

import { readFileSync } from "node:fs";

const [profile, report, exitCode] = process.argv.slice(2);
if (exitCode === undefined) {
  console.error("usage: node deviations.mjs PROFILE.toml REPORT.json EXIT_CODE");
  process.exit(2);
}

/** The table [deviations] of a profile; its values are basic strings, which JSON reads alike. */
function deviations(text) {
  const known = new Map();
  let inside = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("[")) inside = line.trim() === "[deviations]";
    const entry = inside && /^(\w+)\s*=\s*(".*")\s*$/.exec(line);
    if (entry) known.set(entry[1], JSON.parse(entry[2]));
  }
  return known;
}

const known = deviations(readFileSync(profile, "utf8"));
const { facts, cells, summary } = JSON.parse(readFileSync(report, "utf8"));
// A scenario deviates if it broke, or if it differed from what the documents recommend or leave open, which is unsure.
const deviating = cells.filter((cell) => cell.outcome === "broke" || cell.outcome === "unsure");
const faults = [];
for (const { scenario, why } of deviating) {
  if (!known.has(scenario)) faults.push(`${scenario} is no known deviation: ${why}`);
  else if (!why.includes(known.get(scenario))) faults.push(`${scenario}: the report does not say the known deviation: ${why}`);
}
const refused = facts.filter((fact) => fact.answer === "no");
for (const { name, statement, detail } of refused) {
  if (!known.has(name)) faults.push(`${name} is no known deviation: ${statement}: no, ${detail}`);
}
// What a wire cannot be asked (the end of the input alone, over a WebSocket) cannot show there.
// What is asked of nobody is no deviation of anybody's.
const isOurs = (cell) => cell.why.startsWith("the documents leave open");
const notAsked = new Set(cells.filter((cell) => cell.outcome === "not-asked" && !isOurs(cell)).map((cell) => cell.scenario));
const shown = new Set([...deviating.map((cell) => cell.scenario), ...refused.map((fact) => fact.name)]);
for (const name of known.keys()) {
  if (!notAsked.has(name) && !shown.has(name)) faults.push(`${name} is a known deviation and did not show`);
}
if (cells.length === 0 || summary.held === 0) faults.push("nothing held");
const expected = summary.broke + summary.faults === 0 ? 0 : 1;
if (Number(exitCode) !== expected) faults.push(`the exit code is ${exitCode} and should be ${expected}`);

for (const fault of faults) console.log(fault);
const yes = facts.filter((fact) => fact.answer === "yes").length;
const unsure = facts.filter((fact) => fact.answer === "unsure").map((fact) => fact.name);
if (unsure.length > 0) console.log(`unsure facts: ${unsure.join(", ")}`);
const { held, broke, not_asked } = summary;
console.log(
  `${yes} facts yes, ${refused.length} no; ${held} scenarios held, ${broke} broke, ${summary.unsure} differ without a fault ` +
    `(${known.size} known deviations), ${not_asked} not asked`,
);
process.exitCode = faults.length === 0 ? 0 : 1;
