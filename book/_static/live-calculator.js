// The calculator of "The bounds at a glance": {n, radius, norm: ‖A‖, values: ‖V‖, causal, matrix: A as text, rows parted by ";"}.
live.picture("calculator", ({ one, form, show }) => {
const { put, power, bound: say } = live, { plain, masked, lower, maskedLower } = bounds, { ceil, exp, floor, log, max, min } = Math, TEN = log(10);
const ALWAYS = ["meanField", "published", "moments", "maskedRate"], NARROW = ["torn", "pulled"], KEYS = ["n", "radius", "norm", "values", "causal", "matrix"];
const number = (v) => Number(String(v).trim().replace(/^10\^/, "1e").replace(/,/g, "")), within = (v, low, high) => (Number.isFinite(v) ? min(high, max(low, v)) : low);
form.querySelectorAll("[hidden]").forEach((e) => { e.hidden = false; });

// A matrix from a text, or what is wrong with it.
function read(text) {
	const rows = text.trim().split(/[;\n]/).map((row) => row.trim().split(/[\s,]+/).map(number)), d = rows.length;
	if (!text.trim()) return {};
	if (rows.some((row) => row.length !== d || !row.every(Number.isFinite)) || d > 8) return { fault: "A: expected at most 8 rows of as many numbers, such as 1 2; 0 1" };
	return rows.flat().some((v) => v) ? { matrix: bounds.matrix(rows) } : { fault: "A: expected a matrix other than zero" };
}
let known = ["", {}], alike = {}; // the last A, and −‖A‖I
const parsed = (text) => { if (known[0] !== text) known = [text, read(text)]; return known[1]; };
const away = (norm) => (alike.size === norm ? alike : (alike = bounds.matrix([[-norm, 0], [0, -norm]])));

function settle(scene) {
	const radius = within(number(scene.radius), 1e-3, 1e3), causal = !!scene.causal, matrix = String(scene.matrix ?? "");
	const norm = within(number(scene.norm), 1e-6, 1e6 / radius ** 2), [n, values] = [within(floor(number(scene.n)), 1, 1e12), within(number(scene.values), 1e-6, 1e6)];
	return { n, radius, norm: +(parsed(matrix).matrix?.size ?? norm).toPrecision(12), values, causal, matrix };
}

// All bounds at some n, as logarithms; with n = 0 only the upper ones. Without A the lower ones are those of A = −‖A‖I in the
// plane; always V = ‖V‖I.
function all({ radius, norm, values, causal }, M, n, ln = log(n)) {
	const square = radius ** 2, la = log(M ? M.size : norm) + 2 * log(radius), lv = log(values), head = M && { gap: M.gap * square, rank: M.rank };
	const upper = {}, low = { one: lv }, family = causal ? masked : plain, A = M || away(norm);
	for (const name in family) if (M || !/ate$/.test(name)) upper[name] = lv + family[name](ALWAYS.includes(name) ? Infinity : ln, la, head);
	const inputs = causal ? maskedLower : lower;
	for (const name in n > 1 && inputs) {
		if (/adversarial|leader/.test(name) ? A.gamma !== null && n < Infinity : !NARROW.includes(name) || (n > 2 && A.d > 1)) low[name] = lv + inputs[name](n, square, A);
	}
	const best = (found, way) => Object.keys(found).reduce((a, b) => (way * found[b] > way * found[a] ? b : a));
	return { upper, lower: low, least: best(upper, -1), largest: best(low, 1) };
}

function measure(scene) {
	const { matrix: M, fault } = parsed(scene.matrix), { n } = scene, at = (ln) => { const { upper, least } = all(scene, M, 0, ln); return upper[least]; };
	const found = all(scene, M, n), a = scene.norm * scene.radius ** 2, end = at(Infinity);
	let [low, high] = [0, 2 * a + 40]; // where the least bound is within a tenth of its limit
	for (let i = 0; i < 50; i++) { const middle = (low + high) / 2; if (at(middle) < end + log(0.9)) low = middle; else high = middle; }
	return { ...found, a, fault, gap: M && M.gap * scene.radius ** 2, stop: high, end, best: found.upper[found.least], M };
}

// Both curves over n, in powers of ten.
let later;
function plot(scene, { M, stop, best, lower, largest, n = scene.n }) {
	const svg = one("svg"), far = max(2, min(12, ceil(max(log(n), min(stop, 12 * TEN)) / TEN) + 1)), COUNT = 24;
	const points = Array.from({ length: COUNT + 1 }, (_, i) => Math.round(10 ** (far * i / COUNT))).map((k, i) => ({ x: log(k) / TEN, ...all(scene, M, i % 2 ? 0 : k, log(k)) }));
	const low = points.filter((_, i) => i % 2 === 0), tops = points.map((p) => p.upper[p.least] / TEN), lows = low.map((p) => p.lower[p.largest] / TEN);
	const floorY = floor(min(...lows)), roof = max(floorY + 1, ceil(max(...tops))), step = ceil((roof - floorY) / 5);
	const across = (x) => 50 + 256 * x / far, up = (y) => 200 - 184 * (y - floorY) / (roof - floorY), name = (e) => (e > -1 && e < 4 ? (10 ** e).toLocaleString("en") : power(e));
	const ticks = Array.from({ length: floor((roof - floorY) / step) + 1 }, (_, i) => floorY + i * step), places = Array.from({ length: floor(far / (far > 6 ? 3 : 1)) + 1 }, (_, i) => i * (far > 6 ? 3 : 1));
	one(".live-axes").innerHTML = ticks.map((y) => `<path d="M50 ${up(y)}h256"/><text x="44" y="${up(y) + 4}" text-anchor="end">${name(y)}</text>`).join("")
		+ places.map((x) => `<path d="M${across(x)} 200v5"/><text x="${across(x)}" y="220" text-anchor="middle">${name(x)}</text>`).join("");
	const line = (ys, at) => ys.map((y, i) => `${i ? "L" : "M"}${across(at[i].x).toFixed(1)} ${up(y).toFixed(1)}`).join("");
	put(one(".live-least-curve"), { d: line(tops, points) });
	put(one(".live-lower-curve"), { d: line(lows, low) });
	put(one(".live-here"), { cx: across(log(n) / TEN), cy: up(best / TEN) });
	put(one(".live-here-lower"), { cx: across(log(n) / TEN), cy: up(lower[largest] / TEN) });
	put(one(".live-tick"), { d: stop / TEN < far ? `M${across(stop / TEN)} 200V16` : "" });
	put(svg, { "aria-label": `The least upper and the largest lower bound against n, from 1 to ${name(far)}` });
}

function draw(scene, found) {
	const { upper, lower, least, largest, a, fault, gap, stop, end, best, M } = found;
	for (const row of form.querySelectorAll("[data-row]")) {
		const [kind, name] = row.dataset.row.split(" "), value = (kind === "upper" ? upper : lower)[name];
		row.hidden = value === undefined;
		row.classList.toggle("live-best", name === (kind === "upper" ? least : largest));
		if (!row.hidden) row.lastElementChild.textContent = say(value, kind === "upper");
	}
	for (const key of KEYS) if (form[key] && form[key] !== document.activeElement) form[key].value = scene[key];
	if (form.a !== document.activeElement) form.a.value = +a.toPrecision(6);
	form.causal.checked = scene.causal;
	form.norm.disabled = form.a.disabled = !!M;
	form.matrix.setAttribute("aria-invalid", !!fault);
	show({ best: say(best, true), from: say(lower[largest], false), n: scene.n.toLocaleString("en"), a: (+a.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }), stop: say(stop, true), end: say(end, true),
		fault: fault || "", gap: gap === undefined ? "" : `, and the score gap is g* = ${+gap.toPrecision(4)}`, mask: scene.causal ? "With the causal mask" : "Without a mask",
		head: M ? "for this A" : "for every head with these norms", low: M ? "for this A" : "for A = −‖A‖I" });
	clearTimeout(later);
	later = setTimeout(() => plot(scene, found), 30); // it takes longest
}

return { settle, measure, draw, inputs: { a: (v, { radius }) => ({ norm: number(v) / radius ** 2 }) } };
});
