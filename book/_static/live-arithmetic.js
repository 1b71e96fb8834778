// What lipcore computes, for live pictures: attention and the products with its Jacobian, and the largest singular
// value with its certificate. A matrix goes in as a list of rows; vectors and what is made of them are flat.
"use strict";
const arithmetic = (() => {
	const { abs, acosh, cosh, cos, exp, expm1, hypot, log, max, min, sqrt, sign } = Math, EPS = 2 ** -52, TINY = 1e-150, LEAST = -80;
	const dot = (u, v) => { let s = 0; for (let i = 0; i < u.length; i++) s += u[i] * v[i]; return s; };
	const norm = (v) => sqrt(dot(v, v)), flat = (M) => Float64Array.from(M.flat());
	const mix = (s, u, t, v) => u.map((x, i) => s * x + t * v[i]);

	// A·B, n × k times k × m, where `left` or `right` says that the transposed of the factor is given.
	const multiply = (A, B, n, k, m, { left, right } = {}) => {
		const C = new Float64Array(n * m), row = right ? 1 : m, step = right ? k : 1;
		for (let i = 0; i < n; i++) for (let l = 0; l < k; l++) {
			const a = left ? A[l * n + i] : A[i * k + l];
			if (a) for (let j = 0, c = i * m, b = l * row; j < m; j++, b += step) C[c++] += a * B[b];
		}
		return C;
	};
	const matrix = (M) => {
		const [n, m, A] = [M.length, M[0].length, flat(M)];
		return { rows: n, columns: m, push: (h) => multiply(A, h, n, m, 1), pull: (g) => multiply(A, g, m, n, 1, { left: true }) };
	};

	// One head at tokens X: scores scale·(Qx_i + b)·Kx_j + bias, −∞ where it is null; a token may count several times (`weights`).
	// The Jacobian then takes moves times √weight, as measures have them. A bias of the keys or of the values changes nothing.
	const attention = ({ X, Q, K, V, offset, scale = 1, causal, bias, weights }) => {
		const [n, d, k, p] = [X.length, X[0].length, Q.length, V.length], root = weights && weights.map(sqrt);
		const [x, WK, WV] = [X, K, V].map(flat), WQ = flat(Q).map((w) => w * scale), to = { right: true }, back = { left: true };
		const queries = multiply(x, WQ, n, d, k, to), keys = multiply(x, WK, n, d, k, to), values = multiply(x, WV, n, d, p, to);
		if (offset) queries.forEach((_, i) => { queries[i] += scale * offset[i % k]; });
		const P = multiply(queries, keys, n, k, n, to), heaviest = [];
		for (let i = 0; i < n; i++) {
			const s = P.subarray(i * n, i * n + n);
			for (let j = 0; j < n; j++) s[j] = (causal && j > i) || bias?.[i][j] === null ? -Infinity : s[j] + (bias?.[i][j] ?? 0) + (weights ? log(weights[j]) : 0);
			const high = s.reduce((a, b) => max(a, b)), all = s.reduce((a, v) => a + exp(v - high), 0);
			heaviest[i] = s.indexOf(high);
			s.forEach((v, j) => { s[j] = exp(v - high) / all; });
		}
		const weighted = (H, width, way) => (root ? H.map((v, i) => v * root[i / width | 0] ** way) : H);
		// P_ij (S_ij − mean), the derivative of softmax, relative to the heaviest key: settled rows lose no digits
		const soften = (S) => {
			for (let i = 0; i < n; i++) {
				const row = S.subarray(i * n, i * n + n), p = P.subarray(i * n, i * n + n), zero = row[heaviest[i]];
				row.forEach((v, j) => { row[j] = v - zero; });
				const mean = dot(row, p);
				row.forEach((v, j) => { row[j] = p[j] * (v - mean); });
			}
			return multiply(S, values, n, n, p);
		};
		// The three terms of the derivative: mixing, own query and others' keys; `push` adds those that are wanted.
		const terms = [
			(h) => multiply(P, multiply(h, WV, n, d, p, to), n, n, p),
			(h) => soften(multiply(multiply(h, WQ, n, d, k, to), keys, n, k, n, to)),
			(h) => soften(multiply(queries, multiply(h, WK, n, d, k, to), n, k, n, to)),
		];
		const pieces = (H) => { const h = weighted(H, d, -1); return terms.map((term) => weighted(term(h), p, 1)); };
		const push = (H) => pieces(H).reduce((a, b) => mix(1, a, 1, b));
		const pull = (G) => {
			const g = weighted(G, p, 1), S = multiply(g, values, n, p, n, to);
			soften(S);
			const parts = [[multiply(S, keys, n, n, k), WQ, k], [multiply(S, queries, n, n, k, back), WK, k], [multiply(P, g, n, n, p, back), WV, p]];
			return weighted(parts.map(([part, W, width]) => multiply(part, W, n, width, d)).reduce((a, b) => mix(1, a, 1, b)), d, -1);
		};
		// How far rounding may take a product with a unit vector, as in lipcore.jacobian, with Frobenius norms of the matrices.
		const longest = (part, width) => { let far = 0; for (let i = 0; i < n; i++) far = max(far, norm(part.subarray(i * width, (i + 1) * width))); return far; };
		const g = EPS * (2 * n + 2 * k + 3 * p + d + 20), [f, h, l] = [WQ, WK, WV].map(norm), near = EPS / 2 * (d + 9);
		const offs = [f * longest(x, d) + (offset ? abs(scale) * norm(offset) : 0), h * longest(x, d), l * longest(x, d)].map((size) => near * size);
		const [[offQ, offK, offV], q, key, v] = [offs, longest(queries, k), longest(keys, k), longest(values, p)];
		const added = bias ? bias.flat().reduce((a, b) => max(a, abs(b ?? 0)), 0) : 0, rho = expm1(min(100, 2 * (offQ * key + offK * q + g * q * key + 4 * EPS * added) + 4 * g));
		const spread = sqrt(multiply(P, new Float64Array(n).fill(1), n, n, 1, { left: true }).reduce((a, b) => max(a, b), 1));
		const rounding = (4 * rho + 8 * g) * (f * key * v + spread * (h * q * v + l)) + 2 * (f * (offK * v + key * offV) + spread * h * (offQ * v + q * offV));
		return { rows: n * p, columns: n * d, n, P, outputs: multiply(P, values, n, n, p), pieces, push, pull, rounding };
	};

	// Eigenvalues of a symmetric tridiagonal matrix, the largest first, and if wanted the last entry and all of the first's vector:
	// QR with Wilkinson's shift.
	const tridiagonal = (diagonal, beside, wanted) => {
		const d = [...diagonal], e = [...beside], n = d.length, Z = wanted && d.map((_, i) => d.map((_, j) => +(i === j)));
		const negligible = (k) => abs(e[k]) <= EPS * (abs(d[k]) + abs(d[k + 1]));
		for (let end = n - 1; end > 0;) {
			if (negligible(end - 1)) { end--; continue; }
			let start = end - 1;
			while (start > 0 && !negligible(start - 1)) start--;
			const half = (d[end - 1] - d[end]) / 2, off = e[end - 1];
			let x = d[start] - d[end] + off * off / (half + (sign(half) || 1) * hypot(half, off)), z = e[start];
			for (let k = start; k < end; k++) {
				const r = hypot(x, z) || 1, c = x / r, s = -z / r, [a, b, o] = [d[k], d[k + 1], e[k]];
				if (k > start) e[k - 1] = r;
				d[k] = c * c * a - 2 * c * s * o + s * s * b;
				d[k + 1] = s * s * a + 2 * c * s * o + c * c * b;
				x = e[k] = c * s * (a - b) + (c * c - s * s) * o;
				if (k < end - 1) { z = -s * e[k + 1]; e[k + 1] *= c; }
				if (wanted) [Z[k], Z[k + 1]] = [mix(c, Z[k], -s, Z[k + 1]), mix(s, Z[k], c, Z[k + 1])];
			}
		}
		const order = d.map((_, i) => i).sort((i, j) => d[j] - d[i]);
		return { values: order.map((i) => d[i]), vector: wanted && Z[order[0]] };
	};

	// Every row of Z is an eigenvector of a small symmetric matrix, by Jacobi's rotations; the largest eigenvalue comes first.
	const symmetric = (M) => {
		const A = M.map((row) => [...row]), n = A.length, Z = A.map((_, i) => A.map((_, j) => +(i === j)));
		const whole = norm(A.flat());
		for (let sweep = 0; sweep < 60 && A.some((row, i) => row.some((v, j) => i !== j && abs(v) > 1e-17 * whole)); sweep++)
			for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) {
				const t = Math.atan2(2 * A[i][j], A[i][i] - A[j][j]) / 2, c = cos(t), s = Math.sin(t);
				for (const rows of [A, Z]) [rows[i], rows[j]] = [mix(c, rows[i], s, rows[j]), mix(-s, rows[i], c, rows[j])];
				for (const row of A) [row[i], row[j]] = [c * row[i] + s * row[j], -s * row[i] + c * row[j]];
			}
		const order = A.map((_, i) => i).sort((i, j) => A[j][j] - A[i][i]);
		return { values: order.map((i) => A[i][i]), vectors: order.map((i) => Z[i]) };
	};

	// Where a function with one valley on [low, high] is least, by golden section.
	const valley = (f, low, high) => {
		const ratio = (sqrt(5) - 1) / 2;
		let u = high - ratio * (high - low), v = low + ratio * (high - low), [fu, fv] = [f(u), f(v)];
		for (let i = 0; i < 60; i++) {
			if (fu < fv) [high, v, fv, u] = [v, u, fu, v - ratio * (v - low)], fu = f(u);
			else [low, u, fu, v] = [u, v, fv, u + ratio * (high - u)], fv = f(v);
		}
		return (low + high) / 2;
	};

	// The s with P(|⟨v, z⟩| < s) = failure, for v uniform on the sphere of n dimensions: its density is c (1 − t²)^((n−3)/2).
	const overlap = (n, failure) => {
		let c = 1 / Math.PI;
		for (let k = 2; k < n; k++) c = (k - 1) / 2 / c / Math.PI; // c of k + 1
		let s = 0;
		for (let i = 0; i < 9; i++) s = failure / 2 / c / (1 - (n - 3) * s * s / 6 + (n - 3) * (n - 5) * s ** 4 / 40);
		return n === 1 ? 1 : s;
	};
	// A direction for the start, always the same: normal numbers of a small generator.
	const direction = (n) => {
		let seed = 0x6c6970;
		const random = () => {
			seed = (seed + 0x6d2b79f5) | 0;
			let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
			t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
			return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
		};
		const v = Float64Array.from({ length: n }, () => sqrt(-2 * log(1 - random())) * cos(2 * Math.PI * random()));
		return v.map((x) => x / norm(v));
	};

	// Certificate B is the root of ∏(σ² − θ_i²) = ∏ t_j/s; with m = log(σ²/θ_1² − 1) the left side is Σ log(e^m + x_i).
	const sides = (theta, t, s) => {
		const [x, right] = [theta.map((v) => 1 - (v / theta[0]) ** 2), t.reduce((a, v) => a + log(max(v / theta[0] ** 2, TINY)), -log(s))];
		return { x, right, left: (m) => x.reduce((a, v) => a + log(exp(m) + v), 0) };
	};
	// How much larger than θ_1 the better of the two certificates lets σ be.
	const growth = (theta, t, s) => {
		const { x, right, left } = sides(theta, t, s), k = theta.length;
		let m = right / k;
		for (let i = 0, step = 1; i < 60 && step > 1e-12; i++) {
			step = max(left(m) - right, 0) / x.reduce((a, v) => a + exp(m) / (exp(m) + v), 0);
			m = max(m - step, LEAST);
		}
		return min(cosh(acosh(1 / s) / (2 * k - 1)), sqrt(1 + exp(m)));
	};

	// Golub–Kahan–Lanczos with lipcore's stopping rule, one yield a step, so that a page can breathe meanwhile. Returns σ and
	// its bracket, the worst push (`vector`) and the answer (`image`), both flat.
	function* lanczos({ rows, columns, push, pull, rounding }, { tol = 1e-4, probability = 0.999, start = direction(columns) } = {}) {
		const s = probability && overlap(columns, 1 - probability), most = min(300, rows + 1, columns), V = [], d = [], t = [];
		const unit = (v, size) => v.map((x) => (size ? x / size : 0)), theta = (values) => values.map((v) => max(sqrt(max(v, 0)), TINY));
		let v = start, u = push(v), beta = 0, done = false;
		const near = () => { // θ_1 is within tol by the estimate, and within √tol for certain
			if (s) {
				const m = max(log(2 * sqrt(tol) + tol), LEAST), { right, left } = sides(theta(tridiagonal(d, t).values), t, s);
				if (left(m) < right) return false;
			}
			const { values, vector } = tridiagonal(d, t, true), [one, two = 0] = theta(values), residual = t.at(-1) * abs(vector.at(-1)) / one;
			return min(residual / one, residual ** 2 / 2 / max(one ** 2 - two ** 2, TINY)) <= tol;
		};
		while (!done) {
			V.push(v);
			const alpha = norm(u);
			u = unit(u, alpha);
			let w = mix(1, pull(u), -alpha, v);
			for (const _ of [1, 2]) for (const e of V) w = mix(1, w, -dot(w, e), e);
			const next = norm(w);
			if (!isFinite(alpha + next)) throw new Error("numbers too large: expected products that are finite");
			d.push(alpha ** 2 + beta ** 2);
			t.push(alpha * next);
			beta = next;
			done = near() || V.length === most;
			yield V.length;
			v = unit(w, beta);
			if (!done) u = mix(1, push(v), -beta, u);
		}
		const { values, vector } = tridiagonal(d, t, true), found = V.reduce((a, e, i) => mix(1, a, vector[i], e), start.map(() => 0));
		const top = unit(found, norm(found)), image = push(top), value = norm(image);
		// both ends of the bracket are widened by what rounding may do; where that is unknown, half of the digits are allowed for
		const [size, norms] = [rounding ?? sqrt(EPS) * value, (rows + columns + 20) * EPS];
		const exact = s ? max(value, theta(values)[0] * growth(theta(values), t, s)) : Infinity, upper = exact + (1 + sqrt(V.length)) * (size + norms * exact);
		return { value, lower: max(0, value - size - norms * value), upper, vector: top, image, products: V.length };
	}
	const largest = (J, options) => { const run = lanczos(J, options); for (;;) { const { done, value } = run.next(); if (done) return value; } };
	return { attention, direction, dot, largest, lanczos, matrix, mix, multiply, norm, overlap, symmetric, tridiagonal, valley };
})();
