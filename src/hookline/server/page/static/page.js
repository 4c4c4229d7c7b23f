// source/page.ts
var e = {
	o: "operations",
	a: "approvals",
	h: "hooks",
	l: "logs",
	s: "statistics",
	d: "deliveries",
	e: "endpoints"
}, t = 1500, n = 0;
function r(e) {
	return e instanceof HTMLElement && e.matches("input, textarea, select, [contenteditable]");
}
function i() {
	return document.querySelector("dialog#keys");
}
document.addEventListener("keydown", (o) => {
	if (o.ctrlKey || o.metaKey || o.altKey || r(o.target) || o.defaultPrevented) return;
	let s = performance.now() - n < t ? e[o.key] : void 0;
	if (n = o.key === "g" ? performance.now() : 0, s !== void 0) {
		let e = document.querySelector(`nav a[data-view="${s}"]`);
		e !== null && location.assign(e.href);
	} else if (o.key === "?") o.preventDefault(), i()?.showModal();
	else if (o.key === "/") {
		let e = document.querySelector("form.filter input, form.filter select");
		e !== null && o.preventDefault(), e?.focus();
	} else (o.key === "j" || o.key === "k") && a(o.key === "j" ? 1 : -1);
});
function a(e) {
	let t = [...document.querySelectorAll("[data-row]")];
	if (t.length === 0) return;
	let n = t.findIndex((e) => e.contains(document.activeElement));
	t[n === -1 ? e > 0 ? 0 : t.length - 1 : Math.min(Math.max(n + e, 0), t.length - 1)]?.querySelector("a, button, input, summary")?.focus();
}
document.addEventListener("click", (e) => {
	let t = e.target.closest("[data-open], [data-close]");
	t?.hasAttribute("data-open") && i()?.showModal(), t?.hasAttribute("data-close") && i()?.close();
});
var o = new Intl.DateTimeFormat(void 0, {
	month: "short",
	day: "2-digit",
	hour: "2-digit",
	minute: "2-digit",
	second: "2-digit",
	hour12: !1
});
function s(e) {
	for (let t of e.querySelectorAll("time[datetime]")) t.textContent = o.format(new Date(t.dateTime));
}
function c() {
	for (let e of document.querySelectorAll("[data-live='']")) e.textContent = "connecting";
}
document.addEventListener("htmx:after:swap", () => {
	s(document), c(), l();
});
function l() {
	let e = document.querySelector("[data-focus]");
	e?.removeAttribute("data-focus"), e?.focus();
}
document.addEventListener("submit", (e) => {
	let t = e.target.closest(".decide");
	t !== null && (t.style.minHeight = `${t.getBoundingClientRect().height}px`);
});
function u(e) {
	for (let t of document.querySelectorAll("[data-live]")) t.dataset.live = e, t.textContent = e === "on" ? "live" : "connection lost, trying again";
}
document.addEventListener("htmx:sse:after:connection", () => u("on")), document.addEventListener("htmx:sse:error", () => u("off")), c(), s(document), l();
