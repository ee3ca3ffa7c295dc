// A picture of the live page, for the documentation.
//   node page-picture.mjs URL FILE.png [dark] [phone]

import { withChromium } from "./chromium.mjs";

const [url, file, ...how] = process.argv.slice(2);
if (!url || !file) {
  console.error("usage: node page-picture.mjs URL FILE.png [dark] [phone]");
  process.exit(2);
}
await withChromium(async (browser) => {
  const page = await browser.newPage();
  const phone = how.includes("phone");
  await page.setViewport({ width: phone ? 390 : 1180, height: phone ? 844 : 1180, deviceScaleFactor: phone ? 2 : 1, isMobile: phone, hasTouch: phone });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: how.includes("dark") ? "dark" : "light" }]);
  page.on("console", (message) => console.error(`page: ${message.text()}`));
  page.on("pageerror", (error) => console.error(`page: ${error.message}`));
  await page.goto(url);
  await page.waitForSelector("#running tbody button:not([hidden])");
  // One request that was stopped and has ended, and one that was stopped just now.
  for (const wait of [2000, 500]) {
    await page.click("#running tbody button:not([hidden])");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  await page.screenshot({ path: file });
});
