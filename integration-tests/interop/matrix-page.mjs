// The page of `rescind matrix --html`, in headless Chromium, against the JSON of the same run: a click on a cell must show
// the sequence diagram of exactly that cell.
//   node matrix-page.mjs PAGE.html REPORT.json [SCREENSHOTS-DIR]

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { withChromium } from "./chromium.mjs";

const [file, json, pictures] = process.argv.slice(2);
if (!json) {
  console.error("usage: node matrix-page.mjs PAGE.html REPORT.json [SCREENSHOTS-DIR]");
  process.exit(2);
}

const WORDS = { held: "held", broke: "broke", "not-asked": "not asked" };
const WINDOWS = [
  { name: "desk-light", width: 1280, height: 900, scheme: "light" },
  { name: "desk-dark", width: 1280, height: 900, scheme: "dark" },
  { name: "phone-light", width: 390, height: 844, scheme: "light" },
];

const url = pathToFileURL(resolve(file)).href;
const { cells, summary } = JSON.parse(await readFile(json, "utf8"));
const titled = (cell) => `${cell.dialect}: ${cell.scenario} over ${cell.wire}, ${WORDS[cell.outcome]}`;
const heading = (cell) => `${cell.dialect} ${cell.scenario} over ${cell.wire}: ${WORDS[cell.outcome]}`;

/** One cell of each wire that something went over, and one that was not asked. */
const chosen = [...new Set(cells.map((cell) => cell.wire))].map((wire) => cells.findLast((cell) => cell.wire === wire && cell.trace.length > 0));
chosen.push(cells.find((cell) => cell.outcome === "not-asked"));
assert.ok(chosen.length > 2 && chosen.every(Boolean), "the report has a wire with nothing to show, or no cell that was not asked");

/** The button of a cell, found by what a screen reader says of it. */
async function buttonOf(page, cell) {
  const found = [];
  for (const button of await page.$$("td button")) {
    const label = await button.evaluate((element) => element.getAttribute("aria-label"));
    if (label === heading(cell) || label.startsWith(`${heading(cell)},`)) found.push(button);
  }
  assert.equal(found.length, 1, `the page has one button for: ${heading(cell)}`);
  // Out from behind the names, which stay in place.
  await found[0].evaluate((element) => element.scrollIntoView({ block: "center", inline: "center" }));
  return found[0];
}

/** What is open, read from what is drawn. */
const opened = (page) =>
  page.evaluate(() => {
    const dialog = document.querySelector("dialog");
    const line = (frame) => frame.querySelector("line.arrow");
    const x = (frame, at) => line(frame).getAttribute(at);
    const { left, right } = dialog.getBoundingClientRect();
    return {
      open: dialog.open,
      title: document.querySelector("#detail-title").textContent,
      why: document.querySelector("#detail-why").textContent,
      diagrams: dialog.querySelectorAll("svg").length,
      frames: [...dialog.querySelectorAll("svg g.frame")].map((frame) => ({
        direction: Number(x(frame, "x1")) < Number(x(frame, "x2")) ? "sent" : "received",
        text: frame.querySelector("title").textContent,
      })),
      labels: [...dialog.querySelectorAll("svg g.frame")].map((frame) => frame.querySelectorAll("text")[1].textContent),
      letters: dialog.querySelector("svg text")?.getBoundingClientRect().height,
      inside: left >= 0 && right <= window.innerWidth,
    };
  });

/** The page cuts what is very long. */
const cut = (text) => ([...text].length > 2000 ? `${[...text].slice(0, 2000).join("")}... (${Buffer.byteLength(text)} bytes in all)` : text);

function shows(seen, cell, where) {
  assert.ok(seen.open, `${where}: it is open`);
  assert.equal(seen.title, titled(cell), where);
  assert.equal(seen.diagrams, 1, where);
  assert.deepEqual(seen.frames, cell.trace.map(({ direction, text }) => ({ direction, text: cut(text) })), `${where}: ${titled(cell)}`);
  assert.ok(seen.labels.every((label) => label.trim() !== ""), `${where}: each arrow says something`);
  assert.ok(seen.why.includes(cell.why), where);
  assert.ok(seen.letters >= 9, `${where}: letters ${seen.letters} px high can be read`);
  assert.ok(seen.inside, `${where}: the diagram's window lies inside the browser's`);
}

const complaints = [];
const requested = [];
let clicks = 0;

async function look(browser, { name, width, height, scheme }) {
  const page = await browser.newPage();
  page.on("console", (message) => complaints.push(`${name}: ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => complaints.push(`${name}: ${error.message}`));
  page.on("requestfailed", (request) => complaints.push(`${name}: ${request.url()} could not be had`));
  page.on("request", (request) => requested.push(request.url()));
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(url);
  const picture = async (of) => pictures && (await page.screenshot({ path: join(pictures, `${name}-${of}.png`) }));
  await picture("grid");

  const buttons = await page.$$eval("td button", (all) => all.length);
  assert.equal(buttons, cells.length, `${name}: a button a cell`);
  const told = await page.$eval("#summary", (element) => element.textContent);
  assert.equal(told, `${cells.length} cells: ${summary.held} held, ${summary.broke} broke, ${summary.unsure} unsure, ${summary.not_asked} not asked`);
  assert.equal((await opened(page)).open, false, `${name}: nothing is open at first`);

  for (const cell of chosen) {
    await (await buttonOf(page, cell)).click();
    clicks += 1;
    shows(await opened(page), cell, name);
    await picture(cell.trace.length > 0 ? cell.wire : "not-asked");
    await page.click("#close");
    assert.equal((await opened(page)).open, false, `${name}: it is closed`);
  }

  // The same by keyboard: Enter opens, the arrow goes to the next wire, Escape closes, and the focus is at the cell that was last open.
  const [first] = chosen;
  const row = cells.filter((cell) => cell.dialect === first.dialect && cell.scenario === first.scenario);
  const next = row[row.indexOf(first) + 1];
  await (await buttonOf(page, first)).focus();
  await page.keyboard.press("Enter");
  shows(await opened(page), first, `${name}, by keyboard`);
  await page.keyboard.press("ArrowRight");
  shows(await opened(page), next, `${name}, the next wire`);
  await page.keyboard.press("Escape");
  assert.equal((await opened(page)).open, false, `${name}: Escape closes it`);
  await page.waitForFunction((label) => document.activeElement.getAttribute("aria-label")?.startsWith(label), { timeout: 5_000 }, heading(next));

  // Only what is asked for is shown.
  await page.type("#name", first.scenario);
  const rows = await page.$$eval("tbody tr", (all) => all.filter((row) => !row.hidden).map((row) => row.dataset.scenario));
  assert.ok(rows.length > 0 && rows.every((scenario) => scenario.includes(first.scenario)), `${name}: ${rows}`);
  await page.close();
}

let code = 0;
try {
  await withChromium(async (browser) => {
    for (const window of WINDOWS) await look(browser, window);
  });
  assert.deepEqual(complaints, [], "the page complains of nothing");
  assert.deepEqual([...new Set(requested)], [url], "the page asks nothing of anyone");
  console.log(`${cells.length} cells, ${clicks} clicked in ${WINDOWS.length} windows: each showed its own diagram`);
} catch (error) {
  console.error(`matrix-page: ${error.message}`);
  code = 1;
}
process.exit(code);
