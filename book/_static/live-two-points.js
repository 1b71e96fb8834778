// The live picture of "Two points, one knob": mass p at −R and 1 − p at R, A = −γI, V = I (lipcore.measures.TwoDirac).
live.picture("two-points", ({ one, form, show, bars, set, state }) => {
const { within, put, say, power } = live, { odds, sigmoid, derivative } = pair;

// Largest value of a function on [low, high]: the best of a grid, then golden section around it.
function highest(f, low, high) {
	const step = (high - low) / 400, best = (list) => list.reduce((a, t) => (f(t) > f(a) ? t : a)), top = best(Array.from({ length: 401 }, (_, i) => low + i * step));
	const at = best([arithmetic.valley((t) => -f(t), Math.max(low, top - step), Math.min(high, top + step)), low, high]);
	return { at, value: f(at) };
}

const LEAST = 1e-9, peak = (a) => highest((t) => derivative(t, a).constant, Math.min(-2 * a - 6, odds(LEAST)), 0);

function measure({ p, radius, gamma }) {
	const a = gamma * radius ** 2, { at, value } = peak(a), here = derivative(odds(p), a), everyN = (name) => Math.exp(bounds.plain[name](Infinity, Math.log(a)));
	return {
		a, ...here, peak: Math.max(value, here.constant), peakMass: sigmoid(at),
		sharp: everyN("sharp"), meanField: everyN("meanField"), published: everyN("published"),
	};
}

// The picture: log p to the right, log ‖DF‖ upwards.
const FRAME = { left: 44, right: 392, top: 12, bottom: 262, low: -9, high: Math.log10(0.5), floor: -0.3, roof: 5 };
const right = (p) => FRAME.left + (Math.log10(p) - FRAME.low) / (FRAME.high - FRAME.low) * (FRAME.right - FRAME.left);
const up = (v) => FRAME.bottom - (Math.log10(v) - FRAME.floor) / (FRAME.roof - FRAME.floor) * (FRAME.bottom - FRAME.top);
const path = (points) => points.map(([p, v], i) => `${i ? "L" : "M"}${right(p).toFixed(1)} ${up(v).toFixed(1)}`).join("");

function settle(scene) {
	const p = scene.p === "peak" ? sigmoid(peak(scene.gamma * scene.radius ** 2).at) : scene.p;
	return { ...scene, p: within(p, LEAST, 1 - LEAST) };
}

function words({ p }, { a, constant, weights, peak, peakMass, meanField }) {
	show({ percent: say(100 * p), weight: say(weights[1]), where: a === 0 ? "With γ = 0 all scores are equal: every token takes the mean of all, and no mass does more than 1.00."
		: a < 0.8 ? `With a = γR² = ${+a.toPrecision(3)} the scores hardly differ: attention averages, and no mass does more than ${say(peak)}.`
		: `The peak is at p = ${say(peakMass)}, which is ${(peakMass * Math.exp(2 * a)).toFixed(2)} · e⁻²ᵃ with a = γR² = ${+a.toPrecision(3)}. It is ${say(peak)} high, and the bound for all measures is ${say(meanField / peak)} times that.` });
}

function draw(scene, found) {
	const { p, radius } = scene, { a, constant, weights, meanField, peak, sharp, published } = found, lightest = Math.min(p, 0.5);
	const masses = Array.from({ length: 241 }, (_, i) => 10 ** (FRAME.low + (FRAME.high - FRAME.low) * i / 240));
	put(one(".live-curve"), { d: path(masses.map((m) => [m, derivative(odds(m), a).constant])) });
	put(one(".live-level"), { d: path([[masses[0], meanField], [0.5, meanField]]) });
	put(one(".live-level-name"), { y: up(meanField) - 5 });
	put(one(".live-peak"), { cx: right(found.peakMass), cy: up(peak) });
	const small = Math.exp(-2 * a), tick = right(within(small, LEAST, 0.5)), seen = small < 0.5 ? 1 : 0;
	put(one(".live-tick"), { d: `M${tick} ${FRAME.bottom}v-12`, opacity: seen });
	put(one(".live-tick-name"), { x: within(tick, 62, 370), opacity: seen });
	put(one(".live-point"), { transform: `translate(${right(lightest)} ${up(constant)})`, "aria-valuenow": Math.log10(p).toFixed(2),
		"aria-valuetext": `mass ${say(p)}: ${say(constant)} times` });
	const place = 190 * radius / 2, size = (mass) => 3 + 21 * Math.sqrt(mass);
	put(one(".live-left"), { cx: 218 - place * 0.85, r: size(p) });
	put(one(".live-right"), { cx: 218 + place * 0.85, r: size(1 - p) });
	put(one(".live-attends"), { d: `M${218 + place * 0.85} 326H${218 - place * 0.85}`, "stroke-width": 12 * weights[1] });
	bars({ constant, peak, sharp, meanField, published });
	form.mass.value = Math.log10(p);
	form.mass.setAttribute("aria-valuetext", say(p));
	show({ mass: say(p) });
	words(scene, found);
}

// Axes, and the way the peak goes as a grows from 0.8 to 8.
const label = (x, y, anchor, words) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${words}</text>`;
one(".live-axes").innerHTML = [0, 1, 2, 3, 4, 5].map((e) => `<path d="M${FRAME.left} ${up(10 ** e)}H${FRAME.right}"/>${label(FRAME.left - 5, up(10 ** e) + 4, "end", e < 4 ? (10 ** e).toLocaleString("en") : power(e))}`).join("")
	+ [-9, -7, -5, -3, -1].map((e) => `<path d="M${right(10 ** e)} ${FRAME.bottom}v4"/>${label(right(10 ** e), FRAME.bottom + 16, "middle", e < -1 ? power(e) : "0.1")}`).join("");
put(one(".live-way"), { d: path(Array.from({ length: 40 }, (_, i) => peak(0.8 + i * 0.1847)).map(({ at, value }) => [sigmoid(at), value])) });

const svg = one("svg"), toMass = (e) => ({ p: 10 ** within(e, FRAME.low, FRAME.high) });
live.hands(svg, one(".live-point"), (x) => set(toMass(FRAME.low + (x - FRAME.left) / (FRAME.right - FRAME.left) * (FRAME.high - FRAME.low))),
	(dx, dy) => set(toMass(Math.log10(state().p) + dx + dy)));
return {
	settle, measure, draw,
	inputs: { mass: (e) => ({ p: 10 ** e }) },
	buttons: { peak: () => ({ p: "peak" }), balance: () => ({ p: 0.5 }) },
};
});
