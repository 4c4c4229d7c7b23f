// source/rows.ts
var e = {
	ok: "",
	mocked: "mocked",
	fault: "fault",
	denied: "denied",
	failed: "failed",
	timeout: "timed out",
	dropped: "dropped",
	stopped: "stopped early",
	running: "running",
	waiting: "waiting",
	asked: "asked"
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
function a(e) {
	return e.kind === "end" ? "" : e.duration < .001 ? "< 1 µs" : i(e.duration);
}
function o(e) {
	let t = 10 ** Math.floor(Math.log10(e));
	return [
		1,
		2,
		5,
		10
	].map((e) => e * t).find((t) => t >= e) ?? e;
}
function s(e, t, n) {
	let r = [];
	for (let i = Math.ceil(e / n) * n; i <= t; i += n) r.push(i);
	return r;
}
// source/scale.ts
var c = .1, l = class {
	cuts = [];
	stretches = [];
	length;
	constructor(e = [], t = 0) {
		let n = Math.max(t - e.reduce((e, [t, n]) => e + n - t, 0), .001) * Math.min(c, .5 / Math.max(e.length, 1)), r = 0, i = 0;
		for (let [t, a] of e) this.stretches.push({
			start: r,
			place: i,
			length: t - r
		}), i += t - r, this.cuts.push({
			start: t,
			end: a,
			place: i,
			width: n
		}), i += n, r = a;
		this.stretches.push({
			start: r,
			place: i,
			length: t - r
		}), this.length = Math.max(i + t - r, .001);
	}
	place(e) {
		let t = e;
		for (let { start: n, end: r, width: i } of this.cuts) {
			if (e <= n) break;
			t -= (Math.min(e, r) - n) * (1 - i / (r - n));
		}
		return t;
	}
}, u = 24, d = 10, f = 140, p = 48, m = 3, h = {
	run: "run",
	step: "step",
	model: "model call",
	tool: "tool call",
	agent: "sub-agent",
	person: "person",
	compact: "compaction",
	hook: "hook",
	end: "end"
};
function g(e, t, n = "") {
	let r = document.createElement(e);
	return r.className = t, r.textContent = n, r;
}
var _ = class extends HTMLElement {
	bars = [];
	shown = [];
	closed = /* @__PURE__ */ new Set();
	current = 0;
	from = 0;
	to = 1;
	scale = new l();
	grid = g("div", "wf-grid");
	space = g("div", "wf-space");
	axis = g("div", "wf-axis");
	detail = g("p", "wf-detail");
	said = g("p", "wf-said");
	resized = new ResizeObserver(() => this.draw());
	changed = () => void this.load();
	connectedCallback() {
		this.grid.tabIndex = 0, this.grid.setAttribute("role", "treegrid"), this.grid.setAttribute("aria-label", "Steps, tool calls and hooks"), this.grid.setAttribute("aria-describedby", "wf-keys"), this.detail.setAttribute("aria-live", "polite"), this.axis.setAttribute("aria-hidden", "true"), this.said.textContent = "Loading…", this.grid.append(this.space), this.replaceChildren(this.tools(), this.axis, this.grid, this.said, this.detail), this.grid.addEventListener("scroll", () => this.draw(), { passive: !0 }), this.grid.addEventListener("keydown", (e) => this.pressed(e)), this.grid.addEventListener("click", (e) => this.clicked(e)), this.resized.observe(this.grid), document.addEventListener("changed", this.changed), this.load();
	}
	disconnectedCallback() {
		this.resized.disconnect(), document.removeEventListener("changed", this.changed);
	}
	tools() {
		let t = g("div", "wf-tools"), n = g("p", "wf-legend");
		for (let t of [
			"ok",
			"mocked",
			"fault",
			"denied",
			"failed",
			"waiting"
		]) {
			let r = g("span", "");
			r.append(g("i", `wf-key wf-${t}`), t === "ok" ? "done" : e[t]), n.append(r);
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
				() => this.view(0, this.scale.length)
			]
		]) {
			let i = g("button", "small", e);
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
		let t = this.from === 0 && this.to === this.scale.length, n = this.bars.length === 0;
		this.bars = e.bars, this.scale = new l(e.pauses, e.duration), (n || t) && ([this.from, this.to] = [0, this.scale.length]);
		let r = e.bars.length === 0 ? ["Nothing has happened yet."] : this.cutsTold();
		e.truncated && r.push("There is more than is shown here: only the beginning was loaded."), this.said.hidden = r.length === 0, this.said.textContent = r.join(" "), this.list();
	}
	cutsTold() {
		let e = this.scale.cuts.map(({ start: e, end: t }) => i(t - e));
		if (e.length === 0) return [];
		let t = e.length > m ? `, and ${e.length - m} times more` : "";
		return [`The time axis is cut short where nothing ran: for ${e.slice(0, m).join(", ")}${t}.`];
	}
	list() {
		this.shown = t(this.bars, this.closed), this.shown.includes(this.current) || (this.current = this.shown[0] ?? 0), this.grid.setAttribute("aria-rowcount", String(this.bars.length)), this.space.style.height = `${this.shown.length * u}px`, this.grid.style.height = `${Math.min(Math.max(this.shown.length, 3) * u + 2, 672)}px`, this.draw();
	}
	draw() {
		let e = Math.max(0, Math.floor(this.grid.scrollTop / u) - d), t = Math.min(this.shown.length, e + Math.ceil(this.grid.clientHeight / u) + 20), n = [];
		for (let r = e; r < t; r++) {
			let e = this.shown[r], t = e === void 0 ? void 0 : this.bars[e];
			e !== void 0 && t !== void 0 && n.push(this.row(t, e, r));
		}
		this.space.replaceChildren(this.cuts("wf-cuts"), ...n), this.markCurrent(n), this.drawAxis(), this.tell();
	}
	markCurrent(e) {
		let t = `wf-${this.current}`;
		e.some((e) => e.id === t) ? this.grid.setAttribute("aria-activedescendant", t) : this.grid.removeAttribute("aria-activedescendant");
	}
	row(e, t, r) {
		let i = g("div", `wf-row wf-of-${e.kind}${t === this.current ? " wf-current" : ""}`);
		i.id = `wf-${t}`, i.dataset.place = String(t), i.style.top = `${r * u}px`, i.setAttribute("role", "row"), i.setAttribute("aria-level", String(e.depth + 1)), i.setAttribute("aria-rowindex", String(t + 1)), i.setAttribute("aria-selected", String(t === this.current));
		let a = g("div", "wf-name");
		a.setAttribute("role", "gridcell"), a.style.paddingInlineStart = `${e.depth * 14 + 6}px`;
		let o = n(this.bars, t);
		return o && i.setAttribute("aria-expanded", String(!this.closed.has(t))), a.append(g("span", "wf-fold", o ? this.closed.has(t) ? "▸" : "▾" : "")), a.append(g("span", "wf-label", e.name)), i.append(a, this.track(e)), i;
	}
	track(t) {
		let n = g("div", "wf-track");
		n.setAttribute("role", "gridcell");
		let r = this.percent(this.scale.place(t.start)), i = this.percent(this.scale.place(t.start + t.duration)), o = e[t.status], s = [a(t), o].filter(Boolean).join(" · ");
		if (i >= 0 && r <= 100) {
			let e = g("span", `wf-bar wf-${t.status}`);
			e.style.left = `${Math.max(r, -1)}%`, e.style.width = `${Math.min(i, 101) - Math.max(r, -1)}%`, n.append(e);
		}
		let c = g("span", `wf-text${o ? " wf-marked" : ""}`, s);
		return i < 80 ? c.style.left = `calc(${Math.max(i, 0)}% + 6px)` : r > 20 ? c.style.right = `calc(${100 - Math.min(r, 100)}% + 6px)` : (c.style.left = "8px", c.classList.add("wf-inside")), n.append(c), n;
	}
	percent(e) {
		return (e - this.from) / (this.to - this.from) * 100;
	}
	cuts(e) {
		let t = g("div", e);
		for (let { place: e, width: n } of this.scale.cuts) {
			let r = g("span", "wf-cut");
			r.style.left = `${this.percent(e)}%`, r.style.width = `${this.percent(e + n) - this.percent(e)}%`, t.append(r);
		}
		return t;
	}
	drawAxis() {
		let e = this.cuts("wf-ticks");
		this.axis.replaceChildren(e), this.scale.cuts.forEach(({ start: t, end: n }, r) => {
			let a = e.children[r];
			a.clientWidth >= p && (a.textContent = i(n - t));
		});
		let t = this.to - this.from, n = t / Math.max(e.clientWidth, 1), r = o(t / Math.max(2, e.clientWidth / f));
		for (let { start: t, place: a, length: o } of this.scale.stretches) for (let c of s(Math.max(this.from - a, 0), Math.min(this.to - a, o), r)) {
			let r = t === 0 ? i(c) : c === 0 ? i(t) : `+${i(c)}`, s = g("span", "wf-tick", (Math.min(a + o, this.to) - a - c) / n < p ? "" : r);
			s.style.left = `${this.percent(a + c)}%`, e.append(s);
		}
	}
	kindOf(e) {
		return [
			"step",
			"person",
			"end"
		].includes(e.kind) ? "" : `${h[e.kind]} `;
	}
	tell() {
		let t = this.bars[this.current];
		if (t === void 0) return;
		let n = [
			`${this.kindOf(t)}${t.name}`,
			`began at ${i(t.start)}`,
			...a(t) ? [`took ${a(t)}${t.kind === "hook" ? " of its own" : ""}`] : []
		];
		e[t.status] && n.push(e[t.status]), t.note && n.push(t.note);
		let r = n.join(" · ");
		this.detail.textContent !== r && (this.detail.textContent = r);
	}
	go(e) {
		let t = Math.min(Math.max(e, 0), this.shown.length - 1);
		this.current = this.shown[t] ?? 0;
		let n = t * u;
		n < this.grid.scrollTop && (this.grid.scrollTop = n);
		let r = n + u - this.grid.clientHeight;
		r > this.grid.scrollTop && (this.grid.scrollTop = r), this.draw();
	}
	fold(e, t) {
		n(this.bars, e) && (t ? this.closed.add(e) : this.closed.delete(e), this.list());
	}
	zoom(e) {
		let t = this.bars[this.current], n = t === void 0 ? (this.from + this.to) / 2 : (this.scale.place(t.start) + this.scale.place(t.start + t.duration)) / 2, r = (this.to - this.from) * e / 2;
		this.view(n - r, n + r);
	}
	fit(e) {
		let [t, n] = [this.scale.place(e.start), this.scale.place(e.start + e.duration)];
		this.view(t - (n - t) * .1, n + (n - t) * .1);
	}
	view(e, t) {
		this.from = Math.max(0, e), this.to = Math.min(this.scale.length, Math.max(t, this.from + .001)), this.draw();
	}
	pressed(e) {
		if (e.ctrlKey || e.metaKey || e.altKey) return;
		let t = this.shown.indexOf(this.current), i = Math.max(1, Math.floor(this.grid.clientHeight / u) - 1), a = this.bars[this.current], o = {
			ArrowDown: () => this.go(t + 1),
			ArrowUp: () => this.go(t - 1),
			PageDown: () => this.go(t + i),
			PageUp: () => this.go(t - i),
			Home: () => this.go(0),
			End: () => this.go(this.shown.length - 1),
			ArrowRight: () => this.closed.has(this.current) ? this.fold(this.current, !1) : n(this.bars, this.current) && this.go(t + 1),
			ArrowLeft: () => n(this.bars, this.current) && !this.closed.has(this.current) ? this.fold(this.current, !0) : this.go(this.shown.indexOf(r(this.bars, this.current))),
			Enter: () => a && this.fit(a),
			"+": () => this.zoom(.5),
			"-": () => this.zoom(2),
			0: () => this.view(0, this.scale.length)
		}[e.key];
		o !== void 0 && (e.preventDefault(), o());
	}
	clicked(e) {
		let t = e.target, n = t.closest(".wf-row");
		if (n === null) return;
		let r = Number(n.dataset.place);
		this.current = r, t.closest(".wf-fold") === null ? this.draw() : this.fold(r, !this.closed.has(r));
	}
};
customElements.define("hook-waterfall", _);
