// What some live pictures share besides: arrows, a curve with a dot that moves on it, and a slider that runs by itself.
const chart = (() => {
	const { put, power } = live;
	// A line with a head, in a plane where y points upwards; nothing where it would not be seen.
	const arrow = ([x, y], [u, v], head = 0.13) => {
		const far = Math.hypot(u, v), way = Math.atan2(-v, u), size = Math.min(head, far * 0.6);
		const barb = (turn) => `${(size * Math.cos(way + turn)).toFixed(3)} ${(size * Math.sin(way + turn)).toFixed(3)}`;
		return far < 0.02 ? "" : `M${x.toFixed(3)} ${(-y).toFixed(3)}l${u.toFixed(3)} ${(-v).toFixed(3)}l${barb(2.6)}M${(x + u).toFixed(3)} ${(-y - v).toFixed(3)}l${barb(-2.6)}`;
	};

	// Logarithmic axes in an <svg> that is 320 wide; returns what puts a curve into one of its paths, and a dot into a circle.
	const axes = (svg, [left, right], [low, high], xs, ys) => {
		const across = (x) => 44 + 262 * Math.log(x / left) / Math.log(right / left), floor = svg.viewBox.baseVal.height - 44, up = (y) => floor - (floor - 16) * Math.log(y / low) / Math.log(high / low);
		const say = (v) => (v < 1e4 ? v.toLocaleString("en") : power(Math.round(Math.log10(v))));
		svg.querySelector(".live-axes").innerHTML = ys.map((y) => `<path d="M44 ${up(y)}h262"/><text x="38" y="${up(y) + 4}" text-anchor="end">${say(y)}</text>`).join("")
			+ xs.map((x) => `<path d="M${across(x)} ${floor}v5"/><text x="${across(x)}" y="${floor + 20}" text-anchor="middle">${say(x)}</text>`).join("");
		const curve = (name, points) => put(svg.querySelector(name), { d: points.filter(([, y]) => y).map(([x, y], i) => `${i ? "L" : "M"}${across(x).toFixed(1)} ${up(y).toFixed(1)}`).join("") });
		const dot = (name, x, y) => put(svg.querySelector(name), { cx: across(x), cy: up(y) });
		return { across, floor, curve, dot };
	};

	// What a button does that lets a slider run to its end in some seconds, and stops it. Any other hand stops it too.
	const play = (button, slider, seconds) => {
		let frame = 0;
		const stop = () => { cancelAnimationFrame(frame); frame = 0; button.textContent = "Play"; };
		slider.form.addEventListener("pointerdown", (e) => { if (e.target !== button) stop(); });
		slider.form.addEventListener("keydown", (e) => { if (e.target !== button) stop(); });
		return () => {
			if (frame) { stop(); return {}; }
			const { min, max, value } = slider, from = +value >= +max ? +min : +value, whole = max - min;
			let start;
			const go = (now) => {
				start ??= now;
				const to = Math.min(+max, from + whole * (now - start) / 1000 / seconds);
				slider.value = to;
				slider.dispatchEvent(new Event("input", { bubbles: true }));
				frame = requestAnimationFrame(go);
				if (to >= +max) stop();
			};
			button.textContent = "Pause";
			frame = requestAnimationFrame(go);
			return {};
		};
	};
	return { arrow, axes, play };
})();
