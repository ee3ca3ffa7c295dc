// Headless Chromium for as long as something is done with it. It comes with an npm package, whose file is unpacked to a
// folder of this run.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

export async function withChromium(use, more = []) {
  const folder = await mkdtemp(join(tmpdir(), "rescind-browser-"));
  // The package unpacks to the temporary folder, which is read when it is loaded.
  process.env.TMPDIR = folder;
  let browser;
  try {
    const { default: chromium } = await import("@sparticuz/chromium");
    const { default: puppeteer } = await import("puppeteer-core");
    chromium.setGraphicsMode = false;
    browser = await puppeteer.launch({
      executablePath: await chromium.executablePath(),
      // It opens pages of this repository only, and runs as root where a container has no other user.
      // Each run has a profile of its own, which is removed with the folder.
      args: [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        `--user-data-dir=${join(folder, "profile")}`,
        ...more,
      ],
      headless: "shell",
      pipe: true,
    });
    return await use(browser);
  } finally {
    await browser?.close();
    await rm(folder, { recursive: true, force: true });
  }
}
