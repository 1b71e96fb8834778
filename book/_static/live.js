// What the live pictures share: numbers as text, sliders and bars, hands, and the scene kept in the address.
// live[name].set(change) changes the scene of a picture; live[name].state() returns it with all that is shown.
"use strict";
const live = (() => {
	const within = (v, low, high) => Math.min(high, Math.max(low, +v || 0));
	const put = (e, attributes) => { for (const k in attributes) e.setAttribute(k, attributes[k]); };
	const minus = (v) => String(v).replace("-", "−");
	const power = (e) => "10" + [...String(e)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
	// Three digits of a number ≥ 0. Larger numbers never look smaller: a value stays below its bounds.
	const say = (v) => {
		if (v >= 1e-3 && v < 1e5) return v < 99.95 ? v.toPrecision(3) : Math.round(v).toLocaleString("en");
		const [digits, e] = v.toExponential(1).split("e");
		return v ? `${+digits}×${power(e)}` : "0";
	};
	// Some digits of e^l, never below it (`up`), or never above it: for bounds.
	const bound = (l, up, digits = 3) => {
		if (l === -Infinity) return "0";
		if (l === Infinity) return "∞";
		const TEN = Math.log(10), unit = 10 ** (digits - 1);
		let e = Math.floor(l / TEN + 1e-13), m = Math.exp(l - e * TEN) * unit;
		m = (up ? Math.ceil(m - 1e-7) : Math.floor(m + 1e-7)) / unit;
		if (m >= 10) [m, e] = [1, e + 1];
		if (e < -3 || e > 4) return `${m.toFixed(digits - 1)}×${power(e)}`;
		return e < digits - 1 ? (m * 10 ** e).toFixed(digits - 1 - e) : Math.round(m * 10 ** e).toLocaleString("en");
	};
	// The spectral norm of a matrix of the plane, [a, b, c, d] by rows.
	const norm = ([a, b, c, d]) => (Math.hypot(a + d, b - c) + Math.hypot(a - d, b + c)) / 2;

	// What is in `area` is dragged and `handle` gets the focus, and the arrow keys: go(x, y) in units of the picture, step(dx, dy).
	const hands = (area, handle, go, step) => {
		area.onpointerdown = (e) => { area.setPointerCapture(e.pointerId); handle.focus({ preventScroll: true }); };
		area.onpointermove = (e) => {
			const { x, y } = new DOMPoint(e.clientX, e.clientY).matrixTransform(handle.ownerSVGElement.getScreenCTM().inverse());
			if (area.hasPointerCapture(e.pointerId)) go(x, y);
		};
		handle.onkeydown = (e) => {
			const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1], Home: [-99, 0], End: [99, 0] }[e.key];
			if (!way || e.ctrlKey || e.metaKey || e.altKey) return;
			e.preventDefault();
			step(...way.map((v) => v * (e.shiftKey ? 0.25 : 0.05)));
		};
	};

	// `make` is given the parts of a picture, and tells how it works: settle(scene) makes a scene sound, measure(scene) finds
	// its numbers, draw(scene, found) shows them; `inputs` and `buttons` say what some of the controls change, by name.
	const picture = (name, make) => {
		const root = document.getElementById("live-" + name), one = (selector) => root.querySelector(selector);
		const form = one("form"), START = JSON.parse(root.dataset.start), TRIES = JSON.parse(root.dataset.tries || "{}");
		const sliders = [...form.elements].filter((e) => e.type === "range" && e.name in START);
		const show = (said) => { for (const key in said) root.querySelectorAll(`[data-show=${key}]`).forEach((e) => { e.textContent = said[key]; }); };
		const bars = (values) => {
			const top = Math.log1p(Math.max(...Object.values(values)));
			for (const key in values) {
				show({ [key]: say(values[key]) });
				one(`[data-bar=${key}]`).style.width = 100 * Math.log1p(values[key]) / top + "%";
			}
		};
		let scene = START, found, timer;
		const state = () => ({ ...scene, ...found });
		const set = (change) => {
			const next = { ...scene, ...change };
			for (const e of sliders) next[e.name] = within(next[e.name], e.min, e.max);
			scene = settle(next);
			found = measure(scene);
			for (const e of sliders) { e.value = scene[e.name]; show({ [e.name]: minus(+scene[e.name].toFixed(2)) }); }
			draw(scene, found);
			clearTimeout(timer);
			timer = timer === undefined ? 0 : setTimeout(() => { // once a change has settled: say it, and keep it in the address
				one("[role=status]").textContent = one(".live-words").innerText;
				if (form.elements[0]) history.replaceState(null, "", "#live=" + encodeURIComponent(JSON.stringify(scene)));
			}, 400);
		};
		const read = () => {
			try { set(JSON.parse(decodeURIComponent(location.hash.split("#live=")[1]))); root.scrollIntoView(); } catch { if (!found) set({}); } // another anchor
		};
		root.hidden = false;
		const { settle, measure, draw, inputs = {}, buttons = {} } = make({ one, form, show, bars, set, state });
		form.oninput = ({ target: { name, type, value, checked } }) => set(inputs[name]?.(value, scene) ?? { [name]: type === "checkbox" ? checked : value });
		form.onclick = ({ target: { value } }) => { if (value === "reset") set(START); else if (buttons[value]) set(buttons[value](state())); };
		for (const key in TRIES) for (const box of document.getElementsByClassName(key)) {
			box.insertAdjacentHTML("beforeend", '<button type="button" class="live-button">Set it up</button>');
			box.lastChild.onclick = () => { set({ ...START, ...TRIES[key] }); root.scrollIntoView(); };
		}
		read();
		addEventListener("hashchange", read);
		live[name] = { set, state };
	};
	return { within, put, minus, power, say, bound, norm, hands, picture };
})();
