// Shortcuts, live connections, and what an action has come to.

import { merge } from "./lists";
import { localise } from "./times";

const PATIENCE = 1500;

let wentAt = 0;

function writes(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}

function keys(): HTMLDialogElement | null {
  return document.querySelector<HTMLDialogElement>("dialog#keys");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || writes(event.target) || event.defaultPrevented) return;
  const link =
    performance.now() - wentAt < PATIENCE
      ? document.querySelector<HTMLAnchorElement>(`nav a[data-key="${CSS.escape(event.key)}"]`)
      : null;
  wentAt = event.key === "g" ? performance.now() : 0;
  if (link !== null) {
    location.assign(link.href);
  } else if (event.key === "?") {
    event.preventDefault();
    keys()?.showModal();
  } else if (event.key === "/") {
    const field = document.querySelector<HTMLElement>("form.filter input, form.filter select");
    if (field !== null) event.preventDefault();
    field?.focus();
  } else if (event.key === "j" || event.key === "k") {
    move(event.key === "j" ? 1 : -1);
  }
});

/** Move along the first links or buttons of the rows of a list. */
function move(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  if (rows.length === 0) return;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[here === -1 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + by, 0), rows.length - 1)];
  next?.querySelector<HTMLElement>("a, button, input, summary")?.focus();
}

document.addEventListener("click", (event) => {
  const button = (event.target as HTMLElement).closest("[data-open], [data-close]");
  if (button?.hasAttribute("data-open")) keys()?.showModal();
  if (button?.hasAttribute("data-close")) keys()?.close();
});

// Without scripts nothing is live, and nothing says so.
function connecting(): void {
  if (document.querySelector("[hx-sse\\:connect]") === null) return;
  for (const sign of document.querySelectorAll<HTMLElement>("[data-live='']")) sign.textContent = "connecting";
}

// A dispatch of htmx's own: whatever it has put in is looked at again.
document.addEventListener("htmx:after:swap", () => {
  merge();
  localise(document);
  connecting();
  announce();
});

/** Move the focus to what an action has come to, once: never to the next thing that could be done. */
function announce(): void {
  const message = document.querySelector<HTMLElement>("[data-focus]");
  message?.removeAttribute("data-focus");
  message?.focus();
}

// Why a form was refused stands there until one is sent again.
document.addEventListener("htmx:before:request", (event) => {
  const { ctx } = (event as CustomEvent<{ ctx: { request: { method: string } } }>).detail;
  if (ctx.request.method === "POST") document.querySelector("#refused")?.replaceChildren();
});

// Whoever reloads the page, or sends its address to somebody, means what it shows: not the form that has led to it.
interface Swap {
  ctx: { sourceElement: Element | null; target: Element | string; response?: { raw: Response } };
}

document.addEventListener("htmx:after:swap", (event) => {
  const { ctx } = (event as CustomEvent<Swap>).detail;
  if (ctx.response?.raw.redirected !== true || typeof ctx.target === "string" || !ctx.target.matches("main")) return;
  const place = new URL(ctx.response.raw.url);
  place.searchParams.delete("notice");
  history.replaceState(history.state, "", place);
  // What is typed elsewhere stays; what was sent with success is done with.
  ctx.sourceElement?.closest<HTMLFormElement>("form[data-reset]")?.reset();
});

// A form keeps its place and its height when its answer replaces it, so that a second click hits nothing else.
document.addEventListener("submit", (event) => {
  const place = (event.target as HTMLElement).closest<HTMLElement>(".decide");
  if (place !== null) place.style.minHeight = `${place.getBoundingClientRect().height}px`;
});

function live(state: string): void {
  for (const sign of document.querySelectorAll<HTMLElement>("[data-live]")) {
    sign.dataset["live"] = state;
    sign.textContent = state === "on" ? "live" : "connection lost, trying again";
  }
}

document.addEventListener("htmx:sse:after:connection", () => live("on"));
document.addEventListener("htmx:sse:error", () => live("off"));
connecting();
localise(document);
announce();
