// Copy buttons, the number of waiting calls in the navigation and in the tab's title, and the end of the session.

const EVERY_MS = 10_000;
const COPIED_MS = 2_000;

interface Waiting {
  calls: number;
  shown: string;
}

document.addEventListener("click", (event) => {
  const button = (event.target as HTMLElement).closest<HTMLElement>("[data-copy]");
  const field = button === null ? null : document.getElementById(button.dataset["copy"] ?? "");
  if (button !== null && field instanceof HTMLInputElement) void copy(button, field);
});

/** Copy a field; without access to the clipboard, as on a page without TLS, select it for Ctrl-C. */
async function copy(button: HTMLElement, field: HTMLInputElement): Promise<void> {
  const label = button.textContent;
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => (button.textContent = label), COPIED_MS);
}

let title = document.title;
let shown = "";
const badge = document.querySelector<HTMLElement>("[data-count]");

/** Show the number of waiting calls. A page that nobody looks at asks less often, by the browser's own throttling. */
async function count(): Promise<void> {
  const place = badge?.dataset["count"];
  if (badge === null || place === undefined) return;
  try {
    const answer = await fetch(place, { headers: { accept: "application/json" } });
    const ended = document.querySelector<HTMLElement>("[data-ended]");
    if (ended !== null) ended.hidden = answer.status !== 401;
    if (!answer.ok) return;
    const waiting = (await answer.json()) as Waiting;
    badge.textContent = waiting.calls === 0 ? "" : waiting.shown;
    badge.title = waiting.calls === 1 ? "1 call waits" : `${waiting.shown} calls wait`;
    shown = waiting.calls === 0 ? "" : waiting.shown;
    entitle();
  } catch {
    // The next one comes soon; live views say that the connection is lost.
  }
}

/** Show the title of the view, with the number of waiting calls. */
function entitle(): void {
  document.title = shown === "" ? title : `(${shown}) ${title}`;
}

interface Swap {
  /** The target is a selector where the answer has named it. */
  ctx: { target: Element | string; title?: string };
}

// Only what replaces the view has a title for the tab; a part of it, such as a conversation, has not.
document.addEventListener("htmx:before:swap", (event) => {
  const { ctx } = (event as CustomEvent<Swap>).detail;
  const isView = typeof ctx.target === "string" ? ctx.target === "body" : ctx.target.matches("main, body");
  if (!isView) ctx.title = "";
});

document.addEventListener("htmx:finally:swap", (event) => {
  const { ctx } = (event as CustomEvent<Swap>).detail;
  if (ctx.title !== undefined && ctx.title !== "") title = ctx.title;
  entitle();
});

void count();
setInterval(() => void count(), EVERY_MS);
