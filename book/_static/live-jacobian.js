// The live picture of "The Jacobian in three terms": {tokens: [[x, y, 1], …], chosen: which is pushed, push, strength of A}.
live.picture("jacobian", ({ one, form, show, bars, set, state }) => {
const { times, dot, sum, attend, largest } = plane, { norm, put, say, within, minus } = live, { arrow } = chart;
const all = (selector) => [...form.querySelectorAll(selector)], PIECES = ["mixing", "keys", "own"], letter = (b) => "ABCDEFGH"[b];
const length = (moves) => Math.sqrt(sum(moves.map((v) => dot(v, v)))), add = (u, v) => [u[0] + v[0], u[1] + v[1]];

function settle(scene) {
	const { tokens, chosen } = plane.settle(scene), far = Math.hypot(...scene.push), most = Math.min(1, 1.5 / (far || 1));
	const push = far < 0.05 ? [0.05, 0] : scene.push.map((v) => v * most);
	return { ...scene, tokens, chosen, push };
}

function measure({ tokens, chosen: j, push: h, strength: s }) {
	const A = [0.8 * s, -0.6 * s, 0.6 * s, 0.8 * s], n = tokens.length, { rows, J } = attend({ tokens }, A);
	const moved = attend({ tokens: tokens.map((x, b) => (b === j ? [...add(x, h), 1] : x)) }, A).rows;
	const only = (v) => { const H = new Float64Array(2 * n); H.set(v, 2 * j); return H; }, pairs = (y) => rows.map((_, i) => [...y.slice(2 * i, 2 * i + 2)]);
	const [mixing, own, keys] = J.pieces(only(h)).map(pairs), pieces = { mixing, keys, own }, answer = pairs(J.push(only(h)));
	const column = largest({ rows: 2 * n, columns: 2, push: (v) => J.push(only(v)), pull: (g) => J.pull(g).slice(2 * j, 2 * j + 2) });
	const ratios = { answer: length(answer) / length([h]) };
	for (const name of PIECES) ratios[name] = length(pieces[name]) / length([h]);
	return { A, rows, pieces, answer, outputs: rows.map((q) => q.mean), real: moved.map((q) => q.mean), ratios,
		column: column.value, worst: [...column.vector], norm: largest(J).value };
}

function draw({ tokens, chosen, push }, { pieces, answer, outputs, real, ratios, column, norm }) {
	all(".live-token").forEach((token, b) => {
		const [x, y] = tokens[b];
		put(token, { transform: `translate(${x} ${-y})`, "aria-pressed": b === chosen,
			"aria-label": `Token ${letter(b)}, at ${minus(x.toFixed(2))}, ${minus(y.toFixed(2))}` });
	});
	const [x, y] = add(tokens[chosen], push);
	put(one(".live-tip"), { transform: `translate(${x} ${-y})`, "aria-label": `Push of token ${letter(chosen)}: ${push.map((v) => minus(v.toFixed(2))).join(", ")}` });
	put(one(".live-nudge"), { d: arrow(tokens[chosen], push, 0.22) });
	put(one(".live-ghosts"), { d: tokens.map(([u, v]) => `M${u - 0.05} ${-v}a.05 .05 0 1 0 .1 0a.05 .05 0 1 0-.1 0`).join("") });
	const tails = outputs.map((m) => m);
	for (const name of PIECES) {
		put(one(".live-" + name), { d: pieces[name].map((v, i) => arrow(tails[i], v)).join("") });
		pieces[name].forEach((v, i) => { tails[i] = add(tails[i], v); });
	}
	put(one(".live-answer"), { d: outputs.map((m, i) => arrow(m, answer[i])).join("") });
	put(one(".live-real"), { d: real.map(([u, v]) => `M${u - 0.07} ${-v - 0.07}l.14 .14m0-.14l-.14 .14`).join("") });
	all(".live-output").forEach((g, i) => { put(g, { transform: `translate(${outputs[i][0]} ${-outputs[i][1]})`, "data-own": i === chosen }); });
	bars(ratios);
	const far = Math.hypot(...push), off = length(real.map((r, i) => [r[0] - outputs[i][0] - answer[i][0], r[1] - outputs[i][1] - answer[i][1]])) / length(answer);
	show({ letter: letter(chosen), far: say(far), answer: say(ratios.answer), column: say(column), norm: say(norm), off: Math.round(100 * off) });
}

plane.hold(one("svg"), state, set);
const svg = one("svg"), tip = one(".live-tip"), from = () => state().tokens[state().chosen];
live.hands(tip, tip, (x, y) => set({ push: [x - from()[0], -y - from()[1]] }), (dx, dy) => set({ push: add(state().push, [dx, dy].map((v) => within(v, -0.5, 0.5))) }));
tip.ontouchstart = (e) => e.preventDefault();
return {
	settle, measure, draw,
	buttons: {
		worst: ({ worst, push }) => ({ push: worst.map((v) => v * Math.hypot(...push) * (Math.sign(dot(worst, push)) || 1)) }),
		half: ({ push }) => ({ push: push.map((v) => v / 2) }),
	},
};
});
