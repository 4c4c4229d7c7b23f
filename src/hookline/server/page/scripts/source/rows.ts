// The rows of a waterfall: which are shown, and where their bars lie.

export type Kind = "run" | "step" | "model" | "tool" | "agent" | "person" | "compact" | "hook" | "end";
export type Status = "ok" | "mocked" | "fault" | "denied" | "failed" | "timeout" | "dropped" | "stopped" | "running" | "waiting" | "asked";

/** One bar, as the server tells of it. Times are milliseconds since the operation began. */
export interface Bar {
  depth: number;
  kind: Kind;
  name: string;
  status: Status;
  start: number;
  /** How long it took: of a hook its own time, of what still runs until now. */
  duration: number;
  note?: string;
}

export interface Waterfall {
  duration: number;
  bars: Bar[];
  /** When the long times in which nothing ran begin and end. */
  pauses: [number, number][];
  /** Whether there is more than was sent. */
  truncated: boolean;
}

export const MARKS: Record<Status, string> = {
  ok: "",
  mocked: "mocked",
  fault: "fault",
  denied: "denied",
  failed: "failed",
  timeout: "timed out",
  dropped: "dropped",
  stopped: "stopped early",
  running: "running",
  waiting: "waiting",
  asked: "asked",
};

/** The bars that are not inside of a closed one, by their places in the list. */
export function shownBars(bars: readonly Bar[], closed: ReadonlySet<number>): number[] {
  const shown: number[] = [];
  let hiddenBelow = Infinity;
  bars.forEach((bar, place) => {
    if (bar.depth > hiddenBelow) return;
    shown.push(place);
    hiddenBelow = closed.has(place) ? bar.depth : Infinity;
  });
  return shown;
}

export function hasInner(bars: readonly Bar[], place: number): boolean {
  const next = bars[place + 1];
  return next !== undefined && next.depth > (bars[place]?.depth ?? 0);
}

/** The place of the bar that a bar is inside of; its own if there is none. */
export function outerOf(bars: readonly Bar[], place: number): number {
  const depth = bars[place]?.depth ?? 0;
  for (let before = place - 1; before >= 0; before--) {
    if ((bars[before]?.depth ?? 0) < depth) return before;
  }
  return place;
}

export function spelled(ms: number): string {
  if (ms < 1) return ms < 0.0005 ? "0 ms" : `${Number((ms * 1000).toPrecision(2))} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60
    ? `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How long a bar took, as it is told: what was too short for the clock did take time, and an end is but a moment. */
export function took(bar: Bar): string {
  if (bar.kind === "end") return "";
  return bar.duration < 0.001 ? "< 1 µs" : spelled(bar.duration);
}

/** A round time, at least as long as that given. */
export function rounded(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? rough;
}

/** The multiples of a step. */
export function ticks(from: number, to: number, step: number): number[] {
  const found: number[] = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) found.push(tick);
  return found;
}
