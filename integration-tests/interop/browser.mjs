// Opens a page in headless Chromium and keeps it open until the end of the input. What the page prints goes to stderr. The
// hosts are this machine to the browser.
//   node browser.mjs URL [HOST...]

import { withChromium } from "./chromium.mjs";

const [url, ...hosts] = process.argv.slice(2);
if (!url) {
  console.error("usage: node browser.mjs URL [HOST...]");
  process.exit(2);
}

const rules = hosts.map((host) => `MAP ${host} 127.0.0.1`).join(",");
let code = 0;
try {
  await withChromium(async (browser) => {
    const page = await browser.newPage();
    page.on("console", (message) => console.error(`page: ${message.text()}`));
    page.on("pageerror", (error) => console.error(`page: ${error.message}`));
    await page.goto(url);
    await new Promise((resolve) => process.stdin.on("end", resolve).on("error", resolve).resume());
  }, rules ? [`--host-resolver-rules=${rules}`] : []);
} catch (error) {
  console.error(`browser: ${error.message}`);
  code = 1;
}
process.exit(code);
