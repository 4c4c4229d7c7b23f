// The time axis of a waterfall. Where nothing ran for long, it is cut short, so that what ran can be seen.

import type { Bar } from "./rows";

/** A time in which nothing ran. Times are milliseconds since the operation began, places those on the axis. */
export interface Cut {
  start: number;
  end: number;
  place: number;
  width: number;
}

/** A time between two cuts: what is on the axis as it passed. */
export interface Stretch {
  start: number;
  place: number;
  length: number;
}

const LEAST = 500;
const SHARE = 0.1;

export class Scale {
  readonly cuts: Cut[] = [];
  readonly stretches: Stretch[] = [];
  readonly length: number;

  constructor(bars: readonly Bar[] = [], duration = 0) {
    const gaps = longGaps(bars, duration);
    const ran = Math.max(duration - gaps.reduce((sum, [start, end]) => sum + end - start, 0), 0.001);
    const width = ran * Math.min(SHARE, 0.5 / Math.max(gaps.length, 1));
    let time = 0;
    let place = 0;
    for (const [start, end] of gaps) {
      this.stretches.push({ start: time, place, length: start - time });
      place += start - time;
      this.cuts.push({ start, end, place, width });
      place += width;
      time = end;
    }
    this.stretches.push({ start: time, place, length: duration - time });
    this.length = Math.max(place + duration - time, 0.001);
  }

  /** Where a time is on the axis. */
  place(time: number): number {
    let left = time;
    for (const { start, end, width } of this.cuts) {
      if (time <= start) break;
      left -= (Math.min(time, end) - start) * (1 - width / (end - start));
    }
    return left;
  }
}

/** When nothing ran for so long that what ran would be hard to see beside it. */
function longGaps(bars: readonly Bar[], duration: number): [number, number][] {
  const gaps: [number, number][] = [];
  let idle = 0;
  let until = 0;
  for (const [start, end] of [...ran(bars), [duration, duration] as const]) {
    if (start - until >= LEAST) {
      gaps.push([until, start]);
      idle += start - until;
    }
    until = Math.max(until, end);
  }
  return gaps.filter(([start, end]) => end - start > (duration - idle) / 2);
}

/** When something ran, in the order of the beginnings: all bars but those of people, also where these are inside. */
function ran(bars: readonly Bar[]): [number, number][] {
  const spans: [number, number][] = [];
  bars.forEach((bar, place) => {
    if (bar.kind === "person") return;
    let start = bar.start;
    for (let inner = place + 1; (bars[inner]?.depth ?? 0) > bar.depth; inner++) {
      const within = bars[inner];
      if (within?.kind !== "person") continue;
      if (within.start > start) spans.push([start, within.start]);
      start = Math.max(start, within.start + within.duration);
    }
    const end = bar.start + bar.duration;
    if (start <= end) spans.push([start, end]);
  });
  return spans.sort((one, other) => one[0] - other[0]);
}
