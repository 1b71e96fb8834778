// The bounds of lipcore.bounds for tokens in a ball, for ‖V‖ = 1. All that goes in and comes out is a logarithm: la of a = ‖A‖R²,
// ln of n, which is Infinity for every n. So nothing overflows.
"use strict";
const bounds = (() => {
	const { dot, symmetric, valley, mix } = arithmetic, { abs, cos, exp, expm1, log, log1p, max, min, round, sin, sqrt } = Math, LOG2 = log(2);
	const norm = (v) => sqrt(dot(v, v)), minus = (u, v) => mix(1, u, -1, v), scaled = (v, s) => v.map((x) => x * s);
	const add = (x, y) => { const high = max(x, y), low = min(x, y); return low === -Infinity || high === Infinity ? high : high + log1p(exp(low - high)); };
	const onePlus = (...factors) => add(0, factors.includes(-Infinity) ? -Infinity : factors.reduce((a, b) => a + b));
	const kept = (f) => { let x, y; return (v) => (v === x ? y : (y = f(x = v))); }; // the last value, for a curve over n
	const others = (ln) => ln + log1p(-exp(-ln)), least = (f, low, high) => f(valley(f, low, high));

	// --- upper bounds: each is M of M + a, but for the general and the published one -----------------------------------------
	const columnSum = (ln, la, gap = Infinity) => {
		const spread = 2 * exp(la), g = min(gap, spread);
		return ln === Infinity ? g : min(g, max(0, add(-onePlus(others(ln) - spread), -add(-g, -others(ln)))), ln);
	};
	const torn = (la) => (la <= -LOG2 ? 0 : add(0, 2 * (la + log1p(exp(-2 * la) / 4))) - LOG2); // G
	const twoDirac = kept((la) => { // κF
		const a = exp(la), small = exp(-2 * a), one = 1 / (1 + 2 * a), two = 2 * a * one;
		const value = (w) => (1 - w + w * small) * (w * (one + two * (1 - w)) ** 2 + (1 - w) * (one - two * w) ** 2 * small);
		return 2 * a + log(-least((w) => -value(w), 0.2, 0.55)) + 2 * log1p(2 * a);
	});
	const hardy = (la) => LOG2 + onePlus(LOG2, la);
	const moments = kept((la) => { // least (2/(2−p))^{1/p} M_q with q = p/(p−1), M_q the largest moment of a row
		const a = exp(la), rest = 1 / (1 + 2 * a), share = 2 * a * rest;
		const row = (q) => {
			const moment = (w) => -(w * (1 - share * w) ** q + (1 - w) * abs(rest - share * w) ** q), step = 1 / 512;
			let near = 0;
			for (let i = 1; i <= 512; i++) if (moment(i * step) < moment(near)) near = i * step;
			return log(-least(moment, max(near - step, 0), min(near + step, 1))) / q - log(rest);
		};
		return min(least((p) => log(2 / (2 - p)) / p + row(p / (p - 1)), 1.01, 1.7), hardy(la));
	});
	// of every n with a causal mask, by Hardy's inequality for whole rows, or for the least weight of a row and the rest apart
	const everyN = (lm, la) => min(lm + exp(la), add(lm, onePlus(LOG2 / 2, la) + exp(la) + log(-expm1(-2 * exp(la))) / 2));
	const own = (f) => (ln, la, head) => add(f(ln, la, head), la);
	const plain = {
		general: (ln, la) => (log(3) + add(2 * la + onePlus(2 * LOG2, ln), ln)) / 2,
		unified: own((ln, la) => (onePlus(2 * la) + columnSum(ln, la)) / 2),
		rate: own((ln, la, { gap }) => (onePlus(2 * la) + columnSum(ln, la, gap)) / 2),
		sharp: own((ln, la) => min(ln === Infinity ? ln : onePlus(2 * la) + columnSum(ln, la), ln + torn(la), twoDirac(la)) / 2),
		torn: own((ln, la) => (ln + torn(la)) / 2),
		meanField: own((ln, la) => onePlus(2 * la) / 2 + exp(la)),
		published: (ln, la) => onePlus(log(3), la) + 2 * exp(la),
	};
	const masked = {
		general: plain.general,
		torn: plain.torn,
		masked: own((ln, la) => min(onePlus(la) + ln / 2, everyN(hardy(la), la))),
		moments: own((ln, la) => everyN(moments(la), la)),
		maskedRate: own((ln, la, { gap, rank }) => hardy(la) + min(2 * exp(la), rank * onePlus(LOG2, la, min(LOG2, log(rank) / 2)) + 1 + gap) / 2),
	};

	// --- a matrix A and its score gap ----------------------------------------------------------------------------------------
	// Singular values and vectors, from the symmetric matrix with A and its transposed beside the diagonal.
	const singular = (A) => {
		const d = A.length, whole = Array.from({ length: 2 * d }, (_, i) => Array.from({ length: 2 * d }, (_, j) => (i < d ? (j < d ? 0 : A[i][j - d]) : j < d ? A[j][i - d] : 0)));
		const { values, vectors } = symmetric(whole), unit = (v) => scaled(v, 1 / (norm(v) || 1));
		return { sizes: values.slice(0, d), left: unit(vectors[0].slice(0, d)), right: vectors.slice(0, d).map((v) => unit(v.slice(d))) };
	};
	const times = (A, v) => A.map((row) => dot(row, v)), spectral = (A) => singular(A).sizes[0];
	// What the bounds ask of A: its norm, rank, γ (null if not known here), score gap g and a query u that has it.
	const matrix = (A) => {
		const d = A.length, { sizes, left, right } = singular(A), size = sizes[0], unit = A.map((row) => scaled(row, 1 / size)), T = unit.map((_, i) => unit.map((row) => row[i]));
		const even = A.every((row, i) => row.every((v, j) => v === A[j][i])), known = { A, d, size, rank: sizes.filter((s) => s > 1e-14 * size).length, left, right, sizes };
		const [trace, off] = d === 2 ? [(A[0][0] + A[1][1]) / 2, ((A[0][0] - A[1][1]) / 2) ** 2 + A[0][1] * A[1][0]] : [];
		const real = even ? symmetric(A).values : d > 2 ? null : off < 0 ? [] : [trace - sqrt(off), trace + sqrt(off)];
		const dual = (mu) => symmetric(T.map((row, i) => T.map((other, j) => dot(row, other) / 4 / mu - (unit[i][j] + unit[j][i]) / 2)));
		let low = 1 / 16, high = 1 / 2, best = [Infinity];
		for (let i = 0; i < 50; i++) {
			const mu = (low + high) / 2, { values, vectors } = dual(mu), value = mu + max(values[0], 0);
			if (value < best[0]) best = [value, mu];
			if (values[0] > 0 && norm(times(unit, vectors[0])) > 2 * mu) low = mu; else high = mu;
		}
		// the query lies in the top eigenspace, where ‖A·‖ = 2μ; nearly equal eigenvalues are tried as one
		const [upper, mu] = best, { values, vectors } = dual(mu);
		const queries = [1e-14, 1e-12, 1e-10, 1e-8].map((within) => {
			const top = vectors.filter((_, i) => values[i] >= values[0] - within), images = top.map((v) => times(unit, v));
			const squares = symmetric(images.map((u) => images.map((v) => dot(u, v)))), [most, few] = [squares.values[0], squares.values.at(-1)];
			const share = most > few ? min(max((4 * mu * mu - few) / (most - few), 0), 1) : 1;
			const mixture = mix(sqrt(share), squares.vectors[0], sqrt(1 - share), squares.vectors.at(-1)).map((v, i) => (top.length > 1 || i ? v : squares.vectors[0][0]));
			const u = top.map((v, i) => scaled(v, mixture[i])).reduce((a, b) => mix(1, a, 1, b));
			return values[0] <= within ? scaled(u, min(1, 2 * mu / norm(times(unit, u)))) : scaled(u, 1 / max(1, norm(u)));
		});
		const reached = (u) => norm(times(unit, u)) - dot(u, times(unit, u)), u = queries.reduce((a, b) => (reached(b) > reached(a) ? b : a));
		return { ...known, gamma: real && real.reduce((a, v) => max(a, -v, v / 8), 0), gap: size * max(upper, 0), u, reached: size * reached(u) };
	};

	// --- lower bounds, by inputs: for V = I, with n itself ---------------------------------------------------------------------
	const weight = (ln, gap) => -onePlus(others(ln) - gap);
	const adversarial = (n, square, { gamma }) => others(log(n)) / 2 + weight(log(n), 2 * gamma * square);
	const maskedLeader = (n, square, { gamma }) => {
		const q = exp(-2 * gamma * square), terms = n - 1, first = min(terms, 256);
		let head = 0;
		for (let i = 1; i <= first; i++) head += (1 + i * q) ** -2;
		if (terms === first) return log(head) / 2;
		const start = 1 + (first + 0.5) * q, end = 1 + (terms + 0.5) * q; // Euler and Maclaurin's sum of the rest
		return log(head + (terms - first) / start / end - q / 12 * (start ** -3 - end ** -3)) / 2;
	};
	const count = (x, most) => max(1, min(round(x), most)), sigmoid = (x) => 1 / (1 + exp(-x));
	const outer = (u, v, s, c) => u.map((x, i) => v.map((y, j) => s * x * y + (i === j ? c : 0)));
	const ownQuery = (n, square, { size, left, right }) => {
		const theta = 1 - 1 / n - (n % 2 === 0) / n ** 2;
		return log(spectral(outer(left, right[0], theta * size * square, 1 / n)));
	};
	const copies = (n, square, { A, d, u, reached }) => {
		const Au = times(A, u), size = norm(Au) * square, first = scaled(Au, 1 / norm(Au)), way = minus(first, u);
		let best = [-Infinity];
		for (let i = 1; i <= 64; i++) for (let k = 0; k < 33; k++) {
			const tau = i / 64, lead = tau * reached * square, m = n === Infinity ? 0 : count(n * sigmoid(k / 4 - 4 - lead), max(Math.floor(n / 2), 1));
			const rho = m ? log(m) - log(n - m) : k / 4 - 4 - lead, w = -onePlus(-lead - rho) - rho / 2, slope = size * tau * sigmoid(-lead - rho);
			const value = w + log(max(norm(mix(1, first, slope, way)), d > 1 ? 1 : 0));
			if (value > best[0]) best = [value, w, slope];
		}
		return best[1] + log(spectral(outer(way, first, best[2], 1)));
	};
	const tornCrowd = (n, square, { A, sizes, right, u }) => {
		let best = -Infinity, tried = [];
		for (const v of [...right.filter((_, i) => sizes[i] > 1e-9 * sizes[0]), u]) {
			const Av = times(A, v), size = norm(Av) * square, along = dot(v, Av) / norm(Av);
			if (tried.some(([s, c]) => abs(s / size - 1) + abs(c - along) < 1e-12)) continue;
			tried.push([size, along]);
			for (let i = 0; i < 150; i++) for (let k = 1; k <= 100; k++) {
				const angle = 0.01 + (Math.PI / 2 - 0.01) * i / 149, t = k / 100, lead = t * (cos(angle) - t * along) * size;
				const m = n === Infinity ? 0 : count(n / (2 + 2 * exp(lead)), max(Math.floor((n - 1) / 2), 1)), q = m ? log(n - 2 * m) - log(m) : LOG2 + lead;
				best = max(best, -add(LOG2, q - lead) + (LOG2 + q) / 2 + log(t * sin(angle) * size));
			}
		}
		return best;
	};
	const pulled = (n, square, { A, u, reached }) => {
		const Au = times(A, u), size = norm(Au) * square, b = scaled(Au, 1 / norm(Au)), along = dot(u, b), ahead = reached * square;
		const aside = [u, ...A.map((_, i) => A.map((_, j) => +(i === j)))].map((v) => mix(1, v, -dot(v, b), b)).find((v) => norm(v) > 0.1), e = scaled(aside, 1 / norm(aside));
		const eu = dot(e, u), uu = dot(u, u);
		let best = -Infinity;
		for (let i = 1; i < 48; i++) for (let j = 0; j < 21; j++) for (let k = 0; k < 21; k++) {
			const angle = Math.PI * (i / 24 - 1), [c, s] = [cos(angle), sin(angle)], [first, second] = [j / 2 - 5, k / 2 - 5], third = size * (c - along);
			let x = 0, y = first - ahead, z = second - third, p = 1, q = 1; // masses, and parts of the way from the crowd
			if (n < Infinity) {
				const high = max(0, y, z), all = exp(-high) + exp(y - high) + exp(z - high), m = max(1, round(n * exp(y - high) / all)), r = max(1, round(n * exp(z - high) / all));
				[x, y, z] = [log(max(n - m - r, 0)), log(m), log(r)];
				p = min(max((first - y + x) / ahead, 0), 1);
				if (third > 0) q = min(max((second - z + x) / third, 0), 1);
			}
			const [v, w] = [y + p * ahead, z + q * third], high = max(x, v, w), all = exp(x - high) + exp(v - high) + exp(w - high), W = exp(v - high) / all;
			const far = q * exp(w - high) / all, near = p * (exp(x - high) + exp(w - high)) / all;
			const [B, E, U] = [1 + size * (near - far * c), -size * far * s, size * (far - near)];
			const value = (x - y) / 2 + log(W) + log(B * B + E * E + U * U * uu + 2 * U * (B * along + E * eu)) / 2;
			if (value > best) best = value;
		}
		return best;
	};
	// Those that hold for n tokens in d dimensions, or for every n.
	const lower = { adversarial, own: ownQuery, copies, torn: tornCrowd, pulled };
	return { add, columnSum, twoDirac, plain, masked, matrix, lower, maskedLower: { leader: maskedLeader } };
})();
