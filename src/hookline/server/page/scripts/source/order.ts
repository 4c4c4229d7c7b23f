// Move the hooks of a list by dragging their handles, or with Alt and the arrow keys. The server stores the order; the
// buttons of each row do the same without this script.

const AFTER_KEYS = 600;

let waiting = 0;

function form(): HTMLFormElement | null {
  return document.querySelector<HTMLFormElement>("form[data-order]");
}

function rows(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>("form[data-order] li[data-key]")];
}

/** Send the order of the rows, unless it is the one that was shown. */
function store(): void {
  const here = form();
  const field = here?.querySelector<HTMLInputElement>("input[name=order]");
  if (here == null || field == null) return;
  const order = rows()
    .map((row) => row.dataset["key"])
    .join(" ");
  if (order === field.value) return;
  field.value = order;
  here.requestSubmit();
}

function say(row: HTMLElement): void {
  const said = document.querySelector("[data-said]");
  const all = rows();
  if (said !== null) said.textContent = `${row.querySelector("a")?.textContent ?? ""}: ${all.indexOf(row) + 1} of ${all.length}`;
}

let dragged: HTMLElement | null = null;

document.addEventListener("pointerdown", (event) => {
  const grip = (event.target as HTMLElement).closest<HTMLElement>("[data-grip]");
  if (grip === null || grip.textContent === "" || event.button !== 0) return;
  event.preventDefault();
  dragged = grip.closest<HTMLElement>("li[data-key]");
  dragged?.classList.add("is-dragged");
  grip.setPointerCapture(event.pointerId);
});

document.addEventListener("pointermove", (event) => {
  if (dragged === null) return;
  for (const row of rows()) {
    if (row === dragged) continue;
    const { top, height } = row.getBoundingClientRect();
    const below = (row.compareDocumentPosition(dragged) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
    // A row changes places as soon as the pointer has passed its middle.
    if (below && event.clientY < top + height / 2) {
      row.before(dragged);
      break;
    }
    if (!below && event.clientY > top + height / 2) row.after(dragged);
  }
});

function drop(): void {
  if (dragged === null) return;
  dragged.classList.remove("is-dragged");
  say(dragged);
  dragged = null;
  store();
}

document.addEventListener("pointerup", drop);
document.addEventListener("pointercancel", drop);

document.addEventListener("keydown", (event) => {
  if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
  const row = (event.target as HTMLElement).closest<HTMLElement>("form[data-order] li[data-key]");
  if (row === null || (row.querySelector("[data-grip]")?.textContent ?? "") === "") return;
  event.preventDefault();
  const other = event.key === "ArrowUp" ? row.previousElementSibling : row.nextElementSibling;
  if (other === null) return;
  const focused = event.target as HTMLElement;
  if (event.key === "ArrowUp") other.before(row);
  else other.after(row);
  focused.focus();
  say(row);
  // Several presses are one change.
  clearTimeout(waiting);
  waiting = setTimeout(store, AFTER_KEYS);
});
