// The live page in headless Chromium: a request is seen, found by its method, stopped by a click, and seen among those
// that ended. A method that is HTML stays text. Exit code 0: everything was as it must be.
//   node live-page.mjs URL METHOD-TO-STOP

import { withChromium } from "./chromium.mjs";

const [url, method] = process.argv.slice(2);
if (!url || !method) {
  console.error("usage: node live-page.mjs URL METHOD-TO-STOP");
  process.exit(2);
}

const must = (holds, what) => {
  if (!holds) throw new Error(`it does not hold: ${what}`);
};

// The texts of the rows that have this method, in the table of this id.
const rowsOf = (page, table, wanted) => page.evaluate((table, wanted) => {
  const rows = [...document.getElementById(table).tBodies[0].rows];
  return rows.filter((row) => row.querySelector(".method").textContent === wanted).map((row) => row.innerText);
}, table, wanted);

const until = (page, table, wanted, there) => page.waitForFunction((table, wanted, there) => {
  const methods = [...document.querySelectorAll(`#${table} .method`)].map((method) => method.textContent);
  return methods.includes(wanted) === there;
}, {}, table, wanted, there);

const check = async (browser, viewport) => {
  const page = await browser.newPage();
  const faults = [];
  page.on("dialog", (dialog) => { faults.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (message) => { if (message.type() === "error" || message.type() === "warn") faults.push(message.text()); });
  page.on("request", (request) => { if (!request.url().startsWith(new URL(url).origin) && !request.url().startsWith("data:")) faults.push(`it loads ${request.url()}`); });
  await page.setViewport(viewport);
  await page.goto(url);
  await until(page, "running", method, true);
  return { page, faults };
};

try {
  await withChromium(async (browser) => {
    const wide = { width: 1180, height: 900 };
    const phone = { width: 390, height: 844, isMobile: true, hasTouch: true };
    const { page, faults } = await check(browser, wide);
    const other = await check(browser, phone);

    must((await rowsOf(page, "running", method)).some((row) => /running/.test(row)), "the request runs");
    // The peer's method is text: no element came of it, and no script of it has run.
    const hostile = await page.evaluate(() => document.querySelectorAll("img, iframe, script:not([nonce])").length);
    must(hostile === 0, "no element was made of a text");
    const html = await page.$$eval("#ended .method", (nodes) => nodes.map((node) => node.textContent));
    must(html.some((text) => text.includes("<img src=x onerror=")), `the method that is HTML is shown as text: ${html}`);

    // The phone shows all without scrolling to the side, and its button is large enough for a finger.
    const size = await other.page.evaluate(() => {
      const button = document.querySelector("#running button:not([hidden])").getBoundingClientRect();
      return { over: document.documentElement.scrollWidth - innerWidth, height: button.height };
    });
    must(size.over <= 0 && size.height >= 40, `it fits a phone: ${JSON.stringify(size)}`);

    // The filter hides others. Escape ends it.
    await page.keyboard.press("/");
    await page.keyboard.type("no such request");
    await until(page, "running", method, false);
    await page.keyboard.press("Escape");
    await until(page, "running", method, true);

    // While it is paused nothing changes. The other viewer stops the request by a click.
    await page.keyboard.press("p");
    must((await page.$eval("#state", (node) => node.textContent)) === "paused", "it is paused");
    const button = await other.page.waitForSelector("#running button:not([hidden]):not([disabled])");
    await button.tap();
    await until(other.page, "running", method, false);
    await until(other.page, "ended", method, true);
    must((await rowsOf(page, "running", method)).length > 0, "a paused page keeps what it shows");
    await page.keyboard.press("p");
    await until(page, "running", method, false);
    await until(page, "ended", method, true);
    // Behind a bridge the call that passed it on has a row too.
    const stopped = (row) => /cancelled/.test(row) && /by an operator \(stopped on the live page\), ended .* later/.test(row);
    for (const shown of [page, other.page]) {
      const rows = await rowsOf(shown, "ended", method);
      must(rows.some(stopped), rows.join("; "));
    }
    must([...faults, ...other.faults].length === 0, [...faults, ...other.faults].join("; "));
  });
} catch (error) {
  console.error(`live-page: ${error.message}`);
  process.exit(1);
}
process.exit(0);
