// The live picture of "The lower bound": one token at −R, n − 1 at R, A = −γI, a = γR²; the one is moved by `nudge`.
live.picture("crowd", ({ one, form, show, bars, set, state }) => {
const { put, say, minus, within } = live, { arrow, axes, play } = chart;
const COUNTS = [...new Set(Array.from({ length: 49 }, (_, i) => Math.round(2 ** (i / 4))))], HOME = [-1.15, 0.62], FAR = 1.15, LOW = -0.62;

function sigma(k, a) {
	const { constant, transverse, weights, ownQuery, matrix } = pair.derivative(-Math.log(k), a);
	return { norm: Math.max(constant, transverse, k > 1 ? ownQuery[1] : 0), weight: weights[1], matrix };
}

function settle(scene) {
	const far = Math.hypot(...scene.nudge), shrink = Math.min(1, 0.5 / (far || 1));
	return { ...scene, count: Math.round(within(scene.count, 1, 4096)), nudge: far < 0.03 ? [0.03, 0] : scene.nudge.map((v) => v * shrink) };
}

function measure({ count: k, a, nudge: [u, v] }) {
	const { norm, weight: w, matrix } = sigma(k, a), far = Math.hypot(u, v);
	const answer = [w * (1 + 2 * a * (1 - w)) * u, w * v], each = Math.hypot(...answer) / far;
	return { norm, weight: w, answer, each, all: Math.sqrt(k) * each, limit: Math.exp(2 * a) };
}

// Places in a round crowd, each a little further out than the last, so that all are seen.
const crowded = (k) => {
	const count = Math.min(k, 600), size = Math.min(0.5, 0.1 * Math.sqrt(count));
	return Array.from({ length: count }, (_, i) => [Math.sqrt((i + 0.5) / count) * size, 2.39996 * i]).map(([r, t]) => [r * Math.cos(t), r * Math.sin(t)]);
};
const dots = (places, [x, y], r) => places.map(([u, v]) => `M${(x + u - r).toFixed(3)} ${(-y - v).toFixed(3)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0-${2 * r} 0`).join("");

const graph = axes(one(".live-chart"), [2, 4097], [0.7, 60], [2, 10, 100, 1000], [1, 3, 10, 30]);
graph.curve(".live-reference", [[2, Math.sqrt(2)], [3600, 60]]);
let drawn;

function draw({ count: k, a, nudge }, { norm, weight, answer, each, all, limit }) {
	const places = crowded(k), r = +Math.max(0.012, Math.min(0.07, 0.16 / k ** 0.45)).toFixed(3), size = Math.min(0.14, 0.5 / k ** 0.45 + 0.04);
	put(one(".live-listen"), { d: places.slice(0, 80).map(([u, v]) => `M${FAR + u} ${-HOME[1] - v}L${HOME[0] + nudge[0]} ${-HOME[1] - nudge[1]}`).join(""), "stroke-width": 0.14 * weight / Math.sqrt(Math.min(k, 80)) });
	put(one(".live-crowd"), { d: dots(places, [FAR, HOME[1]], r) });
	const mean = [FAR * (1 - 2 * weight), LOW];
	put(one(".live-outputs"), { d: dots(places, mean, r * 0.8) });
	put(one(".live-answer"), { d: places.filter((_, i) => i % Math.ceil(places.length / 60) === 0).map(([u, v]) => arrow([mean[0] + u, mean[1] + v], answer, size)).join(""), "stroke-width": Math.max(0.008, 0.04 / k ** 0.3) });
	put(one(".live-nudge"), { d: arrow(HOME, nudge, 0.16) });
	put(one(".live-token"), { transform: `translate(${HOME[0] + nudge[0]} ${-HOME[1] - nudge[1]})`, "aria-label": `The one token, moved by ${nudge.map((v) => minus(v.toFixed(2))).join(", ")}` });
	if (drawn !== a) graph.curve(".live-curve", COUNTS.map((c) => [c + 1, sigma(c, a).norm]));
	drawn = a;
	graph.dot(".live-here", k + 1, norm);
	put(one(".live-tick"), { d: `M${graph.across(limit)} ${graph.floor}V16` });
	put(one(".live-tick-name"), { x: graph.across(limit) });
	bars({ one: 1, each, all });
	form.crowd.value = COUNTS.findLastIndex((c) => c <= k);
	form.crowd.setAttribute("aria-valuetext", k + 1);
	show({ n: (k + 1).toLocaleString("en"), count: k.toLocaleString("en"), weight: say(100 * weight), norm: say(norm), limit: say(limit),
		members: k === 1 ? "The one token of the crowd" : `Each of the ${k.toLocaleString("en")} tokens of the crowd`,
		where: k < limit && sigma(2 * k, a).norm > 1.1 * norm ? "So far the crowd looks at the leader, and σ grows about like √n." : k < 4 * limit ? "Here the growth ends: the tokens of the crowd look at one another as well." : "The crowd outvotes the leader, and σ falls." });
}

const token = one(".live-token");
live.hands(token, token, (x, y) => set({ nudge: [x - HOME[0], -y - HOME[1]] }), (dx, dy) => set({ nudge: [state().nudge[0] + dx, state().nudge[1] + dy] }));
token.ontouchstart = (e) => e.preventDefault();
return {
	settle, measure, draw,
	inputs: { crowd: (i) => ({ count: COUNTS[Math.round(i)] }) },
	buttons: { play: play(one("[value=play]"), form.crowd, 6) },
};
});
