// The browser of a login at login.mjs: opens the address given, signs in and agrees in the forms of the authorization
// server, and follows it to the redirect of the bridge.
//   node login-browser.mjs ADDRESS

const cookies = new Map();

async function open(url, form) {
  const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
  const body = form && new URLSearchParams(form);
  const response = await fetch(url, { method: form ? "POST" : "GET", body, headers, redirect: "manual" });
  for (const cookie of response.headers.getSetCookie()) {
    const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
    cookies.set(name, value);
  }
  return response;
}

let url = process.argv[2];
let response = await open(url);
// A login and a consent take some ten steps.
for (let step = 0; step < 20; step += 1) {
  const location = response.headers.get("location");
  if (location) {
    url = new URL(location, url).href;
    response = await open(url);
    continue;
  }
  const page = await response.text();
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${page}`);
  const [, action] = /<form[^>]* action="([^"]+)"/.exec(page) ?? [];
  // The page of the bridge has none.
  if (!action) process.exit(0);
  const [, prompt] = /name="prompt" value="([^"]+)"/.exec(page);
  url = new URL(action, url).href;
  response = await open(url, prompt === "login" ? { prompt, login: "someone", password: "anything" } : { prompt });
}
throw new Error(`the login does not end; it is at ${url}`);
