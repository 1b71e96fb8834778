// The live picture of "Drag the tokens": {tokens: [[x, y, copies], …], chosen, radius, family, strength, turn, second, causal}.
live.picture("attention", ({ one, form, show, bars, set, state }) => {
const { times, dot, sum, rotation } = plane, { norm, say } = live, letter = (b) => "ABCDEFGH"[b], { exp, hypot, max, round, sqrt } = Math;
const COUNTS = [...new Set(Array.from({ length: 33 }, (_, i) => round(2 ** (i / 4))))]; // 1, 2, 3, …, 256

function bounds({ tokens, radius, causal }, { rows, J, A, n }) {
	const a = norm(A) * radius ** 2, most = (name) => max(...rows.map((q) => norm(q[name])));
	const seen = tokens.map((_, l) => norm(plane.build((i, j) => sum(rows.map((q) =>
		(q.count[l] ? q.weight * q.p[l] / q.count[l] * q.Ax[i] * q.Ax[j] : 0))))));
	const shares = rows.map((q, i) => rows.map((k, j) => J.P[i * J.n + j] * sqrt(q.weight / k.weight))), mixing = plane.largest(arithmetic.matrix(shares)).value;
	const one = causal ? 1 + a : hypot(1, a), hardy = 2 + 4 * a, column = causal ? n : n / (1 + (n - 1) * exp(-2 * a));
	return {
		local: mixing + most("own") + sqrt(most("C") * max(...seen)),
		ball: a + Math.min(one * sqrt(column), causal ? Math.min(hardy * exp(a), hardy + (1 + Math.SQRT2 * a) * sqrt(Math.expm1(2 * a))) : one * exp(a)),
	};
}

function settle(scene) {
	form.family.value = scene.family;
	const fixed = JSON.parse(form.family.selectedOptions[0].dataset.fixed);
	for (const name of ["turn", "second"]) form[name].disabled = name in fixed;
	return plane.settle({ ...scene, ...fixed });
}

function measure(scene) {
	const { strength, turn, second } = scene, A = plane.product(rotation(turn * Math.PI / 180), [strength, 0, 0, strength * second]);
	const found = plane.measure(scene, A), copied = max(found.norm, ...found.rows.map((q) => norm(q.own)));
	return { ...found, copied, bounds: bounds(scene, found) };
}

function words({ tokens, causal }, { n, norm, copied, bounds, h, response, by }) {
	const parts = (moves) => by(moves).map((same) => sum(same.map((v) => dot(v, v)))), answered = parts(response);
	const who = (parts) => parts.map((v, b) => [letter(b), round(100 * v / sum(parts))])
		.filter(([, share]) => share > 9).map(([name, share]) => `${name} (${share} %)`).join(", ");
	const b = answered.indexOf(max(...answered)), copies = tokens[b][2], parting = copied > norm * 1.0005;
	show({ nudged: who(parts(h)), answers: who(answered), share: say(100 * norm / bounds.ball), n, letter: letter(b),
		count: copies, each: say(sqrt(answered[b] / copies)), copying: say(copied / norm) });
	form.className = (causal ? "live-masked" : parting ? "live-parting" : "live-alike") + (copies > 1 ? " live-many" : "");
}

function draw(scene, found) {
	plane.draw(one("svg"), scene, found);
	const { norm } = found, copies = scene.tokens[scene.chosen][2];
	bars({ norm, ...found.bounds });
	show({ copies: letter(scene.chosen) + ": " + copies });
	form.copies.value = COUNTS.findLastIndex((c) => c <= copies);
	form.copies.ariaValueText = copies;
	form.style.setProperty("--norm", norm);
	form.causal.checked = scene.causal;
	words(scene, found);
}

// The worst case of the score gap: one token at R Au/‖Au‖, the others at Ru for its maximiser u.
function worst({ A, n, radius }) {
	let best = [-1];
	for (let i = 0; i < 720; i++) {
		const u = times(rotation(i * Math.PI / 180), [i < 360 ? 1 : 0.5, 0]), Au = times(A, u), size = hypot(...Au), gap = size - dot(u, Au);
		if (gap > best[0] + 1e-9) best = [gap, Au.map((x) => x / (size || 1)), u];
	}
	return [[best[1], 1], [best[2], n - 1]].map(([[x, y], copies]) => [x * radius, y * radius, copies]);
}

const tokens = (change) => (scene) => ({ tokens: change(scene) });
const random = (radius, copies) => [...[0, 0].map(() => radius * (2 * Math.random() - 1)), copies];
plane.hold(one("svg"), state, set);
return {
	settle, measure, draw,
	inputs: { copies: (i, scene) => ({ tokens: scene.tokens.map((t, b) => (b === scene.chosen ? [t[0], t[1], COUNTS[i]] : t)) }) },
	buttons: {
		worst: tokens(worst),
		equal: tokens(({ tokens, chosen: b }) => tokens.map((t) => [tokens[b][0], tokens[b][1], t[2]])),
		random: tokens(({ tokens, radius }) => tokens.map((t) => random(radius, t[2]))),
		add: tokens(({ tokens, radius }) => [...tokens, random(radius, 1)]),
		remove: tokens(({ tokens, chosen }) => tokens.filter((_, b) => b !== chosen || !tokens[1])),
		double: tokens(({ tokens }) => tokens.map(([x, y, copies]) => [x, y, 2 * copies])),
	},
};
});
