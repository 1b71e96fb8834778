// The live picture of "Masked attention": {values of tokens A, B, …, order: which stands where, chosen, causal, gamma}. A = −γI.
live.picture("mask", ({ one, form, show, bars, set, state }) => {
const { put, say, minus, within } = live, { sum, dot } = plane, N = 8, R = Math.SQRT2, letter = (l) => "ABCDEFGH"[l];
const all = (name) => [...form.querySelectorAll(".live-" + name)], across = (i) => i - (N - 1) / 2, up = (x) => -1.35 * x;

function settle(scene) {
	const order = [...new Set(scene.order)].filter((l) => l in scene.values), values = Array.from({ length: N }, (_, l) => within(scene.values[l], -R, R));
	return { ...scene, values, order: order.length === N ? order : values.map((_, l) => l), chosen: within(scene.chosen, 0, N - 1) | 0, causal: !!scene.causal };
}

function measure({ values, order, causal, gamma }) {
	const tokens = order.map((l) => [values[l], 0, 1]), found = [true, false].map((causal) => plane.measure({ tokens, causal }, [-gamma, 0, 0, -gamma]));
	const { norm, h, response, P, outputs } = found[causal ? 0 : 1], shares = (moves) => moves.map((v) => dot(v, v) / sum(moves.map((w) => dot(w, w))));
	return { norm, P, outputs, h, response, nudged: shares(h), answered: shares(response), masked: found[0].norm, plain: found[1].norm };
}

function draw({ values, order, chosen, causal }, { P, norm, nudged, answered, masked, plain }) {
	const place = order.indexOf(chosen);
	order.forEach((l, i) => {
		const token = all("token")[l];
		token.style.transform = `translate(${across(i)}px, ${up(values[l])}px)`;
		put(token, { "aria-pressed": l === chosen, "aria-label": `Token ${letter(l)}, place ${i + 1} of ${N}, value ${minus(values[l].toFixed(2))}` });
		const from = [across(place), up(values[chosen])], to = [across(i), up(values[l])], bow = 0.5 * Math.abs(i - place);
		put(all("look")[i], { d: i === place ? "" : `M${from}Q${(from[0] + to[0]) / 2} ${Math.min(from[1], to[1]) - bow} ${to}`, "stroke-width": 0.45 * P[place][i] });
		put(all("nudged")[i], { x: across(i) - 0.36, y: 3.4 - nudged[i], height: nudged[i] });
		put(all("answered")[i], { x: across(i) + 0.04, y: 3.4 - answered[i], height: answered[i] });
		all("name").forEach((text) => { if (+text.dataset.place === i) text.textContent = letter(l); });
	});
	all("cell").forEach((cell, k) => {
		const i = Math.floor(k / N), j = k % N, side = 0.92 * Math.sqrt(P[i][j]);
		put(cell, { x: j + 0.5 - side / 2, y: i + 0.5 - side / 2, width: side, height: side });
	});
	put(one(".live-row"), { y: place });
	put(one(".live-unseen"), { d: causal ? P.map((_, i) => (i < N - 1 ? `M${i + 1} ${i}H${N}v1H${i + 1}z` : "")).join("") : "" });
	form.causal.checked = causal;
	bars({ masked, plain });
	const best = (list) => list.indexOf(Math.max(...list)), seen = causal ? place + 1 : N, to = best(P[place]), pushed = best(nudged);
	show({ norm: say(norm), letter: letter(chosen), seen: seen === 1 ? "itself alone" : seen === N ? "all tokens" : `the ${seen} tokens up to itself`,
		most: letter(order[to]), share: Math.round(100 * P[place][to]), pushed: letter(order[pushed]), part: Math.round(100 * nudged[pushed]), place: pushed + 1,
		effect: Math.abs(masked / plain - 1) < 0.005 ? "Here the mask changes nothing." : `The mask ${causal ? "" : "would "}${masked > plain ? "raise" : "lower"}${causal ? "s" : ""} it by ${Math.round(100 * Math.abs(masked / plain - 1))} %.` });
}

// A token goes to a place in the order, and those between make room.
const moved = (order, l, to) => { const rest = order.filter((k) => k !== l); rest.splice(within(to, 0, N - 1), 0, l); return rest; };
const change = (l, to, value) => set({ order: moved(state().order, l, Math.round(to)), values: state().values.map((x, k) => (k === l ? value : x)) });
all("token").forEach((token, l) => {
	token.tabIndex = 0;
	live.hands(token, token, (x, y) => change(l, x + (N - 1) / 2, y / -1.35), (dx, dy) => change(l, state().order.indexOf(l) + Math.sign(dx) * (Math.abs(dx) > 1 ? N : 1), state().values[l] + 2 * dy));
	token.onfocus = () => set({ chosen: l });
	token.ontouchstart = (e) => e.preventDefault();
});
const to = (place) => ({ values, order, chosen }) => ({ order: moved(order, chosen, place) });
return {
	settle, measure, draw,
	inputs: { causal: (_, { causal }) => ({ causal: !causal }) },
	buttons: { first: to(0), last: to(N - 1), zero: () => ({ values: Array(N).fill(0) }) },
};
});
