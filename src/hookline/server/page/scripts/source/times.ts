// Times as people say them: how long ago, with the exact time and its zone on hover.

const SOON = 45;
const UNITS: readonly [string, number, number][] = [
  ["min", 60, 3600],
  ["h", 3600, 86_400],
  ["d", 86_400, 30 * 86_400],
];
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const EXACT = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  hour12: false,
});
const WHOLE = new Intl.DateTimeFormat(undefined, {
  weekday: "short",
  year: "numeric",
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
  timeZoneName: "short",
});
const EVERY = 30_000;

/** Say how long ago a time was, or how soon it will be. */
export function relative(moment: Date, now: number): string {
  const seconds = (moment.getTime() - now) / 1000;
  const distance = Math.abs(seconds);
  if (distance < SOON) return seconds > 1 ? "in a moment" : "just now";
  for (const [unit, length, limit] of UNITS) {
    if (distance >= limit) continue;
    const count = `${Math.max(1, Math.floor(distance / length))} ${unit}`;
    return seconds > 0 ? `in ${count}` : `${count} ago`;
  }
  return DAY.format(moment);
}

/** Show the times of a part of the page in the reader's own words and zone. */
export function localise(within: ParentNode): void {
  const now = Date.now();
  for (const time of within.querySelectorAll<HTMLTimeElement>("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const said = time.hasAttribute("data-exact") ? EXACT.format(moment) : relative(moment, now);
    // A text that is set again would end a selection.
    if (time.textContent !== said) time.textContent = said;
    const whole = WHOLE.format(moment);
    if (time.title !== whole) time.title = whole;
  }
}

setInterval(() => localise(document), EVERY);
