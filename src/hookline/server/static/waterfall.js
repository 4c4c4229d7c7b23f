// source/rows.ts
var e = {
	ok: "",
	mocked: "mocked",
	fault: "fault",
	denied: "denied",
	failed: "failed",
	timeout: "timed out",
	dropped: "dropped",
	running: "running",
	waiting: "waiting"
};
function t(e, t) {
	let n = [], r = Infinity;
	return e.forEach((e, i) => {
		e.depth > r || (n.push(i), r = t.has(i) ? e.depth : Infinity);
	}), n;
}
function n(e, t) {
	let n = e[t + 1];
	return n !== void 0 && n.depth > (e[t]?.depth ?? 0);
}
function r(e, t) {
	let n = e[t]?.depth ?? 0;
	for (let r = t - 1; r >= 0; r--) if ((e[r]?.depth ?? 0) < n) return r;
	return t;
}
function i(e) {
	if (e < 1) return e < 5e-4 ? "0 ms" : `${Number((e * 1e3).toPrecision(2))} µs`;
	if (e < 1e3) return `${e < 10 ? e.toFixed(1) : Math.round(e)} ms`;
	if (e < 6e4) return `${(e / 1e3).toFixed(e < 1e4 ? 2 : 1)} s`;
	let t = Math.floor(e / 6e4);
	return t < 60 ? `${t} min ${Math.round(e % 6e4 / 1e3)} s` : `${Math.floor(t / 60)} h ${t % 60} min`;
}
function a(e, t, n) {
	let r = (t - e) / Math.max(n, 1);
	if (!(r > 0)) return [];
	let i = 10 ** Math.floor(Math.log10(r)), a = [
		1,
		2,
		5,
		10
	].map((e) => e * i).find((e) => e >= r) ?? r, o = [];
	for (let n = Math.ceil(e / a) * a; n <= t; n += a) o.push(n);
	return o;
}
// source/waterfall.ts
var o = 24, s = 10, c = {
	step: "step",
	tool: "tool call",
	agent: "sub-agent",
	person: "person",
	compact: "compaction",
	hook: "hook",
	end: "end"
};
function l(e, t, n = "") {
	let r = document.createElement(e);
	return r.className = t, r.textContent = n, r;
}
var u = class extends HTMLElement {
	bars = [];
	shown = [];
	closed = /* @__PURE__ */ new Set();
	current = 0;
	from = 0;
	to = 1;
	duration = 1;
	grid = l("div", "wf-grid");
	space = l("div", "wf-space");
	axis = l("div", "wf-axis");
	detail = l("p", "wf-detail");
	said = l("p", "wf-said");
	resized = new ResizeObserver(() => this.draw());
	changed = () => void this.load();
	connectedCallback() {
		this.grid.tabIndex = 0, this.grid.setAttribute("role", "treegrid"), this.grid.setAttribute("aria-label", "Steps, tool calls and hooks"), this.grid.setAttribute("aria-describedby", "wf-keys"), this.detail.setAttribute("aria-live", "polite"), this.axis.setAttribute("aria-hidden", "true"), this.said.textContent = "Loading…", this.grid.append(this.space), this.replaceChildren(this.tools(), this.axis, this.grid, this.said, this.detail), this.grid.addEventListener("scroll", () => this.draw(), { passive: !0 }), this.grid.addEventListener("keydown", (e) => this.pressed(e)), this.grid.addEventListener("click", (e) => this.clicked(e)), this.resized.observe(this.grid), document.addEventListener("changed", this.changed), this.load();
	}
	disconnectedCallback() {
		this.resized.disconnect(), document.removeEventListener("changed", this.changed);
	}
	tools() {
		let t = l("div", "wf-tools"), n = l("p", "wf-legend");
		for (let t of [
			"ok",
			"mocked",
			"fault",
			"denied",
			"failed",
			"waiting"
		]) {
			let r = l("span", "");
			r.append(l("i", `wf-key wf-${t}`), t === "ok" ? "done" : e[t]), n.append(r);
		}
		t.append(n);
		for (let [e, n, r] of [
			[
				"−",
				"Zoom out",
				() => this.zoom(2)
			],
			[
				"+",
				"Zoom in",
				() => this.zoom(.5)
			],
			[
				"All",
				"Show all of the time",
				() => this.view(0, this.duration)
			]
		]) {
			let i = l("button", "small", e);
			i.setAttribute("type", "button"), i.setAttribute("aria-label", n), i.title = n, i.addEventListener("click", r), t.append(i);
		}
		return t;
	}
	async load() {
		let e = this.getAttribute("src");
		if (e !== null) try {
			let t = await fetch(e, { headers: { Accept: "application/json" } });
			if (!t.ok) throw Error(`the server answered ${t.status}`);
			this.show(await t.json());
		} catch (e) {
			this.said.hidden = !1, this.said.textContent = `The waterfall could not be loaded: ${e instanceof Error ? e.message : e}.`;
		}
	}
	show(e) {
		let t = this.from === 0 && this.to === this.duration, n = this.bars.length === 0;
		this.bars = e.bars, this.duration = Math.max(e.duration, .001), (n || t) && ([this.from, this.to] = [0, this.duration]), this.said.hidden = e.bars.length > 0 && !e.truncated, this.said.textContent = e.truncated ? "There is more than is shown here: only the beginning was loaded." : "Nothing has happened yet.", this.list();
	}
	list() {
		this.shown = t(this.bars, this.closed), this.shown.includes(this.current) || (this.current = this.shown[0] ?? 0), this.grid.setAttribute("aria-rowcount", String(this.bars.length)), this.space.style.height = `${this.shown.length * o}px`, this.grid.style.height = `${Math.min(Math.max(this.shown.length, 3) * o + 2, 672)}px`, this.draw();
	}
	draw() {
		let e = Math.max(0, Math.floor(this.grid.scrollTop / o) - s), t = Math.min(this.shown.length, e + Math.ceil(this.grid.clientHeight / o) + 20), n = [];
		for (let r = e; r < t; r++) {
			let e = this.shown[r], t = e === void 0 ? void 0 : this.bars[e];
			e !== void 0 && t !== void 0 && n.push(this.row(t, e, r));
		}
		this.space.replaceChildren(...n), this.grid.setAttribute("aria-activedescendant", `wf-${this.current}`), this.drawAxis(), this.tell();
	}
	row(e, t, r) {
		let i = l("div", `wf-row wf-of-${e.kind}${t === this.current ? " wf-current" : ""}`);
		i.id = `wf-${t}`, i.dataset.place = String(t), i.style.top = `${r * o}px`, i.setAttribute("role", "row"), i.setAttribute("aria-level", String(e.depth + 1)), i.setAttribute("aria-rowindex", String(t + 1)), i.setAttribute("aria-selected", String(t === this.current));
		let a = l("div", "wf-name");
		a.setAttribute("role", "gridcell"), a.style.paddingInlineStart = `${e.depth * 14 + 6}px`;
		let s = n(this.bars, t);
		return s && i.setAttribute("aria-expanded", String(!this.closed.has(t))), a.append(l("span", "wf-fold", s ? this.closed.has(t) ? "▸" : "▾" : "")), a.append(l("span", "wf-label", e.name)), i.append(a, this.track(e)), i;
	}
	track(t) {
		let n = l("div", "wf-track");
		n.setAttribute("role", "gridcell");
		let r = this.to - this.from, a = (t.start - this.from) / r * 100, o = (t.start + t.duration - this.from) / r * 100, s = e[t.status], c = `${i(t.duration)}${s && ` · ${s}`}`;
		if (o >= 0 && a <= 100) {
			let e = l("span", `wf-bar wf-${t.status}`);
			e.style.left = `${Math.max(a, -1)}%`, e.style.width = `${Math.min(o, 101) - Math.max(a, -1)}%`, n.append(e);
		}
		let u = l("span", `wf-text${s ? " wf-marked" : ""}`, c);
		return o < 80 ? u.style.left = `calc(${Math.max(o, 0)}% + 6px)` : a > 20 ? u.style.right = `calc(${100 - Math.min(a, 100)}% + 6px)` : (u.style.left = "8px", u.classList.add("wf-inside")), n.append(u), n;
	}
	drawAxis() {
		let e = a(this.from, this.to, Math.max(2, this.axis.clientWidth / 140)).map((e) => {
			let t = l("span", "wf-tick", i(e));
			return t.style.left = `${(e - this.from) / (this.to - this.from) * 100}%`, t;
		}), t = l("div", "wf-ticks");
		t.append(...e), this.axis.replaceChildren(t);
	}
	tell() {
		let t = this.bars[this.current];
		if (t === void 0) return;
		let n = [
			`${c[t.kind]} ${t.name}`,
			`began at ${i(t.start)}`,
			`took ${i(t.duration)}${t.kind === "hook" ? " of its own" : ""}`
		];
		e[t.status] && n.push(e[t.status]), t.note && n.push(t.note);
		let r = n.join(" · ");
		this.detail.textContent !== r && (this.detail.textContent = r);
	}
	go(e) {
		let t = Math.min(Math.max(e, 0), this.shown.length - 1);
		this.current = this.shown[t] ?? 0;
		let n = t * o;
		n < this.grid.scrollTop && (this.grid.scrollTop = n);
		let r = n + o - this.grid.clientHeight;
		r > this.grid.scrollTop && (this.grid.scrollTop = r), this.draw();
	}
	fold(e, t) {
		n(this.bars, e) && (t ? this.closed.add(e) : this.closed.delete(e), this.list());
	}
	zoom(e) {
		let t = this.bars[this.current], n = t === void 0 ? (this.from + this.to) / 2 : t.start + t.duration / 2, r = (this.to - this.from) * e / 2;
		this.view(n - r, n + r);
	}
	view(e, t) {
		this.from = Math.max(0, e), this.to = Math.min(this.duration, Math.max(t, this.from + .001)), this.draw();
	}
	pressed(e) {
		if (e.ctrlKey || e.metaKey || e.altKey) return;
		let t = this.shown.indexOf(this.current), i = Math.max(1, Math.floor(this.grid.clientHeight / o) - 1), a = this.bars[this.current], s = {
			ArrowDown: () => this.go(t + 1),
			ArrowUp: () => this.go(t - 1),
			PageDown: () => this.go(t + i),
			PageUp: () => this.go(t - i),
			Home: () => this.go(0),
			End: () => this.go(this.shown.length - 1),
			ArrowRight: () => this.closed.has(this.current) ? this.fold(this.current, !1) : n(this.bars, this.current) && this.go(t + 1),
			ArrowLeft: () => n(this.bars, this.current) && !this.closed.has(this.current) ? this.fold(this.current, !0) : this.go(this.shown.indexOf(r(this.bars, this.current))),
			Enter: () => a && this.view(a.start - a.duration * .1, a.start + a.duration * 1.1),
			"+": () => this.zoom(.5),
			"-": () => this.zoom(2),
			0: () => this.view(0, this.duration)
		}[e.key];
		s !== void 0 && (e.preventDefault(), s());
	}
	clicked(e) {
		let t = e.target, n = t.closest(".wf-row");
		if (n === null) return;
		let r = Number(n.dataset.place);
		this.current = r, t.closest(".wf-fold") === null ? this.draw() : this.fold(r, !this.closed.has(r));
	}
};
customElements.define("hook-waterfall", u);
