// source/times.ts
var e = [
	[
		"min",
		60,
		3600
	],
	[
		"h",
		3600,
		86400
	],
	[
		"d",
		86400,
		2592e3
	]
], t = new Intl.DateTimeFormat(void 0, {
	year: "numeric",
	month: "short",
	day: "numeric"
}), n = new Intl.DateTimeFormat(void 0, {
	month: "short",
	day: "2-digit",
	hour: "2-digit",
	minute: "2-digit",
	second: "2-digit",
	fractionalSecondDigits: 3,
	hour12: !1
}), r = new Intl.DateTimeFormat(void 0, {
	weekday: "short",
	year: "numeric",
	month: "short",
	day: "2-digit",
	hour: "2-digit",
	minute: "2-digit",
	second: "2-digit",
	hour12: !1,
	timeZoneName: "short"
}), i = 3e4;
function a(n, r) {
	let i = (n.getTime() - r) / 1e3, a = Math.abs(i);
	if (a < 45) return i > 1 ? "in a moment" : "just now";
	for (let [t, n, r] of e) {
		if (a >= r) continue;
		let e = `${Math.max(1, Math.floor(a / n))} ${t}`;
		return i > 0 ? `in ${e}` : `${e} ago`;
	}
	return t.format(n);
}
function o(e) {
	let t = Date.now();
	for (let i of e.querySelectorAll("time[datetime]")) {
		let e = new Date(i.dateTime), o = i.hasAttribute("data-exact") ? n.format(e) : a(e, t);
		i.textContent !== o && (i.textContent = o);
		let s = r.format(e);
		i.title !== s && (i.title = s);
	}
}
setInterval(() => o(document), i);
// source/lists.ts
var s = 350, c = null, l, u = !1, d = !1, f = p();
function p() {
	return location.pathname + location.search;
}
function m(e) {
	let t = new URLSearchParams();
	for (let [n, r] of new FormData(e)) typeof r == "string" && r.trim() !== "" && t.append(n, r.trim());
	e.querySelector("[data-default]")?.dataset.default === t.getAll("column").join(" ") && t.delete("column");
	let n = t.toString(), r = new URL(e.getAttribute("action") ?? "", location.href).href;
	return n === "" ? r : `${r}?${n}`;
}
async function h(e, t) {
	clearTimeout(l);
	let n = m(e);
	if (n === location.href) return;
	c?.abort(), c = new AbortController();
	let r = document.querySelector("#results");
	r?.setAttribute("aria-busy", "true");
	let i;
	try {
		let e = await fetch(n, {
			signal: c.signal,
			headers: { Accept: "text/html" }
		});
		if (e.redirected) throw Error("signed out");
		i = await e.text();
	} catch (e) {
		e instanceof DOMException && e.name === "AbortError" || location.assign(n);
		return;
	}
	let a = new DOMParser().parseFromString(i, "text/html"), s = a.querySelector("#results");
	if (s === null || r === null) {
		location.assign(n);
		return;
	}
	let h = document.adoptNode(s);
	r.replaceWith(h), g(a), t && u ? history.replaceState(null, "", n) : history.pushState(null, "", n), f = p(), u = t, d = !1, htmx.process(h), o(h);
	let v = h.querySelectorAll("[data-row]").length;
	_(h.querySelector(".problem")?.textContent ?? (v === 1 ? "1 row" : `${v} rows`));
}
function g(e) {
	for (let t of document.querySelectorAll("[data-filtered]")) {
		let n = e.getElementById(t.id);
		n !== null && (t.replaceWith(document.adoptNode(n)), htmx.process(n), o(n));
	}
}
function _(e) {
	let t = document.querySelector("#said");
	t !== null && (t.textContent = e);
}
function v(e) {
	return e.target?.closest("form[data-apply]") ?? null;
}
document.addEventListener("change", (e) => {
	let t = v(e);
	t !== null && h(t, !1);
}), document.addEventListener("input", (e) => {
	let t = v(e);
	t !== null && e.target.matches("input[type=search]") && (clearTimeout(l), l = setTimeout(() => void h(t, !0), s));
}), document.addEventListener("submit", (e) => {
	let t = v(e);
	t !== null && (e.preventDefault(), h(t, !1));
}), addEventListener("popstate", () => {
	p() !== f && location.reload();
});
for (let e of [
	"keydown",
	"pointerdown",
	"wheel",
	"touchmove"
]) document.addEventListener(e, (t) => {
	(e === "keydown" || t.target?.closest?.("main") != null) && (d = !0);
}, { passive: !0 });
function y() {
	let e = document.querySelector("#fresh"), t = document.querySelector("#list");
	if (e === null || t === null || e.childElementCount === 0) return;
	let n = document.createElement("div");
	n.append(...e.childNodes), o(n);
	let r = b(t);
	if (!d && scrollY === 0 || r.size === 0) {
		C(t, n);
		return;
	}
	for (let [e, t] of b(n)) {
		let n = r.get(e);
		n !== void 0 && n.innerHTML !== t.innerHTML && (n.contains(document.activeElement) ? x(n, t) : n.replaceWith(t.cloneNode(!0)));
	}
	let i = t.querySelector("#counts"), a = n.querySelector("#counts");
	i !== null && a !== null && !i.contains(document.activeElement) && i.replaceWith(a.cloneNode(!0)), S(t, n, [...b(n).keys()].filter((e) => !r.has(e)).length);
}
function b(e) {
	return new Map([...e.querySelectorAll("[data-row][id]")].map((e) => [e.id, e]));
}
function x(e, t) {
	[...e.children].forEach((e, n) => {
		let r = t.children[n];
		r !== void 0 && !e.contains(document.activeElement) && e.replaceWith(r.cloneNode(!0));
	});
}
function S(e, t, n) {
	let r = document.querySelector("#news");
	if (r === null) return;
	if (n === 0) {
		r.replaceChildren();
		return;
	}
	let i = document.createElement("button");
	i.type = "button", i.textContent = "Show", i.addEventListener("click", () => {
		C(e, t), scrollTo({ top: 0 }), e.querySelector("[data-row] a")?.focus();
	});
	let a = document.createElement("span");
	a.textContent = `${n} new `, r.replaceChildren(a, i);
}
function C(e, t) {
	e.replaceChildren(...t.childNodes), document.querySelector("#news")?.replaceChildren(), d = !1;
}
// source/page.ts
var w = 1500, T = 0;
function E(e) {
	return e instanceof HTMLElement && e.matches("input, textarea, select, [contenteditable]");
}
function D() {
	return document.querySelector("dialog#keys");
}
document.addEventListener("keydown", (e) => {
	if (e.ctrlKey || e.metaKey || e.altKey || E(e.target) || e.defaultPrevented) return;
	let t = performance.now() - T < w ? document.querySelector(`nav a[data-key="${CSS.escape(e.key)}"]`) : null;
	if (T = e.key === "g" ? performance.now() : 0, t !== null) location.assign(t.href);
	else if (e.key === "?") e.preventDefault(), D()?.showModal();
	else if (e.key === "/") {
		let t = document.querySelector("form.filter input, form.filter select");
		t !== null && e.preventDefault(), t?.focus();
	} else (e.key === "j" || e.key === "k") && O(e.key === "j" ? 1 : -1);
});
function O(e) {
	let t = [...document.querySelectorAll("[data-row]")];
	if (t.length === 0) return;
	let n = t.findIndex((e) => e.contains(document.activeElement));
	t[n === -1 ? e > 0 ? 0 : t.length - 1 : Math.min(Math.max(n + e, 0), t.length - 1)]?.querySelector("a, button, input, summary")?.focus();
}
document.addEventListener("click", (e) => {
	let t = e.target.closest("[data-open], [data-close]");
	t?.hasAttribute("data-open") && D()?.showModal(), t?.hasAttribute("data-close") && D()?.close();
});
function k() {
	if (document.querySelector("[hx-sse\\:connect]") !== null) for (let e of document.querySelectorAll("[data-live='']")) e.textContent = "connecting";
}
document.addEventListener("htmx:after:swap", () => {
	y(), o(document), k(), A();
});
function A() {
	let e = document.querySelector("[data-focus]");
	e?.removeAttribute("data-focus"), e?.focus();
}
document.addEventListener("htmx:before:request", (e) => {
	let { ctx: t } = e.detail;
	t.request.method === "POST" && document.querySelector("#refused")?.replaceChildren();
}), document.addEventListener("htmx:after:swap", (e) => {
	let { ctx: t } = e.detail;
	if (t.response?.raw.redirected !== !0 || typeof t.target == "string" || !t.target.matches("main")) return;
	let n = new URL(t.response.raw.url);
	n.searchParams.delete("notice"), history.replaceState(history.state, "", n), t.sourceElement?.closest("form[data-reset]")?.reset();
}), document.addEventListener("submit", (e) => {
	let t = e.target.closest(".decide");
	t !== null && (t.style.minHeight = `${t.getBoundingClientRect().height}px`);
});
function j(e) {
	for (let t of document.querySelectorAll("[data-live]")) t.dataset.live = e, t.textContent = e === "on" ? "live" : "connection lost, trying again";
}
document.addEventListener("htmx:sse:after:connection", () => j("on")), document.addEventListener("htmx:sse:error", () => j("off")), k(), o(document), A();
