// The time axis of a waterfall: shorter in long pauses, which the server names, so that what ran can be seen.

/** A pause that is cut short. Times are milliseconds since the operation began, places those on the axis. */
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

/** How long a cut is on the axis, as a share of the time in which something ran. */
const SHARE = 0.1;

export class Scale {
  readonly cuts: Cut[] = [];
  readonly stretches: Stretch[] = [];
  readonly length: number;

  constructor(pauses: readonly (readonly [number, number])[] = [], duration = 0) {
    const ran = Math.max(duration - pauses.reduce((sum, [start, end]) => sum + end - start, 0), 0.001);
    const width = ran * Math.min(SHARE, 0.5 / Math.max(pauses.length, 1));
    let time = 0;
    let place = 0;
    for (const [start, end] of pauses) {
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
