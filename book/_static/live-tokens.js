// How tokens of the plane are drawn with their nudge and answer, and moved by hand.
{
	const { put, minus } = live, { dot } = plane, { abs, hypot, max, min } = Math;

	// Arrows from one place, a ring. Those that point the same way, as of copies, are spread like rays, so that all are seen.
	const fan = ([x, y], moves) => {
		const long = moves.filter((v) => hypot(...v) > 0.03), way = long.reduce((a, b) => (dot(b, b) > dot(a, a) ? b : a), [0, 0]);
		return [1, -1].map((sign) => long.filter((v) => sign * dot(v, way) > 0)).filter((same) => same[0]).map((same) => {
			const count = same.length, step = min(0.09, 1.7 / count), size = 0.11 / count ** 0.4, from = 0.22 - 0.22 / count;
			const ray = ([u, v], i) => {
				const far = hypot(u, v), turn = Math.atan2(-v, u) + (i - (count - 1) / 2) * step;
				const to = (r, t = turn) => `${(r * Math.cos(t)).toFixed(3)} ${(r * Math.sin(t)).toFixed(3)}`;
				return `M${x} ${-y}m${to(from)}l${to(far)}l${to(size, turn + 2.6)}m${to(-size, turn + 2.6)}l${to(size, turn - 2.6)}`;
			};
			const [u, v] = same[count >> 1], far = hypot(u, v), at = (k) => [x + u * k, -y - v * k, 0.06, 0.04];
			return { d: `M${x - 0.03} ${-y}a.03 .03 0 1 0 .06 0a.03 .03 0 1 0-.06 0` + same.map(ray).join(""), count,
				over: [0.3, 0.6, 1].map((k) => at(k + from / far)), spots: [from + 0.2 + far, from + 0.4 + far, far * 0.7].map((k) => at(k / far)) };
		});
	};

	// Texts, each on the first of its spots that is free, or below the last; none leaves the picture.
	const write = (group, taken, notes) => {
		const edge = group.ownerSVGElement.viewBox.baseVal.width / 2;
		group.innerHTML = notes.map(({ words, name }) => `<text class="${name}">${words}</text>`).join("");
		notes.forEach(({ spots }, i) => {
			const text = group.children[i], { width, height } = text.getBBox(), w = width / 2 + 0.02, h = height * 0.45;
			const free = ([x, y]) => taken.every((t) => abs(t[0] - x) > t[2] + w || abs(t[1] - y) > t[3] + h);
			spots = spots.map(([x, y]) => [min(max(x, w - edge), edge - w), y]);
			let [x, y] = spots.find(free) || spots.at(-1);
			while (!free([x, y])) y += 0.05;
			taken.push([x, y, w, h]);
			put(text, { x, y });
		});
	};

	// The tokens, their fans and notes, and where the chosen one looks.
	plane.draw = (svg, { tokens, chosen, radius }, { h, response, by, P, outputs }) => {
		const all = (name) => svg.querySelectorAll(".live-" + name), looks = all("look"), notes = [], taken = [];
		const scale = 0.6 / max(...[...h, ...response].map((v) => hypot(...v)));
		for (const [name, moves, tails] of [["nudge", h, tokens], ["answer", response, outputs]]) {
			const fans = by(moves).flatMap((same, b) => fan(tails[b], same.map((v) => v.map((x) => x * scale))));
			put(all(name)[0], { d: fans.map((f) => f.d).join("") });
			for (const f of fans) {
				taken.push(...f.over);
				if (f.count > 3) notes.push({ words: "×" + f.count, name: `live-${name}-count`, spots: f.spots });
			}
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
}
