// Lists: filters that apply as they are chosen, and news that do not move the rows that somebody reads.

import { localise } from "./times";

declare const htmx: { process(element: Element): void };

const TYPING = 350;

let asking: AbortController | null = null;
let typing: ReturnType<typeof setTimeout> | undefined;
let typed = false;
let touched = false;
let shown = place();

function place(): string {
  return location.pathname + location.search;
}

/** Return the address of a filter, without the fields that are empty or have their default. */
function address(form: HTMLFormElement): string {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && value.trim() !== "") fields.append(name, value.trim());
  }
  const columns = form.querySelector<HTMLElement>("[data-default]")?.dataset["default"];
  if (columns === fields.getAll("column").join(" ")) fields.delete("column");
  const query = fields.toString();
  // Not `form.action`: that is a field of this name, where the form has one.
  const list = new URL(form.getAttribute("action") ?? "", location.href).href;
  return query === "" ? list : `${list}?${query}`;
}

/** Replace the results by those of a filter, and put the filter into the address. */
async function apply(form: HTMLFormElement, words: boolean): Promise<void> {
  clearTimeout(typing);
  const wanted = address(form);
  if (wanted === location.href) return;
  asking?.abort();
  asking = new AbortController();
  const results = document.querySelector("#results");
  results?.setAttribute("aria-busy", "true");
  let text: string;
  try {
    const answer = await fetch(wanted, { signal: asking.signal, headers: { Accept: "text/html" } });
    if (answer.redirected) throw new Error("signed out");
    text = await answer.text();
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) location.assign(wanted);
    return;
  }
  const page = new DOMParser().parseFromString(text, "text/html");
  const fresh = page.querySelector("#results");
  if (fresh === null || results === null) {
    location.assign(wanted);
    return;
  }
  const adopted = document.adoptNode(fresh);
  results.replaceWith(adopted);
  follow(page);
  if (words && typed) history.replaceState(null, "", wanted);
  else history.pushState(null, "", wanted);
  shown = place();
  typed = words;
  touched = false;
  htmx.process(adopted);
  localise(adopted);
  const rows = adopted.querySelectorAll("[data-row]").length;
  say(adopted.querySelector(".problem")?.textContent ?? (rows === 1 ? "1 row" : `${rows} rows`));
}

/** Replace the parts outside the results that depend on the filter, such as counts and links of an export. */
function follow(page: Document): void {
  for (const part of document.querySelectorAll("[data-filtered]")) {
    const fresh = page.getElementById(part.id);
    if (fresh === null) continue;
    part.replaceWith(document.adoptNode(fresh));
    htmx.process(fresh);
    localise(fresh);
  }
}

function say(text: string): void {
  const said = document.querySelector("#said");
  if (said !== null) said.textContent = text;
}

function formOf(event: Event): HTMLFormElement | null {
  return (event.target as Element | null)?.closest<HTMLFormElement>("form[data-apply]") ?? null;
}

document.addEventListener("change", (event) => {
  const form = formOf(event);
  if (form !== null) void apply(form, false);
});

document.addEventListener("input", (event) => {
  const form = formOf(event);
  if (form === null || !(event.target as Element).matches("input[type=search]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => void apply(form, true), TYPING);
});

document.addEventListener("submit", (event) => {
  const form = formOf(event);
  if (form === null) return;
  event.preventDefault();
  void apply(form, false);
});

// A link to a part of the page moves within the same address, and needs nothing new.
addEventListener("popstate", () => {
  if (place() !== shown) location.reload();
});

// Somebody who has pressed a key or a button, selected a text or scrolled is reading: rows must stay where they are.
for (const kind of ["keydown", "pointerdown", "wheel", "touchmove"]) {
  document.addEventListener(
    kind,
    (event) => {
      if (kind === "keydown" || (event.target as Element | null)?.closest?.("main") != null) touched = true;
    },
    { passive: true },
  );
}

/** Show the rendering of a list that has just arrived: all of it, or only what does not move any row. */
export function merge(): void {
  const fresh = document.querySelector("#fresh");
  const list = document.querySelector("#list");
  if (fresh === null || list === null || fresh.childElementCount === 0) return;
  const news = document.createElement("div");
  news.append(...fresh.childNodes);
  localise(news);
  const shown = rowsOf(list);
  if ((!touched && scrollY === 0) || shown.size === 0) {
    show(list, news);
    return;
  }
  for (const [id, row] of rowsOf(news)) {
    const old = shown.get(id);
    if (old === undefined || old.innerHTML === row.innerHTML) continue;
    if (old.contains(document.activeElement)) patch(old, row);
    else old.replaceWith(row.cloneNode(true));
  }
  const counts = list.querySelector("#counts");
  const newer = news.querySelector("#counts");
  if (counts !== null && newer !== null && !counts.contains(document.activeElement)) {
    counts.replaceWith(newer.cloneNode(true));
  }
  announce(list, news, [...rowsOf(news).keys()].filter((id) => !shown.has(id)).length);
}

function rowsOf(within: Element): Map<string, Element> {
  return new Map([...within.querySelectorAll("[data-row][id]")].map((row) => [row.id, row]));
}

/** Replace the cells of a row except the one with the focus. */
function patch(old: Element, row: Element): void {
  [...old.children].forEach((cell, place) => {
    const other = row.children[place];
    if (other !== undefined && !cell.contains(document.activeElement)) cell.replaceWith(other.cloneNode(true));
  });
}

function announce(list: Element, news: Element, count: number): void {
  const place = document.querySelector("#news");
  if (place === null) return;
  if (count === 0) {
    place.replaceChildren();
    return;
  }
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Show";
  button.addEventListener("click", () => {
    show(list, news);
    scrollTo({ top: 0 });
    list.querySelector<HTMLElement>("[data-row] a")?.focus();
  });
  const text = document.createElement("span");
  text.textContent = `${count} new `;
  place.replaceChildren(text, button);
}

function show(list: Element, news: Element): void {
  list.replaceChildren(...news.childNodes);
  document.querySelector("#news")?.replaceChildren();
  touched = false;
}
