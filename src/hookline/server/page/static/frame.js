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
var n = document.title, r = document.querySelector("[data-count]");
async function i() {
	let e = r?.dataset.count;
	if (r !== null && e !== void 0) try {
		let t = await fetch(e, { headers: { accept: "application/json" } }), i = document.querySelector("[data-ended]");
		if (i !== null && (i.hidden = t.status !== 401), !t.ok) return;
		let a = await t.json();
		r.textContent = a.calls === 0 ? "" : a.shown, r.title = a.calls === 1 ? "1 call waits" : `${a.shown} calls wait`, document.title = a.calls === 0 ? n : `(${a.shown}) ${n}`;
	} catch {}
}
i(), setInterval(() => void i(), e);
