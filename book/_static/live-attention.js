// The live picture of "Drag the tokens": attention on tokens of the plane, with the numbers of lipcore.
// liveAttention.set({tokens: [[x, y, copies], …], radius, family, strength, turn, second, causal}) changes what is
// named; liveAttention.state() returns the scene and all that is shown.
(() => {
"use strict";
const root = document.getElementById("live-attention");
if (!root) return;

// Numbers. A matrix of the plane is [a, b, c, d], by rows.
const build = (entry) => [entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)];
const product = (M, N) => build((i, j) => M[2 * i] * N[j] + M[2 * i + 1] * N[2 + j]);
const flip = ([a, b, c, d]) => [a, c, b, d];
const times = ([a, b, c, d], [x, y]) => [a * x + b * y, c * x + d * y];
const norm = ([a, b, c, d]) => (Math.hypot(a + d, b - c) + Math.hypot(a - d, b + c)) / 2;
const dot = (u, v) => { let s = 0; for (let i = 0; i < u.length; i++) s += u[i] * v[i]; return s; };
const sum = (list) => list.reduce((a, b) => a + b, 0);
const at = (h, i) => [h[2 * i], h[2 * i + 1]];
const rotation = (turn, t = turn * Math.PI / 180) => [Math.cos(t), -Math.sin(t), Math.sin(t), Math.cos(t)];

// One row a query. Unmasked, the copies of a token are one row of that weight; masked, every copy is a row.
// p: weight on each place; count: copies of each in sight; upto: the rows that they fill.
function queries({ tokens, causal }, A) {
	return tokens.flatMap((x, b) => Array.from({ length: causal ? x[2] : 1 }, (_, r) => {
		const count = tokens.map((y, l) => (!causal || l < b ? y[2] : l === b ? r + 1 : 0));
		const Ax = times(A, x), scores = tokens.map((y, l) => dot(Ax, y) + Math.log(count[l])), high = Math.max(...scores);
		const e = scores.map((s) => Math.exp(s - high)), p = e.map((v) => v / sum(e));
		const mean = [0, 1].map((k) => sum(p.map((w, l) => w * tokens[l][k])));
		const off = tokens.map((y) => [y[0] - mean[0], y[1] - mean[1]]);
		const C = build((i, j) => sum(p.map((w, l) => w * off[l][i] * off[l][j])));
		return { b, p, count, off, mean, Ax, C, own: product(C, A), weight: causal ? 1 : x[2], upto: causal ? count : tokens.map(() => 1) };
	}));
}

// The Jacobian and its transpose on arrays of two numbers a row: moves times √weight.
function operator(rows) {
	const roots = rows.map((q) => Math.sqrt(q.weight)), size = 2 * rows.length, lists = () => rows[0].p.map(() => [[0, 0]]);
	const push = (h) => {
		const out = new Float64Array(size), moved = lists(); // moved[l][r]: sum over the first r rows of l
		rows.forEach((q, i) => moved[q.b].push(moved[q.b].at(-1).map((v, k) => v + h[2 * i + k] / roots[i])));
		rows.forEach((q, i) => {
			out.set(times(q.own, at(h, i)), 2 * i);
			q.p.forEach((w, l) => {
				const seen = moved[l][q.upto[l]].map((v) => v / q.upto[l]), key = dot(q.Ax, seen);
				if (w) for (const k of [0, 1]) out[2 * i + k] += roots[i] * w * (seen[k] + q.off[l][k] * key);
			});
		});
		return out;
	};
	const pull = (g) => {
		const out = new Float64Array(size), due = lists();
		rows.forEach((q, i) => q.p.forEach((w, l) => {
			const y = at(g, i), key = dot(q.off[l], y), r = q.upto[l];
			if (w) due[l][r] = y.map((v, k) => (due[l][r]?.[k] || 0) + w * roots[i] * (v + q.Ax[k] * key) / r);
		}));
		for (let i = rows.length - 1; i >= 0; i--) {
			const q = rows[i], mine = due[q.b], all = mine[0] = mine[0].map((v, k) => v + (mine[q.upto[q.b]]?.[k] || 0));
			out.set(times(flip(q.own), at(g, i)).map((v, k) => v + all[k] / roots[i]), 2 * i);
		}
		return out;
	};
	return { push, pull, size };
}

// Largest eigenvalue of a symmetric matrix ≥ 0 and its vector: squared often enough, a matrix keeps only that.
function largest(S) {
	let M = S;
	for (let k = 0; k < 45; k++) {
		const trace = sum(M.map((row, i) => row[i]));
		M = M.map((row) => M.map((other) => dot(row, other) / trace / trace));
	}
	const row = M.reduce((best, next) => (dot(next, next) > dot(best, best) ? next : best)), vector = row.map((x) => x / Math.hypot(...row));
	return { vector, value: dot(vector, S.map((row) => dot(row, vector))) };
}

// Largest singular value and its vector: Lanczos on JᵀJ, orthogonalised twice, restarted until it settles.
function singular({ push, pull, size }) {
	let vector = Float64Array.from({ length: size }, (_, i) => Math.sin(1 + 0.7311 * i * i)), value = 0;
	for (let round = 0, rest = 1; round < 50 && rest > 1e-11 * value; round++) {
		const basis = [], T = [];
		let next = vector, beta = Math.sqrt(dot(next, next));
		while (basis.length < 28 && beta > 1e-13 * value) {
			const j = basis.push(next.map((x) => x / beta)) - 1;
			T.forEach((row, i) => row.push(i === j - 1 ? beta : 0));
			T.push([...T.map((row) => row[j]), 0]);
			next = pull(push(basis[j]));
			for (const again of [0, 1]) basis.forEach((v, k) => {
				const s = dot(v, next);
				if (k === j) T[j][j] += s;
				next = next.map((x, i) => x - s * v[i]);
			});
			beta = Math.sqrt(dot(next, next));
			value = Math.max(value, T[j][j]);
		}
		const ritz = largest(T);
		vector = vector.map((_, i) => sum(basis.map((v, k) => ritz.vector[k] * v[i])));
		value = ritz.value;
		rest = beta * Math.abs(ritz.vector[basis.length - 1]);
	}
	return { value: Math.sqrt(value), vector };
}

// ‖P‖ from above, as lipcore.bounds.nonnegative_norm_upper.
function mixing(rows) {
	const P = operator(rows.map((q) => ({ ...q, Ax: [0, 0], own: [0, 0, 0, 0] })));
	let w = rows.map(() => 1), best = Infinity;
	for (let step = 0; step < 30; step++) {
		const image = P.pull(P.push(rows.flatMap((q, i) => [w[i] * Math.sqrt(q.weight), 0])));
		const out = rows.map((q, i) => image[2 * i] / Math.sqrt(q.weight)), high = Math.max(...out);
		best = Math.min(best, Math.sqrt(Math.max(...out.map((v, i) => v / w[i]))));
		w = out.map((v) => Math.max(v / high, 2 ** -104));
	}
	return best;
}

function bounds(scene, rows, A, n) {
	const a = norm(A) * scene.radius ** 2, most = (name) => Math.max(...rows.map((q) => norm(q[name])));
	const seen = scene.tokens.map((_, l) => norm(build((i, j) => sum(rows.map((q) =>
		(q.count[l] ? q.weight * q.p[l] / q.count[l] * q.Ax[i] * q.Ax[j] : 0))))));
	const any = (scene.causal ? 2 + 4 * a : 1 + a) * Math.exp(a) + a;
	const column = scene.causal ? n : n / (1 + (n - 1) * Math.exp(-2 * a));
	return {
		local: mixing(rows) + most("own") + Math.sqrt(most("C") * Math.max(...seen)),
		ball: Math.min((1 + a) * Math.sqrt(column) + a, any),
		any,
		published: Math.sqrt(3 * (a * a * (4 * n + 1) + n)),
	};
}

// All that is shown; h and response list the moves of all n tokens.
function measure(scene) {
	const { tokens, strength, turn, second } = scene, A = product(rotation(turn), [strength, 0, 0, strength * second]);
	const rows = queries(scene, A), J = operator(rows);
	let { value, vector } = singular(J);
	if (sum(rows.map((q, i) => dot(at(vector, i), tokens[q.b]))) < 0) vector = vector.map((x) => -x); // outwards
	const each = (y) => rows.flatMap((q, i) => Array(q.weight).fill(at(y, i).map((v) => v / Math.sqrt(q.weight))));
	const parted = rows.map((q) => (q.weight > 1 ? norm(q.own) : 0)), b = parted.indexOf(Math.max(...parted));
	let found = { norm: value, h: each(vector), response: each(J.push(vector)) };
	if (parted[b] > value * (1 + 1e-12)) { // two copies part: no other token feels it
		const own = rows[b].own, G = product(flip(own), own), first = sum(tokens.slice(0, b).map((x) => x[2]));
		const h = largest([G.slice(0, 2), G.slice(2)]).vector.map((x) => x * Math.SQRT1_2);
		const put = (v) => found.h.map((_, i) => v.map((x) => (i === first ? x : i === first + 1 ? -x : 0)));
		found = { norm: parted[b], h: put(h), response: put(times(own, h)) };
	}
	const n = found.h.length, last = tokens.map((_, l) => rows.filter((q) => q.b === l).pop());
	const copied = Math.max(value, ...rows.map((q) => norm(q.own)));
	return { ...found, n, A, copied, P: last.map((q) => q.p), outputs: last.map((q) => q.mean), bounds: bounds(scene, rows, A, n) };
}

const one = (selector) => root.querySelector(selector), form = one("form"), field = form.elements, svg = one("svg");
const [tokens, looks] = ["live-token", "live-look"].map((name) => [...svg.getElementsByClassName(name)]);
const START = JSON.parse(root.dataset.start), TRIES = JSON.parse(root.dataset.tries), NUMBERS = ["radius", "strength", "turn", "second"];
const within = (v, low, high) => Math.min(high, Math.max(low, +v || 0)), letter = (b) => "ABCDEFGH"[b];
const say = (v) => (v < 99.95 ? v.toPrecision(3) : Math.round(v).toLocaleString("en"));
let scene, found, chosen = 0, timer;

function set(changed) {
	const next = { ...scene, ...changed };
	field.family.value = next.family;
	const fixed = JSON.parse(field.family.selectedOptions[0].dataset.fixed);
	for (const name of NUMBERS) {
		next[name] = field[name].value = within(fixed[name] ?? next[name], field[name].min, field[name].max);
		field[name].disabled = name in fixed;
	}
	next.tokens = next.tokens.slice(0, 8).map(([x, y, copies]) => {
		const shrink = Math.min(1, next.radius / (Math.hypot(x, y) || 1));
		return [x * shrink, y * shrink, Math.round(within(copies, 1, 256))];
	});
	scene = next;
	found = measure(scene);
	draw();
	clearTimeout(timer);
	timer = timer === undefined ? 0 : setTimeout(() => {
		one("[role=status]").textContent = one(".live-words").textContent;
		history.replaceState(null, "", "#live=" + encodeURIComponent(JSON.stringify(scene)));
	}, 400);
}

function words(owner) {
	const { n, norm, copied } = found, who = (moves, whole = sum(moves.map((v) => dot(v, v)))) => tokens
		.map((_, b) => [letter(b), Math.round(100 * sum(moves.map((v, i) => (owner[i] === b ? dot(v, v) : 0))) / whole)])
		.filter(([_, share]) => share > 9).map(([name, share]) => `${name} (${share} %)`).join(", ");
	return `The worst nudge moves ${who(found.h)}. The answer, in ${who(found.response)}, is ${say(norm)} times as long: `
		+ `${say(100 * norm / found.bounds.ball)} % of what is proved for any n = ${n} tokens in this disc. `
		+ (scene.causal ? "Tokens see those before them; A is first."
			: `Copying all tokens multiplies it by ${say(copied / norm)}${copied > norm * 1.0005 ? ": copies can part." : ", however often."}`);
}

function arrow([x, y], [u, v]) {
	const head = [2.6, -2.6].map((turn) => Math.atan2(v, u) + turn).map((t) => `M${x + u} ${-y - v}l${Math.cos(t) / 9} ${-Math.sin(t) / 9}`);
	return Math.hypot(u, v) < 0.03 ? "" : `M${x} ${-y}l${u} ${-v}${head.join("")}`;
}

function draw() {
	const { h, response, P, outputs, bounds } = found, put = (e, o) => { for (const k in o) e.setAttribute(k, o[k]); };
	const text = (name, value) => { one(`[data-show=${name}]`).textContent = value; }, from = scene.tokens[chosen] ? chosen : (chosen = 0);
	tokens.forEach((token, b) => {
		const [x, y, copies] = scene.tokens[b] || [0, 0, 0], [u, v] = scene.tokens[from], share = P[from][b] || 0;
		token.style.display = copies ? "" : "none";
		put(token, { transform: `translate(${x} ${-y})`, "aria-pressed": b === from,
			"aria-label": `Token ${letter(b)}, copies: ${copies}, at ${x.toFixed(2)}, ${y.toFixed(2)}` });
		put(token.children[1], { r: 0.11 + 0.012 * Math.log2(copies || 1) });
		token.lastElementChild.textContent = (copies > 1 ? `×${copies} · ` : "") + Math.round(100 * share) + " %";
		put(looks[b], { x1: u, y1: -v, x2: x, y2: -y, "stroke-width": share / 5 });
	});
	put(one(".live-ball"), { r: scene.radius });
	const owner = scene.tokens.flatMap((t, b) => Array(t[2]).fill(b)), scale = 0.55 / Math.max(...[...h, ...response].map((v) => Math.hypot(...v)));
	const arrows = (moves, tails) => [...new Set(moves.map((v, i) => arrow(tails[owner[i]], v.map((x) => scale * x))))].join("");
	put(one(".live-push"), { d: arrows(h, scene.tokens) });
	put(one(".live-answer"), { d: arrows(response, outputs) });
	const shown = { norm: found.norm, ...bounds }, top = Math.log1p(Math.max(...Object.values(shown)));
	for (const name in shown) {
		text(name, say(shown[name]));
		one(`[data-bar=${name}]`).style.width = 100 * Math.log1p(shown[name]) / top + "%";
	}
	NUMBERS.forEach((name) => text(name, +scene[name].toFixed(2)));
	field.causal.checked = scene.causal;
	field.copies.value = Math.log2(scene.tokens[from][2]);
	text("copies", `${letter(from)}: ${scene.tokens[from][2]}`);
	one(".live-words").textContent = words(owner);
}

// Chapter 6: one token at R Au/‖Au‖, the others at Ru, where u has the largest score gap.
function worst() {
	let best = [-1];
	for (let i = 0; i < 720; i++) {
		const u = times(rotation(i), [i < 360 ? 1 : 0.5, 0]), Au = times(found.A, u), size = Math.hypot(...Au), gap = size - dot(u, Au);
		if (gap > best[0] + 1e-9) best = [gap, Au.map((x) => x / (size || 1)), u];
	}
	return [[best[1], 1], [best[2], found.n - 1]].map(([[x, y], copies]) => [x * scene.radius, y * scene.radius, copies]);
}

const random = (copies) => [...[0, 0].map(() => scene.radius * (2 * Math.random() - 1)), copies], change = (f) => scene.tokens.map(f);
const DO = {
	worst,
	equal: () => change((t) => [scene.tokens[chosen][0], scene.tokens[chosen][1], t[2]]),
	random: () => change((t) => random(t[2])),
	add: () => [...scene.tokens, random(1)],
	remove: () => scene.tokens.filter((_, b) => b !== chosen || !scene.tokens[1]),
	double: () => change(([x, y, copies]) => [x, y, 2 * copies]),
};

tokens.forEach((token, b) => {
	const move = (x, y) => set({ tokens: change((t, l) => (l === b ? [x, y, t[2]] : t)) });
	token.onfocus = () => { chosen = b; draw(); };
	token.onpointerdown = (e) => { token.setPointerCapture(e.pointerId); token.focus({ preventScroll: true }); };
	token.ontouchstart = (e) => e.preventDefault();
	token.onpointermove = (e) => {
		const { x, y } = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
		if (token.hasPointerCapture(e.pointerId)) move(x, -y);
	};
	token.onkeydown = (e) => {
		const way = ["ArrowLeft", "ArrowRight", "ArrowDown", "ArrowUp"].indexOf(e.key), [x, y] = scene.tokens[b];
		if (way < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
		const step = (way % 2 ? 1 : -1) * (e.shiftKey ? 0.25 : 0.05);
		e.preventDefault();
		move(x + (way < 2 && step), y + (way > 1 && step));
	};
});
form.oninput = ({ target: { name, type, value, checked } }) => set(name === "copies"
	? { tokens: change((t, b) => (b === chosen ? [t[0], t[1], 2 ** value] : t)) } : { [name]: type === "checkbox" ? checked : value });
root.onclick = ({ target: { value } }) => { if (DO[value]) set({ tokens: DO[value]() }); else if (value === "reset") set(START); };
for (const name in TRIES) for (const box of document.getElementsByClassName(name)) {
	box.insertAdjacentHTML("beforeend", '<button type="button" class="live-button">Set it up</button>');
	box.lastChild.onclick = () => { chosen = 1; set({ ...START, ...TRIES[name] }); root.scrollIntoView(); };
}
const read = () => {
	try { set(JSON.parse(decodeURIComponent(location.hash.slice(6)))); } catch { if (!found) set({}); } // another anchor
};
scene = START;
read();
addEventListener("hashchange", read);
root.hidden = false;
window.liveAttention = { set, state: () => ({ ...scene, ...found }) };
})();
