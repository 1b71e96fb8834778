// Attention on tokens of the plane, [x, y, copies] each, with the numbers of lipcore; and how they are moved.
const plane = (() => {
	const { within, hands } = live, { cos, sin, sqrt } = Math;
	// A matrix is [a, b, c, d], by rows.
	const build = (entry) => [entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)];
	const product = (M, N) => build((i, j) => M[2 * i] * N[j] + M[2 * i + 1] * N[2 + j]);
	const times = ([a, b, c, d], [x, y]) => [a * x + b * y, c * x + d * y];
	const dot = (u, v) => { let s = 0; for (let i = 0; i < u.length; i++) s += u[i] * v[i]; return s; };
	const sum = (list) => list.reduce((a, b) => a + b, 0);
	const rotation = (t) => [cos(t), -sin(t), sin(t), cos(t)];

	// One row a query. Masked, every copy is a row; unmasked, one copy is, and the others are a second of their weight.
	// p: weight on each place; count: copies of each in sight.
	const queries = ({ tokens, causal }, A) => tokens.flatMap((x, b) => Array.from({ length: causal ? x[2] : Math.min(2, x[2]) }, (_, r) => {
		const count = tokens.map((y, l) => (!causal || l < b ? y[2] : l === b ? r + 1 : 0));
		const Ax = times(A, x), scores = tokens.map((y, l) => dot(Ax, y) + Math.log(count[l])), high = Math.max(...scores);
		const e = scores.map((s) => Math.exp(s - high)), p = e.map((v) => v / sum(e));
		const mean = [0, 1].map((k) => sum(p.map((w, l) => w * tokens[l][k])));
		const off = tokens.map((y) => [y[0] - mean[0], y[1] - mean[1]]);
		const C = build((i, j) => sum(p.map((w, l) => w * off[l][i] * off[l][j])));
		return { b, r, p, count, off, mean, Ax, C, own: product(C, A), weight: causal || !r ? 1 : x[2] - 1 };
	}));

	// The Jacobian, two lines a row, on moves times √weight.
	const jacobian = (rows) => rows.flatMap((q, i) => [0, 1].map((k) => {
		const line = new Float64Array(2 * rows.length);
		rows.forEach(({ b, r, weight }, j) => {
			const w = r < q.count[b] ? sqrt(q.weight * weight) * q.p[b] / q.count[b] : 0;
			for (const m of [0, 1]) line[2 * j + m] = w * ((k === m) + q.off[b][k] * q.Ax[m]) + (i === j && q.own[2 * k + m]);
		});
		return line;
	}));

	// Largest singular value, its vector and the image: uphill on the sphere by conjugate gradients.
	const singular = (J) => {
		const push = (h) => J.map((line) => dot(line, h)), mix = (s, u, t, v) => u.map((x, i) => s * x + t * v[i]);
		const pull = (y) => J.reduce((all, line, i) => { for (let j = 0; j < all.length; j++) all[j] += y[i] * line[j]; return all; }, J[0].map(() => 0));
		const unit = (v) => v.map((x) => x / sqrt(dot(v, v)));
		let x = unit(J[0].map((_, i) => sin(1 + 0.7311 * i * i))), y = push(x), way = x.map(() => 0), last = Infinity;
		for (let k = 0; k < 500; k++) {
			const value = dot(y, y), up = mix(1, pull(y), -value, x), steep = dot(up, up);
			if (steep < 1e-15 * value * value) break;
			way = mix(1, up, steep / last, way);
			way = mix(1, way, -dot(way, x), x);
			const d = unit(way), z = push(d), t = Math.atan2(2 * dot(y, z), value - dot(z, z)) / 2;
			[x, y, last] = [mix(cos(t), x, sin(t), d), mix(cos(t), y, sin(t), z), steep];
		}
		return { value: sqrt(dot(y, y)), vector: x, image: y };
	};

	// The constant, the worst nudge h of all n tokens, the response to it; `by` parts such a list by token.
	const measure = (scene, A) => {
		const { tokens } = scene, rows = queries(scene, A), { value, vector, image } = singular(jacobian(rows));
		const outwards = Math.sign(sum(rows.map(({ b }, i) => vector[2 * i] * tokens[b][0] + vector[2 * i + 1] * tokens[b][1]))) || 1;
		const each = (y) => rows.flatMap((q, i) => Array(q.weight).fill([0, 1].map((k) => outwards * y[2 * i + k] / sqrt(q.weight))));
		const last = tokens.map((_, l) => rows.findLast((q) => q.b === l)), owner = tokens.flatMap((t, b) => Array(t[2]).fill(b));
		const by = (moves) => tokens.map((_, b) => moves.filter((_, i) => owner[i] === b));
		return { norm: value, h: each(vector), response: each(image), A, rows, n: owner.length, P: last.map((q) => q.p), outputs: last.map((q) => q.mean), by };
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
	return { build, product, times, dot, sum, rotation, queries, jacobian, singular, measure, settle, hold };
})();
