// The live picture of "Large radius": {tokens: [[x, y, 1], …] of a shape, chosen, t: they stand at t times that}. A turns by 53°.
live.picture("ties", ({ one, form, show, set, state }) => {
const { times, dot, rotation } = plane, { put, say, minus, norm } = live, A = [0.6, -0.8, 0.8, 0.6], letter = (b) => "ABCDEF"[b];
const scores = (tokens, x) => { const Ax = times(A, x); return tokens.map((y) => dot(Ax, y)); };
const best = (list) => list.indexOf(Math.max(...list));
const lead = (list) => Math.max(...list) - Math.max(...list.filter((_, j) => j !== best(list)));
const measure = ({ tokens, t }) => {
	const found = plane.measure({ tokens: tokens.map(([x, y]) => [t * x, t * y, 1]) }, A), rows = tokens.map((x) => scores(tokens, x));
	const looks = rows.map(best), gaps = rows.map(lead), q = Math.max(...tokens.map((_, j) => looks.filter((k) => k === j).length));
	return { norm: found.norm, P: found.P, looks, gaps, q };
};

// Every place of the plane in the colours of the keys that a query there would listen to, in proportion.
const canvas = one("canvas"), pen = canvas.getContext("2d"), SIDE = canvas.width, HALF = 1.6;
function paint(tokens, t) {
	const style = getComputedStyle(canvas), image = pen.createImageData(SIDE, SIDE);
	const colours = ["first", "second", "third", "fourth", "fifth", "sixth"].map((name) => style.getPropertyValue("--colour-" + name).trim().match(/[\da-f]{2}/gi).map((v) => parseInt(v, 16)));
	for (let i = 0; i < SIDE * SIDE; i++) {
		const s = scores(tokens, [(i % SIDE + 0.5) / SIDE * 2 - 1, 1 - (Math.floor(i / SIDE) + 0.5) / SIDE * 2].map((v) => v * HALF)), high = Math.max(...s);
		const e = s.map((v) => Math.exp((v - high) * t * t)), all = e.reduce((a, b) => a + b);
		for (const k of [0, 1, 2]) image.data[4 * i + k] = e.reduce((a, w, j) => a + w * colours[j][k], 0) / all;
		image.data[4 * i + 3] = 255;
	}
	pen.putImageData(image, 0, 0);
}

const graph = chart.axes(one(".live-chart"), [0.3, 10], [0.8, 100], [0.3, 1, 3, 10], [1, 3, 10, 30, 100]), TIMES = Array.from({ length: 61 }, (_, i) => 0.3 * (10 / 0.3) ** (i / 60));
let drawn;
function draw({ tokens, chosen, t }, { norm, P, looks, gaps, q }) {
	paint(tokens, t);
	form.querySelectorAll(".live-token").forEach((token, b) => {
		const [x, y] = tokens[b];
		put(token, { transform: `translate(${x} ${-y})`, "aria-pressed": b === chosen,
			"aria-label": `Token ${letter(b)}, at ${minus(x.toFixed(2))}, ${minus(y.toFixed(2))}, listens most to ${letter(looks[b])}` });
	});
	form.querySelectorAll(".live-look").forEach((line, l) => {
		const [b, j] = [Math.floor(l / 6), l % 6], [[x, y], [u, v]] = [tokens[b], tokens[j]];
		put(line, { d: b === j ? "" : `M${x} ${-y}L${u} ${-v}`, "stroke-width": 0.07 * P[b][j], "data-own": b === chosen });
	});
	if (drawn !== tokens) graph.curve(".live-curve", TIMES.map((t) => [t, Math.min(100, measure({ tokens, t }).norm)]));
	drawn = tokens;
	graph.curve(".live-reference", [[0.3, Math.sqrt(q)], [10, Math.sqrt(q)]]);
	graph.dot(".live-here", t, Math.min(100, norm));
	form.scale.value = Math.log10(t);
	form.scale.setAttribute("aria-valuetext", say(t));
	const torn = P.map((row) => Math.max(...row)), least = best(torn.map((v) => -v)), tied = best(gaps.map((v) => -v));
	show({ t: say(t), norm: say(norm), letter: letter(least), share: Math.floor(100 * torn[least]), key: letter(looks[least]), q, root: say(Math.sqrt(q)),
		end: gaps[tied] < 0.01 ? `Token ${letter(tied)} stands on a border between two regions: it stays torn, and the constant grows for ever, like t².`
			: `As t grows all weights freeze, and the constant settles at √${q} = ${say(Math.sqrt(q))}: at most ${q} tokens listen to the same one.` });
}

// The chosen token, turned about the centre to the nearest place where its first two keys are tied.
function tie({ tokens, chosen }) {
	const turned = (angle) => tokens.map((x, b) => (b === chosen ? [...times(rotation(angle), x), 1] : x)), at = (angle) => best(scores(turned(angle), turned(angle)[chosen]));
	for (let i = 1; i < 360; i++) for (const way of [1, -1]) {
		let near = way * (i - 1) * Math.PI / 360, far = way * i * Math.PI / 360;
		if (at(near) === at(far)) continue;
		for (let k = 0; k < 50; k++) { const middle = (near + far) / 2; if (at(middle) === at(near)) near = middle; else far = middle; }
		return { tokens: turned(near) };
	}
	return {};
}

plane.hold(one("svg"), state, set);
new MutationObserver(() => set({})).observe(document.documentElement, { attributeFilter: ["data-theme"] });
return {
	settle: (scene) => ({ ...scene, ...(({ tokens, chosen }) => ({ tokens, chosen }))(plane.settle(scene)), t: live.within(scene.t, 0.3, 10) }),
	measure, draw,
	inputs: { scale: (v) => ({ t: 10 ** v }) },
	buttons: { tie, play: chart.play(one("[value=play]"), form.scale, 6) },
};
});
