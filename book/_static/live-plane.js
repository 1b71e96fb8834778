// Attention on tokens of the plane, [x, y, copies] each, with the numbers of lipcore; and how they are moved.
const plane = (() => {
	const { within, hands } = live, { attention, dot } = arithmetic, { cos, sin, sqrt } = Math, EYE = [[1, 0], [0, 1]];
	// A matrix is [a, b, c, d], by rows.
	const build = (entry) => [entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)];
	const product = (M, N) => build((i, j) => M[2 * i] * N[j] + M[2 * i + 1] * N[2 + j]);
	const times = ([a, b, c, d], [x, y]) => [a * x + b * y, c * x + d * y];
	const sum = (list) => list.reduce((a, b) => a + b, 0);
	const rotation = (t) => [cos(t), -sin(t), sin(t), cos(t)];

	// Attention, V = I, with one row a query. Masked, every copy is a row; unmasked, one copy is, and the others are a second
	// row of their weight. p: weight on each token; count: copies of each in sight.
	const attend = ({ tokens, causal }, A) => {
		const rows = tokens.flatMap((x, b) => Array.from({ length: causal ? x[2] : Math.min(2, x[2]) }, (_, r) => ({ b, r, weight: causal || !r ? 1 : x[2] - 1 })));
		const J = attention({ X: rows.map(({ b }) => tokens[b].slice(0, 2)), Q: [A.slice(0, 2), A.slice(2)], K: EYE, V: EYE, causal, weights: rows.map((q) => q.weight) });
		rows.forEach((q, i) => {
			q.count = tokens.map((y, l) => (!causal || l < q.b ? y[2] : l === q.b ? q.r + 1 : 0));
			q.p = tokens.map((_, l) => sum(rows.map(({ b }, j) => (b === l ? J.P[i * J.n + j] : 0))));
			q.mean = [J.outputs[2 * i], J.outputs[2 * i + 1]];
			q.off = tokens.map((y) => [y[0] - q.mean[0], y[1] - q.mean[1]]);
			q.Ax = times(A, tokens[q.b]);
			q.C = build((k, m) => sum(q.p.map((w, l) => w * q.off[l][k] * q.off[l][m])));
			q.own = product(q.C, A);
		});
		return { rows, J };
	};
	const largest = (J) => arithmetic.largest(J, { tol: 1e-10, probability: null });

	// The constant, the worst nudge h of all n tokens, the response to it; `by` parts such a list by token.
	const measure = (scene, A) => {
		const { tokens } = scene, { rows, J } = attend(scene, A), { value, vector, image } = largest(J);
		const outwards = Math.sign(sum(rows.map(({ b }, i) => vector[2 * i] * tokens[b][0] + vector[2 * i + 1] * tokens[b][1]))) || 1;
		const each = (y) => rows.flatMap((q, i) => Array(q.weight).fill([0, 1].map((k) => outwards * y[2 * i + k] / sqrt(q.weight))));
		const last = tokens.map((_, l) => rows.findLast((q) => q.b === l)), owner = tokens.flatMap((t, b) => Array(t[2]).fill(b));
		const by = (moves) => tokens.map((_, b) => moves.filter((_, i) => owner[i] === b));
		return { norm: value, h: each(vector), response: each(image), A, J, rows, n: owner.length, P: last.map((q) => q.p), outputs: last.map((q) => q.mean), by };
	};
	// At most eight tokens, in the disc; so few with a mask that a change is seen at once.
	const settle = (scene) => {
		const tokens = scene.tokens.slice(0, 8), most = 256 / (scene.causal ? tokens.length : 1);
		return { ...scene, chosen: within(scene.chosen, 0, tokens.length - 1) | 0, tokens: tokens.map(([x, y, copies]) => {
			const shrink = Math.min(1, scene.radius / (Math.hypot(x, y) || 1));
			return [x * shrink, y * shrink, Math.round(within(copies, 1, most))];
		}) };
	};

	// The tokens of a picture can be moved: `get` and `set` its scene.
	const hold = (svg, get, set) => svg.querySelectorAll(".live-token").forEach((token, b) => {
		const move = (x, y) => set({ tokens: get().tokens.map((t, l) => (l === b ? [x, y, t[2]] : t)) });
		token.tabIndex = 0;
		hands(token, token, (x, y) => move(x, -y), (dx, dy) => move(get().tokens[b][0] + dx, get().tokens[b][1] + dy));
		token.onfocus = () => set({ chosen: b });
		token.ontouchstart = (e) => e.preventDefault();
	});
	return { build, product, times, dot, sum, rotation, attend, largest, measure, settle, hold };
})();
