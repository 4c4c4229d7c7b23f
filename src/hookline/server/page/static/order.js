// source/order.ts
var e = 0;
function t() {
	return document.querySelector("form[data-order]");
}
function n() {
	return [...document.querySelectorAll("form[data-order] li[data-key]")];
}
function r() {
	let e = t(), r = e?.querySelector("input[name=order]");
	if (e == null || r == null) return;
	let i = n().map((e) => e.dataset.key).join(" ");
	i !== r.value && (r.value = i, e.requestSubmit());
}
function i(e) {
	let t = document.querySelector("[data-said]"), r = n();
	t !== null && (t.textContent = `${e.querySelector("a")?.textContent ?? ""}: ${r.indexOf(e) + 1} of ${r.length}`);
}
var a = null;
document.addEventListener("pointerdown", (e) => {
	let t = e.target.closest("[data-grip]");
	t !== null && t.textContent !== "" && e.button === 0 && (e.preventDefault(), a = t.closest("li[data-key]"), a?.classList.add("is-dragged"), t.setPointerCapture(e.pointerId));
}), document.addEventListener("pointermove", (e) => {
	if (a !== null) for (let t of n()) {
		if (t === a) continue;
		let { top: n, height: r } = t.getBoundingClientRect(), i = (t.compareDocumentPosition(a) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
		if (i && e.clientY < n + r / 2) {
			t.before(a);
			break;
		}
		!i && e.clientY > n + r / 2 && t.after(a);
	}
});
function o() {
	a !== null && (a.classList.remove("is-dragged"), i(a), a = null, r());
}
document.addEventListener("pointerup", o), document.addEventListener("pointercancel", o), document.addEventListener("keydown", (t) => {
	if (!t.altKey || t.key !== "ArrowUp" && t.key !== "ArrowDown") return;
	let n = t.target.closest("form[data-order] li[data-key]");
	if (n === null || (n.querySelector("[data-grip]")?.textContent ?? "") === "") return;
	t.preventDefault();
	let a = t.key === "ArrowUp" ? n.previousElementSibling : n.nextElementSibling;
	if (a === null) return;
	let o = t.target;
	t.key === "ArrowUp" ? a.before(n) : a.after(n), o.focus(), i(n), clearTimeout(e), e = setTimeout(r, 600);
});
