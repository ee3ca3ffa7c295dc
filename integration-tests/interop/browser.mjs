// Opens a page in headless Chromium and keeps it open until the end of the input. What the page prints goes to stderr.
//   node browser.mjs URL
// Chromium comes with an npm package, whose file is unpacked to a folder of this run.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [url] = process.argv.slice(2);
if (!url) {
  console.error("usage: node browser.mjs URL");
  process.exit(2);
}

const folder = await mkdtemp(join(tmpdir(), "rescind-browser-"));
// The package unpacks to the temporary folder, which is read when it is loaded.
process.env.TMPDIR = folder;
const { default: chromium } = await import("@sparticuz/chromium");
const { default: puppeteer } = await import("puppeteer-core");

let code = 0;
let browser;
try {
  chromium.setGraphicsMode = false;
  browser = await puppeteer.launch({
    executablePath: await chromium.executablePath(),
    // It opens pages of this repository only, and runs as root where a container has no other user.
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
    headless: "shell",
    pipe: true,
  });
  const page = await browser.newPage();
  page.on("console", (message) => console.error(`page: ${message.text()}`));
  page.on("pageerror", (error) => console.error(`page: ${error.message}`));
  await page.goto(url);
  await new Promise((resolve) => process.stdin.on("end", resolve).on("error", resolve).resume());
} catch (error) {
  console.error(`browser: ${error.message}`);
  code = 1;
} finally {
  await browser?.close();
  await rm(folder, { recursive: true, force: true });
}
process.exit(code);
