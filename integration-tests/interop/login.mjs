// Logins of a bridge at servers that Rescind's authors did not write: the MCP server of @modelcontextprotocol/sdk with the
// SDK's check of tokens, and oidc-provider as its authorization server, on another port. Tokens live for 4 s.
//   node login.mjs -- RESCIND
// It prints a line for each step and a JSON summary. Exit code: 0 if all steps hold.

import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { getOAuthProtectedResourceMetadataUrl, mcpAuthMetadataRouter } from "@modelcontextprotocol/sdk/server/auth/router.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ReadBuffer, serializeMessage } from "@modelcontextprotocol/sdk/shared/stdio.js";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { Provider } from "oidc-provider";
import { PipeTransport } from "./mcp-pipe.mjs";

const rescind = process.argv[3];
if (process.argv[2] !== "--" || !rescind) {
  console.error("usage: node login.mjs -- RESCIND");
  process.exit(2);
}

const TOKEN_S = 4;
const RENEWALS = 3;
const CALLERS = 8;
const grants = { authorization_code: 0, refresh_token: 0 };
const secrets = new Set();
let revoked = 0;
let failed = 0;

const listen = (server) => new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${server.address().port}`)));

/** The authorization server. Its origin must be known before it is made. */
async function authorizationServer(resource) {
  let answer;
  const http = createServer((request, response) => answer(request, response));
  const issuer = await listen(http);
  const provider = new Provider(issuer, {
    scopes: ["read"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: (context, client) => client.grantTypeAllowed("refresh_token"),
    ttl: { AccessToken: TOKEN_S },
    features: {
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: () => ({ scope: "read", audience: resource(), accessTokenTTL: TOKEN_S, accessTokenFormat: "opaque" }),
      },
    },
  });
  provider.on("grant.success", (context) => {
    grants[context.oidc.params.grant_type] += 1;
    for (const name of ["access_token", "refresh_token"]) secrets.add(context.body[name]);
    for (const name of ["code", "code_verifier"]) if (context.oidc.params[name]) secrets.add(context.oidc.params[name]);
  });
  provider.on("grant.error", (context, error) => step(`a token request is right: ${error.message}`, false));
  provider.on("grant.revoked", () => (revoked += 1));
  answer = provider.callback();
  return { issuer, provider };
}

/** The MCP server, as the SDK's documentation shows it. */
async function protectedServer() {
  let answer;
  const http = createServer((request, response) => answer(request, response));
  const url = new URL("/mcp", await listen(http));
  const { issuer, provider } = await authorizationServer(() => url.href);
  const metadata = await (await fetch(`${issuer}/.well-known/oauth-authorization-server`)).json();
  const verifier = {
    async verifyAccessToken(token) {
      const found = await provider.AccessToken.find(token);
      if (!found || found.isExpired || found.aud !== url.href) throw new InvalidTokenError("unknown token");
      return { token, clientId: found.clientId, scopes: found.scope.split(" "), expiresAt: found.exp };
    },
  };
  const app = createMcpExpressApp();
  app.use(mcpAuthMetadataRouter({ oauthMetadata: metadata, resourceServerUrl: url, scopesSupported: ["read"] }));
  const resourceMetadataUrl = getOAuthProtectedResourceMetadataUrl(url);
  app.all("/mcp", requireBearerAuth({ verifier, requiredScopes: ["read"], resourceMetadataUrl }), async (request, response) => {
    const server = new McpServer({ name: "protected", version: "0.0.0" });
    server.registerTool("wait", {}, async () => {
      await new Promise((resolve) => setTimeout(resolve, 100));
      return { content: [{ type: "text", text: "waited" }] };
    });
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    await server.connect(transport);
    await transport.handleRequest(request, response, request.body);
  });
  answer = app;
  return url.href;
}

const folder = mkdtempSync(join(tmpdir(), "rescind-login-"));
const children = [];
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});
const env = { ...process.env, XDG_STATE_HOME: folder };
const words = ["bridge", "--dialect", "mcp", "--listen", "stdio"];
let written = "";

/** A bridge with a client of the SDK on its stdio. */
async function connect(browser, url) {
  const bridge = spawn(rescind, ["-vv", ...words, "--browser", browser, url], { env, stdio: ["pipe", "pipe", "pipe"] });
  children.push(bridge);
  bridge.stderr.on("data", (data) => (written += data));
  const client = new Client({ name: "login", version: "0.0.0" }, { capabilities: {} });
  await client.connect(new PipeTransport(bridge, new ReadBuffer(), serializeMessage));
  return client;
}

function step(what, ok, more = {}) {
  failed += ok ? 0 : 1;
  console.log(JSON.stringify({ step: what, ok, ...more }));
}

const url = await protectedServer();
const browser = `${process.execPath} ${new URL("login-browser.mjs", import.meta.url).pathname}`;
const first = await connect(browser, url);
step("a bridge logs in", grants.authorization_code === 1);
const logins = join(folder, "rescind", "logins");
const modes = readdirSync(logins).map((name) => statSync(join(logins, name)).mode & 0o777);
step("its files are private", modes.length > 0 && modes.every((mode) => mode === 0o600));
// It has no browser, and needs none.
const second = await connect("none", url);
let calls = 0;
const lost = [];
const call = async (client) => {
  while (grants.refresh_token < RENEWALS) {
    const answer = await client.callTool({ name: "wait" }).catch((error) => lost.push(error.message));
    calls += answer.content?.[0].text === "waited" ? 1 : 0;
  }
};
await Promise.all(Array.from({ length: CALLERS }, (_, at) => call(at % 2 ? first : second)));
step("two bridges renew one token under running calls, and none is lost", lost.length === 0 && calls > CALLERS, { calls, lost: lost.slice(0, 3) });
step("the second bridge needs no login", grants.authorization_code === 1, grants);
await Promise.all([first.close(), second.close()]);
const logout = await run([...words, "--logout", url]);
step("a logout revokes the login", logout.code === 0 && / deleted and revoked/.test(logout.said) && revoked > 0, { said: logout.said.trim() });
const refused = await connect("none", url).catch((error) => error.message);
step("the next bridge has to log in", typeof refused === "string" && / open http:\S+\/auth\?/.test(refused));
const files = readdirSync(logins).map((name) => readFileSync(join(logins, name), "utf8")).join();
const shown = [...secrets].filter((secret) => (written + refused + files).includes(secret));
step("no code and no token is in logs, errors or files that are left", secrets.size > 5 && shown.length === 0, { secrets: secrets.size });
console.log(JSON.stringify({ summary: { failed, calls, grants } }));
process.exit(failed === 0 ? 0 : 1);

/** Runs the command, while the servers of this process answer. */
function run(args) {
  return new Promise((resolve) => {
    const child = spawn(rescind, args, { env, stdio: ["ignore", "ignore", "pipe"] });
    children.push(child);
    let said = "";
    child.stderr.on("data", (data) => (said += data));
    child.on("exit", (code) => resolve({ code, said }));
  });
}
