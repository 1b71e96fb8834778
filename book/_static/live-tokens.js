// Attention on tokens of the plane, [x, y, copies] each, with the numbers of lipcore; and how it is drawn.
const plane = (() => {
	const { put, within, minus, hands } = live;
	// A matrix is [a, b, c, d], by rows.
	const build = (entry) => [entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)];
	const product = (M, N) => build((i, j) => M[2 * i] * N[j] + M[2 * i + 1] * N[2 + j]);
	const times = ([a, b, c, d], [x, y]) => [a * x + b * y, c * x + d * y];
	const dot = (u, v) => { let s = 0; for (let i = 0; i < u.length; i++) s += u[i] * v[i]; return s; };
	const sum = (list) => list.reduce((a, b) => a + b, 0);
	const rotation = (t) => [Math.cos(t), -Math.sin(t), Math.sin(t), Math.cos(t)];

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
			const w = r < q.count[b] ? Math.sqrt(q.weight * weight) * q.p[b] / q.count[b] : 0;
			for (const m of [0, 1]) line[2 * j + m] = w * ((k === m) + q.off[b][k] * q.Ax[m]) + (i === j && q.own[2 * k + m]);
		});
		return line;
	}));

	// Largest singular value, its vector and the image: uphill on the sphere by conjugate gradients.
	const singular = (J) => {
		const push = (h) => J.map((line) => dot(line, h)), mix = (s, u, t, v) => u.map((x, i) => s * x + t * v[i]);
		const pull = (y) => J.reduce((all, line, i) => { for (let j = 0; j < all.length; j++) all[j] += y[i] * line[j]; return all; }, J[0].map(() => 0));
		const unit = (v) => v.map((x) => x / Math.sqrt(dot(v, v)));
		let x = unit(J[0].map((_, i) => Math.sin(1 + 0.7311 * i * i))), y = push(x), way = x.map(() => 0), last = Infinity;
		for (let k = 0; k < 500; k++) {
			const value = dot(y, y), up = mix(1, pull(y), -value, x), steep = dot(up, up);
			if (steep < 1e-15 * value * value) break;
			way = mix(1, up, steep / last, way);
			way = mix(1, way, -dot(way, x), x);
			const d = unit(way), z = push(d), t = Math.atan2(2 * dot(y, z), value - dot(z, z)) / 2;
			[x, y, last] = [mix(Math.cos(t), x, Math.sin(t), d), mix(Math.cos(t), y, Math.sin(t), z), steep];
		}
		return { value: Math.sqrt(dot(y, y)), vector: x, image: y };
	};

	// The constant, the worst nudge h of all n tokens, the response to it; `by` parts such a list by token.
	const measure = (scene, A) => {
		const { tokens } = scene, rows = queries(scene, A), { value, vector, image } = singular(jacobian(rows));
		const pair = (y, i) => [y[2 * i], y[2 * i + 1]], outwards = Math.sign(sum(rows.map((q, i) => dot(pair(vector, i), tokens[q.b])))) || 1;
		const each = (y) => rows.flatMap((q, i) => Array(q.weight).fill(pair(y, i).map((v) => outwards * v / Math.sqrt(q.weight))));
		const last = tokens.map((_, l) => rows.findLast((q) => q.b === l)), owner = tokens.flatMap((t, b) => Array(t[2]).fill(b));
		const by = (moves) => tokens.map((_, b) => moves.filter((_, i) => owner[i] === b));
		return { norm: value, h: each(vector), response: each(image), A, rows, n: owner.length, P: last.map((q) => q.p), outputs: last.map((q) => q.mean), by };
	};

	// Arrows from one place, a ring. Those that point the same way, as of copies, are spread like rays, so that all are seen.
	const fan = ([x, y], moves) => {
		const long = moves.filter((v) => Math.hypot(...v) > 0.03), way = long.reduce((a, b) => (dot(b, b) > dot(a, a) ? b : a), [0, 0]);
		return [1, -1].map((sign) => long.filter((v) => sign * dot(v, way) > 0)).filter((same) => same[0]).map((same) => {
			const count = same.length, step = Math.min(0.09, 1.7 / count), size = 0.11 / count ** 0.4, from = 0.22 - 0.22 / count;
			const ray = ([u, v], i) => {
				const far = Math.hypot(u, v), turn = Math.atan2(-v, u) + (i - (count - 1) / 2) * step;
				const to = (r, t = turn) => `${(r * Math.cos(t)).toFixed(3)} ${(r * Math.sin(t)).toFixed(3)}`;
				return `M${x} ${-y}m${to(from)}l${to(far)}l${to(size, turn + 2.6)}m${to(-size, turn + 2.6)}l${to(size, turn - 2.6)}`;
			};
			const [u, v] = same[count >> 1], far = Math.hypot(u, v);
			return { d: `M${x - 0.03} ${-y}a.03 .03 0 1 0 .06 0a.03 .03 0 1 0-.06 0` + same.map(ray).join(""), count,
				spots: [0.2, 0.4].map((k) => (from + k) / far + 1).map((k) => [x + u * k, -y - v * k]) };
		});
	};

	// Texts, each on the first of its spots that is free, or below.
	const write = (group, taken, notes) => {
		group.innerHTML = notes.map(({ words, name }) => `<text class="${name}">${words}</text>`).join("");
		notes.forEach(({ spots }, i) => {
			const text = group.children[i], { width, height } = text.getBBox(), w = width / 2 + 0.02, h = height * 0.45;
			const free = ([x, y]) => taken.every((t) => Math.abs(t[0] - x) > t[2] + w || Math.abs(t[1] - y) > t[3] + h);
			let [x, y] = spots.find(free) || spots[0];
			while (!free([x, y])) y += 0.05;
			taken.push([x, y, w, h]);
			put(text, { x, y });
		});
	};

	// The tokens, their fans and notes, and where the chosen one looks.
	const draw = (svg, { tokens, chosen, radius }, { h, response, by, P, outputs }) => {
		const all = (name) => svg.querySelectorAll(".live-" + name), looks = all("look"), notes = [], taken = [];
		const scale = 0.6 / Math.max(...[...h, ...response].map((v) => Math.hypot(...v)));
		for (const [name, moves, tails] of [["nudge", h, tokens], ["answer", response, outputs]]) {
			const fans = by(moves).flatMap((same, b) => fan(tails[b], same.map((v) => v.map((x) => x * scale))));
			put(all(name)[0], { d: fans.map((f) => f.d).join("") });
			for (const f of fans) if (f.count > 3) notes.push({ words: "×" + f.count, name: `live-${name}-count`, spots: f.spots });
		}
		put(all("ball")[0], { r: radius });
		all("token").forEach((token, b) => {
			const [x, y, copies] = tokens[b] || [0, 0, 0], [u, v] = tokens[chosen], share = P[chosen][b] || 0;
			token.style.display = copies ? "" : "none";
			put(token, { transform: `translate(${x} ${-y})`, "aria-pressed": b === chosen,
				"aria-label": `Token ${token.textContent}, copies: ${copies}, at ${minus(x.toFixed(2))}, ${minus(y.toFixed(2))}` });
			put(token.children[1], { r: 0.11 + 0.005 * Math.log2(copies || 1) });
			put(looks[b], { x1: u, y1: -v, x2: x, y2: -y, "stroke-width": share / 5 });
			if (!copies) return;
			taken.push([x, -y, 0.12, 0.12]);
			notes.unshift({ words: `${copies > 1 ? `×${copies} · ` : ""}${Math.round(100 * share)} %`, name: "",
				spots: [[x, 0.28 - y], [x, -0.28 - y]] });
		});
		write(all("notes")[0], taken, notes);
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
	return { build, product, times, dot, sum, rotation, jacobian, singular, measure, draw, settle, hold };
})();
