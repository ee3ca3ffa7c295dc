"use strict";
// Draws the grid, and the sequence diagram of a cell when it is opened. Every text is set as text, never as markup.
(() => {
  const { wires, texts, facts: statements, cells: rows } = JSON.parse(document.getElementById("data").textContent);
  const WORDS = ["held", "broke", "not asked", "unsure"];
  const ANSWERS = ["yes", "no", "not asked", "unsure", "no"];
  const frames = (trace) => trace.map((at) => (at < 0 ? { sent: false, text: texts[-1 - at] } : { sent: true, text: texts[at] }));
  const cells = rows.map(([dialect, wire, scenario, outcome, why, cancel, sources, trace, calls]) => ({
    dialect: texts[dialect], wire: wires[wire], column: wire, scenario: texts[scenario], outcome, why: texts[why], cancel,
    sources: sources.map((at) => texts[at]), calls: calls === 1,
    trace: frames(trace),
  }));

  const byId = (id) => document.getElementById(id);
  const make = (name, { text, className, ...rest } = {}, ...children) => {
    const element = Object.assign(document.createElement(name), rest);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    element.append(...children);
    return element;
  };

  // A block for each dialect, a row for each scenario, a column for each wire.
  const blocks = new Map();
  for (const cell of cells) {
    if (!blocks.has(cell.dialect)) blocks.set(cell.dialect, new Map());
    const block = blocks.get(cell.dialect);
    if (!block.has(cell.scenario)) block.set(cell.scenario, []);
    block.get(cell.scenario)[cell.column] = cell;
  }

  const time = (micros) => (micros < 10_000 ? `${micros} µs` : `${(micros / 1000).toFixed(1)} ms`);
  const shown = (cell) => {
    if (cell.outcome === 0) return cell.cancel === null ? "held" : time(cell.cancel);
    return cell.outcome === 1 ? "BROKE" : WORDS[cell.outcome];
  };

  // What the peer does, before the scenarios. Each answer opens its frames.
  byId("facts").hidden = statements.length === 0;
  for (const [statement, answer, demand, detail, source, trace] of statements) {
    const fact = {
      title: `${texts[statement]}: ${ANSWERS[answer]} (${texts[demand]})`, why: texts[detail], cancel: null, sources: [texts[source]],
      trace: frames(trace), calls: false, wire: wires[0], scenario: texts[statement],
    };
    const made = make("button", { type: "button", text: ANSWERS[answer], className: `cell outcome-${answer}` });
    made.setAttribute("aria-label", fact.title);
    made.addEventListener("click", () => open(fact));
    fact.button = made;
    const told = texts[detail] === "" ? texts[statement] : `${texts[statement]}: ${texts[detail]}`;
    byId("facts").querySelector("ul").append(make("li", {}, made, told));
  }

  // Where a long name may be broken: behind an underscore or a colon, and before the `>` of a bridge.
  const broken = (name) => name.split(/(?<=[_:])|(?=>)/).flatMap((part) => [part, make("wbr")]);

  const button = (cell) => {
    const label = `${cell.dialect} ${cell.scenario} over ${cell.wire}: ${WORDS[cell.outcome]}`;
    const made = make("button", { type: "button", text: shown(cell), className: `cell outcome-${cell.outcome}` });
    made.setAttribute("aria-label", cell.cancel === null ? label : `${label}, ${cell.cancel} microseconds`);
    made.title = cell.why || label;
    made.addEventListener("click", () => open(cell));
    cell.button = made;
    return made;
  };

  for (const [dialect, block] of blocks) {
    const head = make("tr", {}, make("th", { text: "scenario", scope: "col" }), ...wires.map((wire) => make("th", { scope: "col" }, ...broken(wire))));
    const body = make("tbody");
    for (const [scenario, row] of [...block].sort(([a], [b]) => (a < b ? -1 : 1))) {
      const line = make("tr", {}, make("th", { scope: "row" }, ...broken(scenario)));
      wires.forEach((_, column) => line.append(make("td", {}, ...(row[column] ? [button(row[column])] : []))));
      line.dataset.scenario = scenario;
      line.row = row;
      body.append(line);
    }
    byId("grid").append(make("table", {}, make("caption", { text: dialect }), make("thead", {}, head), body));
  }

  const lines = [...document.querySelectorAll("tbody tr")];
  const filter = () => {
    const name = byId("name").value.trim();
    const outcome = byId("outcome").value;
    for (const line of lines) {
      const named = line.dataset.scenario.includes(name);
      line.hidden = !(named && (outcome === "" || line.row.some((cell) => cell && String(cell.outcome) === outcome)));
    }
    for (const table of document.querySelectorAll("table")) table.hidden = [...table.querySelectorAll("tbody tr")].every((line) => line.hidden);
  };
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());

  byId("grid").addEventListener("keydown", (event) => {
    const place = event.target.closest("td");
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!place || !step) return;
    const visible = lines.filter((line) => !line.hidden);
    const line = visible[visible.indexOf(place.parentElement) + step[0]];
    const next = line?.children[place.cellIndex + step[1]]?.querySelector("button");
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });

  const detail = byId("detail");
  let current;
  const open = (cell) => {
    current = cell;
    byId("detail-title").textContent = cell.title ?? `${cell.dialect}: ${cell.scenario} over ${cell.wire}, ${WORDS[cell.outcome]}`;
    const latency = cell.cancel === null ? "" : `From the cancel to what showed that it had worked: ${time(cell.cancel)}.`;
    byId("detail-why").textContent = [cell.why, latency].filter(Boolean).join(" ");
    byId("diagram").replaceChildren(diagram(cell));
    const [sentence, ...covered] = cell.sources;
    byId("sources").replaceChildren(...[sentence, covered.join(", ")].filter(Boolean).map((text) => make("li", { text })));
    byId("in-full").hidden = cell.trace.length === 0;
    byId("frames").replaceChildren(
      ...cell.trace.map(({ sent, text }) => make("li", {}, make("span", { className: "way", text: sent ? "sent " : "received " }), text)),
    );
    if (!detail.open) detail.showModal();
  };
  byId("close").addEventListener("click", () => detail.close());
  detail.addEventListener("close", () => current?.button.focus());
  detail.addEventListener("click", (event) => event.target === detail && detail.close());
  detail.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || current.title) return;
    const row = blocks.get(current.dialect).get(current.scenario);
    for (let column = current.column + step; column >= 0 && column < wires.length; column += step) {
      if (row[column]) return open(row[column]);
    }
  });

  const SVG = "http://www.w3.org/2000/svg";
  const draw = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const ROW = 36;
  // As wide as the window lets it be, so that a small one shows less of a frame and not smaller letters.
  let WIDTH, LEFT, RIGHT, LONGEST;
  const measure = () => {
    WIDTH = Math.max(300, Math.min(860, Math.floor(window.innerWidth * 0.96) - 40));
    LEFT = WIDTH < 600 ? 46 : 110;
    RIGHT = WIDTH - LEFT;
    LONGEST = Math.floor((RIGHT - LEFT - 10) / 7.3);
  };

  const short = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

  /** What a frame says, in a few words: the shapes of JSON-RPC and of ABP; all else as it is. */
  const said = (text) => {
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      // The runner's own words, as where closing a stream is the cancel.
      return { label: short(text), cancel: /^\(.*cancel/.test(text) };
    }
    if (Array.isArray(frame)) return { label: short(`a batch of ${frame.length}: ${text}`), cancel: false };
    if (frame === null || typeof frame !== "object") return { label: short(text), cancel: false };
    const id = "id" in frame ? ` #${JSON.stringify(frame.id)}` : "";
    const name = frame.method ?? frame.type;
    const cancel = typeof name === "string" && /cancel/i.test(name);
    const body = frame.params ?? frame.payload;
    const inside = body === undefined ? "" : ` ${JSON.stringify(body)}`;
    if (name !== undefined) return { label: short(`${name}${id}${inside}`), cancel };
    if ("error" in frame) return { label: short(`error${id} ${frame.error?.code ?? ""} ${frame.error?.message ?? ""}`), cancel: frame.error?.code === -32800 };
    if ("result" in frame) return { label: short(`result${id} ${JSON.stringify(frame.result)}`), cancel: false };
    return { label: short(text), cancel: false };
  };

  const diagram = (cell) => {
    measure();
    const height = 60 + Math.max(1, cell.trace.length) * ROW;
    const [near, far] = cell.calls ? ["the scenario", "our caller"] : ["the scenario", "who serves"];
    const title = `What went over ${cell.wire} in ${cell.scenario}`;
    const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": title });
    const who = (x, name) => {
      const text = draw("text", { x, y: 20, "text-anchor": "middle", class: "who" }, name);
      svg.append(text, draw("line", { x1: x, x2: x, y1: 30, y2: height - 10, class: "life" }));
    };
    who(LEFT, near);
    who(RIGHT, far);
    if (cell.trace.length === 0) {
      svg.append(draw("text", { x: WIDTH / 2, y: 62, "text-anchor": "middle" }, "nothing went over this wire"));
    }
    cell.trace.forEach(({ sent, text }, at) => {
      const y = 62 + at * ROW;
      const { label, cancel } = said(text);
      const [from, to, tip] = sent ? [LEFT, RIGHT, RIGHT - 9] : [RIGHT, LEFT, LEFT + 9];
      svg.append(
        draw(
          "g",
          { class: cancel ? "frame cancel" : "frame" },
          draw("title", {}, text),
          draw("text", { x: LEFT - 14, y: y + 4, "text-anchor": "end", class: "number" }, String(at + 1)),
          draw("text", { x: WIDTH / 2, y: y - 6, "text-anchor": "middle" }, label),
          draw("line", { x1: from, x2: to, y1: y, y2: y, class: "arrow" }),
          draw("polygon", { points: `${to},${y} ${tip},${y - 5} ${tip},${y + 5}`, class: "head" }),
        ),
      );
    });
    return svg;
  };
})();
