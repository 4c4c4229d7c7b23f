// <hook-waterfall src="...">: what an operation did, when, and for how long.
//
// Only rows that can be seen are in the document, so that thousands of them cost no more than a screenful. One row is
// the current one; it is moved by keys alone as well as by pointer.

import { type Bar, MARKS, type Waterfall, hasInner, outerOf, rounded, shownBars, spelled, ticks, took } from "./rows";
import { Scale } from "./scale";

const ROW = 24;
const BEYOND = 10;
const TICK = 140;
const LABEL = 48;
const TOLD = 3;
const NAMES: Record<Bar["kind"], string> = {
  run: "run",
  step: "step",
  model: "model call",
  tool: "tool call",
  agent: "sub-agent",
  person: "person",
  compact: "compaction",
  hook: "hook",
  end: "end",
};

function made(tag: string, className: string, text = ""): HTMLElement {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

class HookWaterfall extends HTMLElement {
  private bars: Bar[] = [];
  private shown: number[] = [];
  private closed = new Set<number>();
  private current = 0;
  private from = 0;
  private to = 1;
  private scale = new Scale();
  private readonly grid = made("div", "wf-grid");
  private readonly space = made("div", "wf-space");
  private readonly axis = made("div", "wf-axis");
  private readonly detail = made("p", "wf-detail");
  private readonly said = made("p", "wf-said");
  private readonly resized = new ResizeObserver(() => this.draw());
  private readonly changed = () => void this.load();

  connectedCallback(): void {
    this.grid.tabIndex = 0;
    this.grid.setAttribute("role", "treegrid");
    this.grid.setAttribute("aria-label", "Steps, tool calls and hooks");
    this.grid.setAttribute("aria-describedby", "wf-keys");
    this.detail.setAttribute("aria-live", "polite");
    this.axis.setAttribute("aria-hidden", "true");
    this.said.textContent = "Loading…";
    this.grid.append(this.space);
    this.replaceChildren(this.tools(), this.axis, this.grid, this.said, this.detail);
    this.grid.addEventListener("scroll", () => this.draw(), { passive: true });
    this.grid.addEventListener("keydown", (event) => this.pressed(event));
    this.grid.addEventListener("click", (event) => this.clicked(event));
    this.resized.observe(this.grid);
    document.addEventListener("changed", this.changed);
    void this.load();
  }

  disconnectedCallback(): void {
    this.resized.disconnect();
    document.removeEventListener("changed", this.changed);
  }

  private tools(): HTMLElement {
    const bar = made("div", "wf-tools");
    const legend = made("p", "wf-legend");
    for (const status of ["ok", "mocked", "fault", "denied", "failed", "waiting"] as const) {
      const entry = made("span", "");
      entry.append(made("i", `wf-key wf-${status}`), status === "ok" ? "done" : MARKS[status]);
      legend.append(entry);
    }
    bar.append(legend);
    for (const [name, label, act] of [
      ["−", "Zoom out", () => this.zoom(2)],
      ["+", "Zoom in", () => this.zoom(0.5)],
      ["All", "Show all of the time", () => this.view(0, this.scale.length)],
    ] as const) {
      const button = made("button", "small", name);
      button.setAttribute("type", "button");
      button.setAttribute("aria-label", label);
      button.title = label;
      button.addEventListener("click", act);
      bar.append(button);
    }
    return bar;
  }

  private async load(): Promise<void> {
    const source = this.getAttribute("src");
    if (source === null) return;
    try {
      const answer = await fetch(source, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      this.show((await answer.json()) as Waterfall);
    } catch (error) {
      this.said.hidden = false;
      this.said.textContent = `The waterfall could not be loaded: ${error instanceof Error ? error.message : error}.`;
    }
  }

  private show(told: Waterfall): void {
    const whole = this.from === 0 && this.to === this.scale.length;
    const first = this.bars.length === 0;
    this.bars = told.bars;
    this.scale = new Scale(told.pauses, told.duration);
    if (first || whole) [this.from, this.to] = [0, this.scale.length];
    const said = told.bars.length === 0 ? ["Nothing has happened yet."] : this.cutsTold();
    if (told.truncated) said.push("There is more than is shown here: only the beginning was loaded.");
    this.said.hidden = said.length === 0;
    this.said.textContent = said.join(" ");
    this.list();
  }

  private cutsTold(): string[] {
    const lengths = this.scale.cuts.map(({ start, end }) => spelled(end - start));
    if (lengths.length === 0) return [];
    const more = lengths.length > TOLD ? `, and ${lengths.length - TOLD} times more` : "";
    return [`The time axis is cut short where nothing ran: for ${lengths.slice(0, TOLD).join(", ")}${more}.`];
  }

  private list(): void {
    this.shown = shownBars(this.bars, this.closed);
    if (!this.shown.includes(this.current)) this.current = this.shown[0] ?? 0;
    this.grid.setAttribute("aria-rowcount", String(this.bars.length));
    this.space.style.height = `${this.shown.length * ROW}px`;
    this.grid.style.height = `${Math.min(Math.max(this.shown.length, 3) * ROW + 2, 28 * ROW)}px`;
    this.draw();
  }

  private draw(): void {
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.shown.length, first + Math.ceil(this.grid.clientHeight / ROW) + 2 * BEYOND);
    const rows: HTMLElement[] = [];
    for (let row = first; row < last; row++) {
      const place = this.shown[row];
      const bar = place === undefined ? undefined : this.bars[place];
      if (place !== undefined && bar !== undefined) rows.push(this.row(bar, place, row));
    }
    this.space.replaceChildren(this.cuts("wf-cuts"), ...rows);
    this.markCurrent(rows);
    this.drawAxis();
    this.tell();
  }

  /** Rows out of sight are not in the document, and a reader must not be pointed to one of them. */
  private markCurrent(rows: HTMLElement[]): void {
    const id = `wf-${this.current}`;
    if (rows.some((row) => row.id === id)) this.grid.setAttribute("aria-activedescendant", id);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  private row(bar: Bar, place: number, row: number): HTMLElement {
    const line = made("div", `wf-row wf-of-${bar.kind}${place === this.current ? " wf-current" : ""}`);
    line.id = `wf-${place}`;
    line.dataset["place"] = String(place);
    line.style.top = `${row * ROW}px`;
    line.setAttribute("role", "row");
    line.setAttribute("aria-level", String(bar.depth + 1));
    line.setAttribute("aria-rowindex", String(place + 1));
    line.setAttribute("aria-selected", String(place === this.current));
    const name = made("div", "wf-name");
    name.setAttribute("role", "gridcell");
    name.style.paddingInlineStart = `${bar.depth * 14 + 6}px`;
    const inner = hasInner(this.bars, place);
    if (inner) line.setAttribute("aria-expanded", String(!this.closed.has(place)));
    name.append(made("span", "wf-fold", inner ? (this.closed.has(place) ? "▸" : "▾") : ""));
    name.append(made("span", "wf-label", bar.name));
    line.append(name, this.track(bar));
    return line;
  }

  private track(bar: Bar): HTMLElement {
    const track = made("div", "wf-track");
    track.setAttribute("role", "gridcell");
    const left = this.percent(this.scale.place(bar.start));
    const right = this.percent(this.scale.place(bar.start + bar.duration));
    const mark = MARKS[bar.status];
    const text = [took(bar), mark].filter(Boolean).join(" · ");
    if (right >= 0 && left <= 100) {
      const shown = made("span", `wf-bar wf-${bar.status}`);
      shown.style.left = `${Math.max(left, -1)}%`;
      shown.style.width = `${Math.min(right, 101) - Math.max(left, -1)}%`;
      track.append(shown);
    }
    const label = made("span", `wf-text${mark ? " wf-marked" : ""}`, text);
    // Beside the bar, on the side that has room for it.
    if (right < 80) label.style.left = `calc(${Math.max(right, 0)}% + 6px)`;
    else if (left > 20) label.style.right = `calc(${100 - Math.min(left, 100)}% + 6px)`;
    else {
      label.style.left = "8px";
      label.classList.add("wf-inside");
    }
    track.append(label);
    return track;
  }

  private percent(place: number): number {
    return ((place - this.from) / (this.to - this.from)) * 100;
  }

  /** The times that the axis leaves out, as they stand in the view. */
  private cuts(className: string): HTMLElement {
    const track = made("div", className);
    for (const { place, width } of this.scale.cuts) {
      const cut = made("span", "wf-cut");
      cut.style.left = `${this.percent(place)}%`;
      cut.style.width = `${this.percent(place + width) - this.percent(place)}%`;
      track.append(cut);
    }
    return track;
  }

  private drawAxis(): void {
    const track = this.cuts("wf-ticks");
    this.axis.replaceChildren(track);
    this.scale.cuts.forEach(({ start, end }, nth) => {
      const cut = track.children[nth] as HTMLElement;
      if (cut.clientWidth >= LABEL) cut.textContent = spelled(end - start);
    });
    const span = this.to - this.from;
    const pixel = span / Math.max(track.clientWidth, 1);
    const step = rounded(span / Math.max(2, track.clientWidth / TICK));
    for (const { start, place, length } of this.scale.stretches) {
      for (const tick of ticks(Math.max(this.from - place, 0), Math.min(this.to - place, length), step)) {
        // After a cut, times are those since its end, which is told itself.
        const text = start === 0 ? spelled(tick) : tick === 0 ? spelled(start) : `+${spelled(tick)}`;
        const room = (Math.min(place + length, this.to) - place - tick) / pixel;
        const mark = made("span", "wf-tick", room < LABEL ? "" : text);
        mark.style.left = `${this.percent(place + tick)}%`;
        track.append(mark);
      }
    }
  }

  /** What a bar is, unless its name says it. */
  private kindOf(bar: Bar): string {
    return ["step", "person", "end"].includes(bar.kind) ? "" : `${NAMES[bar.kind]} `;
  }

  private tell(): void {
    const bar = this.bars[this.current];
    if (bar === undefined) return;
    const parts = [`${this.kindOf(bar)}${bar.name}`, `began at ${spelled(bar.start)}`, ...(took(bar) ? [`took ${took(bar)}${bar.kind === "hook" ? " of its own" : ""}`] : [])];
    if (MARKS[bar.status]) parts.push(MARKS[bar.status]);
    if (bar.note) parts.push(bar.note);
    const text = parts.join(" · ");
    if (this.detail.textContent !== text) this.detail.textContent = text;
  }

  private go(row: number): void {
    const bounded = Math.min(Math.max(row, 0), this.shown.length - 1);
    this.current = this.shown[bounded] ?? 0;
    const top = bounded * ROW;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    const bottom = top + ROW - this.grid.clientHeight;
    if (bottom > this.grid.scrollTop) this.grid.scrollTop = bottom;
    this.draw();
  }

  private fold(place: number, close: boolean): void {
    if (!hasInner(this.bars, place)) return;
    if (close) this.closed.add(place);
    else this.closed.delete(place);
    this.list();
  }

  private zoom(factor: number): void {
    const bar = this.bars[this.current];
    const middle =
      bar === undefined
        ? (this.from + this.to) / 2
        : (this.scale.place(bar.start) + this.scale.place(bar.start + bar.duration)) / 2;
    const half = ((this.to - this.from) * factor) / 2;
    this.view(middle - half, middle + half);
  }

  private fit(bar: Bar): void {
    const [left, right] = [this.scale.place(bar.start), this.scale.place(bar.start + bar.duration)];
    this.view(left - (right - left) * 0.1, right + (right - left) * 0.1);
  }

  private view(from: number, to: number): void {
    this.from = Math.max(0, from);
    this.to = Math.min(this.scale.length, Math.max(to, this.from + 0.001));
    this.draw();
  }

  private pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = this.shown.indexOf(this.current);
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW) - 1);
    const bar = this.bars[this.current];
    const acts: Record<string, () => void> = {
      ArrowDown: () => this.go(row + 1),
      ArrowUp: () => this.go(row - 1),
      PageDown: () => this.go(row + page),
      PageUp: () => this.go(row - page),
      Home: () => this.go(0),
      End: () => this.go(this.shown.length - 1),
      ArrowRight: () =>
        this.closed.has(this.current) ? this.fold(this.current, false) : hasInner(this.bars, this.current) && this.go(row + 1),
      ArrowLeft: () =>
        hasInner(this.bars, this.current) && !this.closed.has(this.current)
          ? this.fold(this.current, true)
          : this.go(this.shown.indexOf(outerOf(this.bars, this.current))),
      Enter: () => bar && this.fit(bar),
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      "0": () => this.view(0, this.scale.length),
    };
    const act = acts[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  }

  private clicked(event: MouseEvent): void {
    const target = event.target as HTMLElement;
    const line = target.closest<HTMLElement>(".wf-row");
    if (line === null) return;
    const place = Number(line.dataset["place"]);
    this.current = place;
    if (target.closest(".wf-fold") !== null) this.fold(place, !this.closed.has(place));
    else this.draw();
  }
}

customElements.define("hook-waterfall", HookWaterfall);
