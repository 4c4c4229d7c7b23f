// The page ships htmx and the extension of the very same version, as they were published.
import { copyFileSync } from "node:fs";

for (const [from, to] of [
  ["htmx.min.js", "htmx.js"],
  ["ext/hx-sse.min.js", "htmx-sse.js"],
]) {
  copyFileSync(`node_modules/htmx.org/dist/${from}`, `../static/${to}`);
}
