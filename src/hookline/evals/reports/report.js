"use strict";
// The tasks of the report. Their rows are data in the page; a row is drawn when it is scrolled to, its detail when it is
// opened. Details are packed in chunks of deflated JSON, so that a page of 10,000 tasks stays small.

const BATCH = 100;
const data = JSON.parse(document.getElementById("rows").textContent);
const list = document.getElementById("list");
const controls = document.getElementById("controls");

const make = (tag, name = "", ...inner) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...inner.filter((each) => each !== null && each !== undefined && each !== ""));
  return element;
};
const count = (number, one, several = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : several}`;

const duration = (ms) => ms < 1 ? `${(ms * 1000).toFixed(0)} µs` : ms < 1000 ? `${ms.toPrecision(3)} ms` : ms < 120000 ? `${(ms / 1000).toFixed(2)} s` : `${(ms / 60000).toFixed(1)} min`;
const mark = (ms) => ms === 0 ? "0" : ms < 1 ? `${(ms * 1000).toPrecision(3)} µs` : ms < 999.5 ? `${+ms.toPrecision(3)} ms` : `${(ms / 1000).toFixed(2)} s`;
const money = (usd) => usd === null ? "unknown" : usd === 0 ? "–" : usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
const score = (value) => value === null ? "–" : value.toFixed(2);
const thousands = (number) => number === 0 ? "–" : number < 10000 ? number.toLocaleString("en", { maximumFractionDigits: 1 }) : `${(number / 1000).toFixed(0)}k`;

// Rows ---------------------------------------------------------------------------------------------------------------

const RESULTS = { passed: ["✓", "ok", "passed"], failed: ["✗", "no", "failed"], flaky: ["~", "flaky", "flaky"], differs: ["≠", "no", "differs"], "not judged": ["·", "dim", "not judged"] };
const COLUMNS = [
  ["score", "Score", (row) => score(row.score), (row) => row.score ?? 2],
  ["calls", "Calls", (row) => thousands(row.calls), (row) => -row.calls],
  ["cost", "Cost", (row) => money(row.cost), (row) => -(row.cost ?? 0)],
  ["tokens", "Tokens", (row) => thousands(row.tokens), (row) => -row.tokens],
  ["time", "Time", (row) => duration(row.ms), (row) => -row.ms],
];
const shownColumns = COLUMNS.filter(([name]) => (name !== "cost" || data.rows.some((row) => row.cost !== 0)) && (name !== "tokens" || data.rows.some((row) => row.tokens)));
document.documentElement.style.setProperty("--figures", shownColumns.length);

const headOf = () => {
  const head = make("div", "columns", make("span", ""), make("span", "", "Task"), make("span", "", "Prompt, or why it failed"));
  for (const [name, label] of shownColumns) head.append(make("span", `num ${name}`, label));
  head.setAttribute("aria-hidden", "true");
  return head;
};

const rowOf = (row) => {
  const [sign, kind, word] = RESULTS[row.result];
  const name = make("span", "name", row.task);
  name.title = `${row.suite}/${row.task}`;
  if (data.suites.length > 1) name.prepend(make("span", "dim", `${row.suite}/`));
  const badges = [];
  if (row.attempts > 1) badges.push(make("span", "badge", `${row.passed} of ${row.attempts}`));
  if (row.model && data.models.length > 1) badges.push(make("span", "badge", row.model));
  if (row.faults) badges.push(make("span", "badge fault", count(row.faults, "fault")));
  badges.push(...row.tags.map((tag) => make("span", "badge", tag)));
  const why = make("span", row.why ? "why" : "prompt", row.why || row.prompt);
  why.title = row.why || row.prompt;
  const result = make("span", `result ${kind}`, sign);
  result.append(make("span", "vh", ` ${word}`));
  const summary = make("summary", "", result, make("span", "title", name, ...badges), why);
  for (const [column, label, text] of shownColumns) {
    const figure = make("span", `num ${column}`, text(row));
    figure.dataset.label = label;
    summary.append(figure);
  }
  const task = make("details", `task ${kind}`, summary);
  task.id = `${row.suite}/${row.task}${row.model && data.models.length > 1 ? `@${row.model}` : ""}`;
  task.addEventListener("toggle", () => { if (task.open) open(task, row); });
  row.element = task;
  return task;
};

// Details ------------------------------------------------------------------------------------------------------------

const chunks = new Map();
const unpack = (number) => {
  if (!chunks.has(number)) chunks.set(number, (async () => {
    const packed = Uint8Array.from(atob(document.getElementById(`chunk-${number}`).textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  })());
  return chunks.get(number);
};

const open = async (task, row) => {
  if (task.dataset.drawn) return;
  task.dataset.drawn = "yes";
  const body = make("div", "detail", make("p", "dim", "Loading …"));
  task.append(body);
  try {
    const [number, place] = row.detail;
    body.replaceChildren(...detailOf((await unpack(number))[place]));
  } catch (error) {
    body.replaceChildren(make("p", "no", `The detail of this task cannot be shown: ${error}. A browser of 2023 or newer can show it.`));
  }
};

const detailOf = (detail) => {
  const found = [make("p", "asked", detail.prompt)];
  for (const each of detail.differences) found.push(differenceOf(each));
  const sides = detail.sides;
  if (sides.length < 3) found.push(make("div", "sides", ...sides.map((side) => sideOf(side, sides.length))));
  else found.push(...attemptsOf(sides));
  return found;
};

// Of many attempts those that failed come first, and each is drawn when it is opened.
const attemptsOf = (sides) => {
  const ordered = [...sides].sort((one, other) => (one.result === "failed" ? 0 : 1) - (other.result === "failed" ? 0 : 1));
  return ordered.map((side, place) => {
    const [sign, kind, word] = RESULTS[side.result];
    const names = [data.runs.length > 1 ? data.names[side.mode] : "", `Attempt ${side.attempt}`].filter(Boolean).join(" · ");
    const missed = side.why || side.checks.filter((check) => !check.passed).map((check) => check.name).join("; ");
    const attempt = make("details", "attempt", make("summary", "", make("span", kind, `${sign} ${word}`), " ", make("b", "", names), " ", make("span", "dim", missed)));
    attempt.addEventListener("toggle", () => { if (attempt.open && attempt.childElementCount < 2) attempt.append(sideOf(side, sides.length)); });
    attempt.open = place === 0;
    return attempt;
  });
};

const pairs = (name, entries) => {
  const dl = make("dl", name);
  for (const [term, value, kind] of entries) if (value !== "" && value !== null && value !== undefined) dl.append(make("dt", "", term), make("dd", kind ?? "", value));
  return dl;
};

const differenceOf = (each) => pairs("io differs", [["Differs", each.what, "no"], ["(a)", each.real || "(empty)", "mono"], ["(b)", each.replayed || "(empty)", "mono"]]);

const sideOf = (side, sides) => {
  const head = make("header", "");
  const names = [];
  if (data.runs.length > 1 || sides === 1) names.push(data.names[side.mode]);
  if (side.model) names.push(side.model);
  if (side.attempt > 1 || side.attempts > 1) names.push(`attempt ${side.attempt}`);
  head.append(make("h3", "", names.join(" · ")));
  const [sign, kind, word] = RESULTS[side.result];
  head.append(make("span", kind, `${sign} ${word}`));
  const figures = [count(side.steps, "step"), count(side.toolCalls, "call"), side.mocked ? `${side.mocked} mocked` : "", side.failed ? `${side.failed} failed` : "", side.forbidden ? `${side.forbidden} forbidden` : "",
    side.score === null ? "" : `score ${score(side.score)}`, side.cost ? money(side.cost) : "", side.otherCost ? `${money(side.otherCost)} for judges and simulated users` : "", side.tokens[0] + side.tokens[1] ? `${side.tokens[0].toLocaleString("en")} tokens in, ${side.tokens[1].toLocaleString("en")} out` : "",
    duration(side.ms), side.hooks ? `hooks ${duration(side.hookMs)}` : ""];
  head.append(make("span", "dim figures-line", figures.filter(Boolean).join(" · ")));
  const section = make("section", "side", head);
  if (side.why) section.append(make("p", "no reason", side.why));
  if (side.checks.length) section.append(make("ul", "checks", ...side.checks.map(checkOf)));
  if (side.turns.length) section.append(talkOf(side));
  section.append(...(side.timeline ? timelineOf(side) : conversationOf(side)));
  if (side.output && !side.turns.length) section.append(make("p", "said", side.output));
  return section;
};

const talkOf = (side) => {
  const talk = make("div", "talk");
  for (const turn of side.turns) {
    talk.append(make("p", "user", make("b", "", "User "), turn.user));
    if (turn.output) talk.append(make("p", "agent", make("b", "", "Agent "), turn.output));
  }
  if (side.conversationEnd) talk.append(make("p", "dim", side.conversationEnd));
  return talk;
};

const checkOf = (check) => {
  const [kind, sign] = !check.judged ? ["flaky", "?"] : check.passed ? ["ok", "✓"] : ["no", "✗"];
  const item = make("li", "", make("span", kind, sign), ` ${check.name}`);
  if (!check.judged) item.append(make("span", "dim", " not judged"));
  else if (check.judgement || (check.score > 0 && check.score < 1)) item.append(make("span", "dim", ` ${check.score.toFixed(2)}${check.judgement ? `, passes from ${check.judgement.threshold.toFixed(2)}` : ""}`));
  if (check.why) item.append(make("pre", "", check.why));
  for (const verdict of check.judgement?.verdicts ?? []) item.append(make("p", "verdict-of", make("b", "", verdict.model), ` ${verdict.score === null ? "no verdict" : verdict.score.toFixed(2)} `, make("span", "dim", verdict.reason)));
  return item;
};

const bar = (start, width, kind) => {
  const element = make("span", `bar ${kind}`);
  element.style.left = `min(${(100 * start).toFixed(2)}%, 100% - 3px)`;
  element.style.width = `${(100 * width).toFixed(2)}%`;
  return element;
};

const callParts = (call, status) => {
  const tags = [];
  if (call.outcome === "refused") tags.push(make("span", "tag bad", "refused"));
  else if (status === "denied") tags.push(make("span", "tag bad", "denied"));
  else {
    if (status !== "ok") tags.push(make("span", "tag bad", status));
    tags.push(call.outcome === "mocked" ? make("span", "tag mock", "mock") : make("span", "tag real", "real"));
  }
  if (call.stale) tags.push(make("span", "tag fault", "stale"));
  if (call.fault) tags.push(make("span", "tag fault", call.fault));
  return tags.flatMap((tag) => [tag, " "]);
};

const answeredBy = (call, status) => {
  if (call.outcome === "mocked" || call.outcome === "refused") {
    const origin = [call.by ? `by ${call.by}` : "", call.rule ? `rule ${call.rule}` : "", call.cassette ? `cassette ${call.cassette}` : "", call.recording ? `recording ${call.recording}` : ""];
    return `${origin.filter(Boolean).join(", ")}; the tool did not run`;
  }
  if (status === "denied") return `denied by ${call.by}; the tool did not run`;
  return call.rule ? `by the real tool, which rule ${call.rule} let run` : "by the real tool";
};

const callOf = (call, status, track, time) => {
  const what = make("span", "what", ...callParts(call, status), call.tool);
  what.title = call.tool;
  const io = pairs("io", [["arguments", call.args, "mono"], ["result", call.result, "mono"], ["answered", answeredBy(call, status)], ["stale", call.stale], ["fault", call.fault ? `${call.fault} injected${call.latencyMs ? `, took ${duration(call.latencyMs)}` : ""}` : ""]]);
  return make("details", "line", make("summary", "row", what, track, make("span", "num", time)), io);
};

// Without times: what the model said, and what it called.
const conversationOf = (side) => side.calls.map((call) => callOf(call, call.success ? "ok" : call.outcome === "refused" ? "refused" : "failed", make("span", ""), ""));

const timelineOf = (side) => {
  const total = Math.max(side.timeline.duration, 0.001);
  const axis = make("span", "track", ...[0, 50, 100].map((share) => {
    const label = make("i", "", mark(total * share / 100));
    label.style.left = `${share}%`;
    return label;
  }));
  const axisRow = make("div", "row axis", make("span", ""), axis, make("span", ""));
  axisRow.setAttribute("aria-hidden", "true");
  const found = [axisRow];
  let hooks = [];
  const flush = () => {
    if (hooks.length) found.push(hooksOf(hooks, total));
    hooks = [];
  };
  for (const each of side.timeline.bars) {
    if (each.kind === "hook") {
      hooks.push(each);
      continue;
    }
    if (each.kind === "step") flush();
    const place = [each.start / total, each.duration / total];
    const bad = each.status === "ok" ? "" : " bad";
    if (each.kind === "tool" && each.call !== undefined) {
      const call = side.calls[each.call];
      const line = callOf(call, each.status, make("span", "track", bar(...place, (call.outcome === "mocked" ? "mock" : "tool") + bad)), duration(each.duration));
      line.classList.add("in");
      found.push(line);
    } else {
      const tag = bad ? [make("span", "tag bad", each.status), " "] : [];
      const what = make("span", "what", ...tag, each.label, make("span", "dim", ` ${each.note}`));
      what.title = each.note;
      found.push(make("div", `row ${each.kind === "step" ? "step-row" : "in"}`, what, make("span", "track", bar(...place, (each.kind === "step" ? "step" : "part") + bad)), make("span", "num", duration(each.duration))));
    }
  }
  flush();
  if (side.timeline.leftOut) found.push(make("p", "dim", `${count(side.timeline.leftOut, "more bar")} are not kept, most of them of hooks.`));
  return found;
};

const hooksOf = (hooks, total) => {
  const time = hooks.reduce((sum, each) => sum + each.duration, 0);
  const ticks = make("span", "track", ...hooks.map((each) => bar(each.start / total, 0, `tick${each.status === "ok" || each.status === "mocked" ? "" : " bad"}`)));
  const line = make("details", "line in", make("summary", "row", make("span", "what", count(hooks.length, "hook execution")), ticks, make("span", "num", duration(time))));
  line.addEventListener("toggle", () => {
    if (line.childElementCount > 1) return;
    line.append(...hooks.map((each) => {
      const tag = each.status === "ok" ? [] : [make("span", `tag ${each.status === "mocked" ? "mock" : "bad"}`, each.status), " "];
      const what = make("span", "what", ...tag, each.label, make("span", "dim", ` ${each.note}`));
      what.title = `${each.label} on ${each.note}`;
      return make("div", "row in2", what, make("span", "track", bar(each.start / total, each.duration / total, "hook")), make("span", "num", duration(each.duration)));
    }));
  });
  return line;
};

// The list -----------------------------------------------------------------------------------------------------------

const field = (name) => controls.elements[name];
let shown = [];
let drawn = 0;

const drawMore = (most = BATCH) => {
  const until = Math.min(shown.length, drawn + most);
  const batch = document.createDocumentFragment();
  for (; drawn < until; drawn += 1) batch.append(shown[drawn].element ?? rowOf(shown[drawn]));
  list.append(batch);
  document.getElementById("more").hidden = drawn === shown.length;
};

const sift = () => {
  const text = field("text").value.trim().toLowerCase();
  const result = field("result").value;
  const wanted = ["suite", "model", "tag"].map((name) => field(name)?.value ?? "");
  shown = data.rows.filter((row) => (!text || row.text.includes(text))
    && (!result || (result === "failed" ? row.result !== "passed" && row.result !== "not judged" : row.result === result))
    && (!wanted[0] || row.suite === wanted[0]) && (!wanted[1] || row.model === wanted[1]) && (!wanted[2] || row.tags.includes(wanted[2])));
  const column = COLUMNS.find(([name]) => name === field("sort").value);
  if (column) shown.sort((one, other) => column[3](one) - column[3](other));
  list.replaceChildren(headOf());
  drawn = 0;
  drawMore();
  const total = data.rows.length;
  document.getElementById("count").textContent = shown.length === total ? count(total, "task") : `${shown.length.toLocaleString("en")} of ${count(total, "task")}`;
  document.getElementById("nothing").hidden = shown.length > 0 || total === 0;
};

for (const row of data.rows) row.text = `${row.suite}/${row.task}\n${row.prompt}\n${row.why}\n${row.tools}\n${row.tags.join("\n")}\n${row.model}`.toLowerCase();
controls.addEventListener("input", sift);
controls.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("close").addEventListener("click", () => { for (const task of list.querySelectorAll("details.task[open]")) task.open = false; });
document.getElementById("more").addEventListener("click", () => drawMore());
new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) drawMore(); }, { rootMargin: "600px" }).observe(document.getElementById("more"));

// A task can be linked to: report.html#suite/task.
const reveal = (name) => {
  const place = shown.findIndex((row) => `${row.suite}/${row.task}` === name || row.element?.id === name);
  if (place < 0) return;
  if (place >= drawn) drawMore(place - drawn + 1);
  shown[place].element.open = true;
  shown[place].element.scrollIntoView();
};
addEventListener("hashchange", () => reveal(decodeURIComponent(location.hash.slice(1))));
// A printed page has a row for each task that the filter shows, up to what a person would print.
addEventListener("beforeprint", () => drawMore(2000));

sift();
if (location.hash) reveal(decodeURIComponent(location.hash.slice(1)));
else for (const row of shown.slice(0, data.opened)) row.element.open = true;
document.documentElement.dataset.ready = "yes";
