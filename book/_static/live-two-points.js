// The live picture of "Two points, one knob": mass p at −R and 1 − p at R, A = −γI, V = I (lipcore.measures.TwoDirac).
// liveTwoPoints.set({p, radius, gamma}) changes what is named; liveTwoPoints.state() returns all that is shown.
(() => {
"use strict";
const root = document.getElementById("live-two-points");
if (!root) return;

// Numbers, by the logarithm of p/(1 − p), so that nothing is lost where p is small.
const odds = (p) => Math.log(p) - Math.log1p(-p);
const sigmoid = (t) => (t > 0 ? 1 / (1 + Math.exp(-t)) : Math.exp(t) / (1 + Math.exp(t)));
const norm = ([a, b, c, d]) => (Math.hypot(a + d, b - c) + Math.hypot(a - d, b + c)) / 2;

// Row i: own weight, weight r on the other, and the derivative of the output of point i, in the coordinates √mass · move.
function derivative(t, a) {
	const rows = [t, -t].map((own) => {
		const r = sigmoid(2 * a - own), rest = sigmoid(own - 2 * a);
		return { r, rest, self: rest * (1 - 6 * a * r), other: r * (1 + 2 * a * rest) * Math.exp(own / 2), mixed: r * Math.exp(own / 2) };
	});
	const [x, y] = rows, matrix = [x.self, x.other, y.other, y.self];
	return { weights: [x.r, y.r], matrix, constant: norm(matrix), transverse: norm([x.rest, x.mixed, y.mixed, y.rest]),
		ownQuery: rows.map(({ r, rest }) => 4 * a * r * rest) };
}

// Largest value of a function with one hill on [low, high]: the best of a grid, then golden section around it.
function highest(f, low, high) {
	const step = (high - low) / 400, grid = Array.from({ length: 401 }, (_, i) => low + i * step);
	const top = grid.reduce((best, t) => (f(t) > f(best) ? t : best)), ratio = (Math.sqrt(5) - 1) / 2;
	let left = Math.max(low, top - step), right = Math.min(high, top + step);
	for (let i = 0; i < 60; i++) {
		const u = right - ratio * (right - left), v = left + ratio * (right - left);
		if (f(u) < f(v)) left = u; else right = v;
	}
	const at = [left, low, high].reduce((best, t) => (f(t) > f(best) ? t : best));
	return { at, value: f(at) };
}

const peak = (a) => highest((t) => derivative(t, a).constant, -2 * a - 6, 0);

function measure({ p, radius, gamma }) {
	const a = gamma * radius ** 2, { at, value } = peak(a), small = Math.exp(-2 * a);
	const row = ({ value: F }) => Math.exp(a) * Math.sqrt(F) + a; // lipcore.bounds.two_dirac_peak is F
	return {
		a, ...derivative(odds(p), a), peak: value, peakMass: sigmoid(at),
		sharp: row(highest((w) => (1 - w + w * small) * (w * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) * (1 - 2 * a * w) ** 2 * small), 0.2, 0.55)),
		meanField: (1 + a) * Math.exp(a) + a, published: (1 + 3 * a) * Math.exp(2 * a),
	};
}

// The picture: log p to the right, log ‖DF‖ upwards.
const one = (selector) => root.querySelector(selector), svg = one("svg"), form = one("form"), point = one(".live-point");
const FRAME = { left: 44, right: 392, top: 12, bottom: 262, low: -9, high: Math.log10(0.5), floor: -0.3, roof: 5 };
const START = { p: 0.02, radius: 1.5, gamma: 1 }, TRIES = {
	"live-try-balance": { p: 0.5, radius: 1.5, gamma: 1.5 }, "live-try-peak": { p: "peak", radius: 1.5, gamma: 1.5 },
	"live-try-deaf": { p: 1e-8, radius: 1.5, gamma: 1.5 },
};
const right = (p) => FRAME.left + (Math.log10(p) - FRAME.low) / (FRAME.high - FRAME.low) * (FRAME.right - FRAME.left);
const up = (v) => FRAME.bottom - (Math.log10(v) - FRAME.floor) / (FRAME.roof - FRAME.floor) * (FRAME.bottom - FRAME.top);
const within = (v, low, high) => Math.min(high, Math.max(low, +v || 0));
const power = (v) => [...String(v)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
const say = (v) => {
	if (v >= 1e-3 && v < 1e5) return v < 99.95 ? v.toPrecision(3) : Math.round(v).toLocaleString("en");
	const [digits, e] = v.toExponential(1).split("e");
	return `${digits} × 10${power(+e)}`;
};
const put = (e, attributes) => { for (const k in attributes) e.setAttribute(k, attributes[k]); };
const text = (name, value) => root.querySelectorAll(`[data-show=${name}]`).forEach((e) => { e.textContent = value; });
const path = (points) => points.map(([p, v], i) => `${i ? "L" : "M"}${right(p).toFixed(1)} ${up(v).toFixed(1)}`).join("");
let scene = START, found, timer;

function set(changed) {
	const next = { ...scene, ...changed };
	for (const name of ["radius", "gamma"]) next[name] = within(next[name], form[name].min, form[name].max);
	if (next.p === "peak") next.p = sigmoid(peak(next.gamma * next.radius ** 2).at);
	next.p = within(next.p, 1e-9, 1 - 1e-9);
	scene = next;
	found = measure(scene);
	draw();
	clearTimeout(timer);
	timer = timer === undefined ? 0 : setTimeout(() => { // once a change has settled: say it, and keep it in the address
		one("[role=status]").textContent = one(".live-words").textContent;
		history.replaceState(null, "", "#live=" + encodeURIComponent(JSON.stringify(scene)));
	}, 400);
}

function words() {
	const { p } = scene, { a, constant, weights, peakMass } = found, share = peakMass * Math.exp(2 * a);
	const where = a < 0.8 ? `With a = γR² = ${say(a)} the scores hardly differ: attention averages, and no mass does more than ${say(found.peak)}.`
		: `The peak is at p = ${say(peakMass)}, which is ${share.toFixed(2)} · e⁻²ᵃ with a = γR² = ${say(a)}; it is ${say(found.peak)} high, and the bound for all measures ${say(found.meanField / found.peak)} times that.`;
	return `With ${say(100 * p)} % of the mass on the left, the right point gives it the weight ${say(weights[1])}, and the worst nudge comes out ${say(constant)} times as long. ${where}`;
}

function draw() {
	const { p, radius } = scene, { a, constant, weights, meanField } = found, lightest = Math.min(p, 0.5);
	const masses = Array.from({ length: 241 }, (_, i) => 10 ** (FRAME.low + (FRAME.high - FRAME.low) * i / 240));
	put(one(".live-curve"), { d: path(masses.map((m) => [m, derivative(odds(m), a).constant])) });
	put(one(".live-level"), { d: path([[masses[0], meanField], [0.5, meanField]]) });
	put(one(".live-level-name"), { y: up(meanField) - 5 });
	put(one(".live-peak"), { cx: right(found.peakMass), cy: up(found.peak) });
	const tick = right(Math.min(0.5, Math.max(1e-9, Math.exp(-2 * a))));
	put(one(".live-tick"), { d: `M${tick} ${FRAME.bottom}v-12` });
	put(one(".live-tick-name"), { x: within(tick, 62, 370) });
	put(point, { transform: `translate(${right(lightest)} ${up(constant)})`, "aria-valuenow": Math.log10(p).toFixed(2),
		"aria-valuetext": `mass ${say(p)}: ${say(constant)} times` });
	const place = 190 * radius / 2, size = (mass) => 3 + 21 * Math.sqrt(mass);
	put(one(".live-left"), { cx: 218 - place * 0.85, r: size(p) });
	put(one(".live-right"), { cx: 218 + place * 0.85, r: size(1 - p) });
	put(one(".live-attends"), { d: `M${218 + place * 0.85} 326H${218 - place * 0.85}`, "stroke-width": 12 * weights[1] });
	const shown = { constant, peak: found.peak, sharp: found.sharp, meanField, published: found.published }, top = Math.log1p(found.published);
	for (const name in shown) {
		text(name, say(shown[name]));
		one(`[data-bar=${name}]`).style.width = 100 * Math.log1p(shown[name]) / top + "%";
	}
	for (const name of ["radius", "gamma"]) { form[name].value = scene[name]; text(name, scene[name].toFixed(2)); }
	form.mass.value = Math.log10(p);
	text("mass", say(p));
	one(".live-words").textContent = words();
}

// Axes, and the way the peak goes as a grows from 0.8 to 8.
const label = (x, y, anchor, words) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${words}</text>`;
one(".live-axes").innerHTML = [0, 1, 2, 3, 4, 5].map((e) => `<path d="M${FRAME.left} ${up(10 ** e)}H${FRAME.right}"/>${label(FRAME.left - 5, up(10 ** e) + 4, "end", e < 4 ? (10 ** e).toLocaleString("en") : "10" + power(e))}`).join("")
	+ [-9, -7, -5, -3, -1].map((e) => `<path d="M${right(10 ** e)} ${FRAME.bottom}v4"/>${label(right(10 ** e), FRAME.bottom + 16, "middle", e < -1 ? "10" + power(e) : "0.1")}`).join("");
put(one(".live-way"), { d: path(Array.from({ length: 40 }, (_, i) => peak(0.8 + i * 0.1847)).map(({ at, value }) => [sigmoid(at), value])) });

// Hands.
const toMass = (e) => {
	const x = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
	return 10 ** within(FRAME.low + (x - FRAME.left) / (FRAME.right - FRAME.left) * (FRAME.high - FRAME.low), FRAME.low, FRAME.high);
};
svg.onpointerdown = (e) => { svg.setPointerCapture(e.pointerId); point.focus({ preventScroll: true }); set({ p: toMass(e) }); e.preventDefault(); };
svg.onpointermove = (e) => { if (svg.hasPointerCapture(e.pointerId)) set({ p: toMass(e) }); };
point.onkeydown = (e) => {
	const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -99, End: 99 }[e.key];
	if (!way || e.ctrlKey || e.metaKey || e.altKey) return;
	e.preventDefault();
	set({ p: 10 ** within(Math.log10(scene.p) + way * (e.shiftKey ? 0.5 : 0.05), FRAME.low, FRAME.high) });
};
form.onsubmit = (e) => e.preventDefault();
form.oninput = ({ target: { name, value } }) => set(name === "mass" ? { p: 10 ** value } : { [name]: value });
root.onclick = ({ target: { value } }) => {
	if (value === "peak") set({ p: "peak" });
	if (value === "balance") set({ p: 0.5 });
	if (value === "reset") set(START);
};
for (const name in TRIES) for (const box of document.getElementsByClassName(name)) {
	box.insertAdjacentHTML("beforeend", '<button type="button" class="live-button">Set it up</button>');
	box.lastChild.onclick = () => { set(TRIES[name]); root.scrollIntoView(); };
}
const read = () => {
	try { set(JSON.parse(decodeURIComponent(location.hash.slice(6)))); } catch { if (!found) set({}); } // another anchor
};
read();
addEventListener("hashchange", read);
root.hidden = false;
window.liveTwoPoints = { set, state: () => ({ ...scene, ...found }) };
})();
