// source/frame.ts
var e = 1e4;
document.addEventListener("click", (e) => {
	let n = e.target.closest("[data-copy]"), r = n === null ? null : document.getElementById(n.dataset.copy ?? "");
	n !== null && r instanceof HTMLInputElement && t(n, r);
});
async function t(e, t) {
	let n = e.textContent;
	t.select();
	try {
		await navigator.clipboard.writeText(t.value), e.textContent = "Copied";
	} catch {
		e.textContent = "Press Ctrl-C";
	}
	setTimeout(() => e.textContent = n, 2e3);
}
var n = document.title, r = "", i = document.querySelector("[data-count]");
async function a() {
	let e = i?.dataset.count;
	if (i !== null && e !== void 0) try {
		let t = await fetch(e, { headers: { accept: "application/json" } }), n = document.querySelector("[data-ended]");
		if (n !== null && (n.hidden = t.status !== 401), !t.ok) return;
		let a = await t.json();
		i.textContent = a.calls === 0 ? "" : a.shown, i.title = a.calls === 1 ? "1 call waits" : `${a.shown} calls wait`, r = a.calls === 0 ? "" : a.shown, o();
	} catch {}
}
function o() {
	document.title = r === "" ? n : `(${r}) ${n}`;
}
document.addEventListener("htmx:before:swap", (e) => {
	let { ctx: t } = e.detail;
	(typeof t.target == "string" ? t.target === "body" : t.target.matches("main, body")) || (t.title = "");
}), document.addEventListener("htmx:finally:swap", (e) => {
	let { ctx: t } = e.detail;
	t.title !== void 0 && t.title !== "" && (n = t.title), o();
}), a(), setInterval(() => void a(), e);
