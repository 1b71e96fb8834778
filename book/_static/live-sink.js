// The live picture of "Why it grows": a text, the weights of one head of SmolLM2 on it, and how far it is read, n.
live.picture("sink", ({ one, form, show }) => {
const { put, say } = live, { words, weights, norms, constants } = JSON.parse(one(".live-text").dataset.head), N = words.length;
one(".live-text").innerHTML = words.map((word) => `<span class="live-read"><i></i><span>${word.trim()}</span></span>`).join("");
const spans = form.querySelectorAll(".live-read");

function measure({ n }) {
	const received = words.map((_, j) => weights.slice(j, n).reduce((all, row) => all + row[j], 0));
	return { received, norm: norms[n - 1], constant: constants[n - 1], newest: weights[n - 1] };
}

const graph = chart.axes(one(".live-chart"), [2, N], [1, 400], [2, 5, 10, 20, 40], [1, 10, 100]), lengths = norms.map((_, i) => i + 1).slice(1);
graph.curve(".live-curve", lengths.map((n) => [n, constants[n - 1]]));
graph.curve(".live-norms", lengths.map((n) => [n, norms[n - 1]]));
graph.curve(".live-reference", [[2, 1], [N, Math.sqrt(N / 2)]]);

function draw({ n }, { received, norm, constant, newest }) {
	spans.forEach((span, j) => {
		span.className = `live-read ${j < n ? "" : "live-unread"} ${j === n - 1 ? "live-newest" : ""}`;
		span.style.setProperty("--seen", (newest[j] || 0).toFixed(3));
		span.firstChild.style.height = 7 * received[j] / N + "rem";
	});
	graph.dot(".live-here", n, constant);
	graph.dot(".live-here-norm", n, norm);
	show({ n, received: say(received[0]), share: Math.round(100 * received[0] / n), second: say(Math.max(0, ...received.slice(1))), norm: say(norm), constant: say(constant),
		word: words[n - 1].trim(), looks: Math.round(100 * newest[0]), grown: say(constant / constants[1]), risen: say(norm / norms[1]), root: say(Math.sqrt(n / 2)) });
}

return {
	settle: (scene) => ({ n: Math.round(live.within(scene.n, 2, N)) }),
	measure, draw,
	buttons: { play: chart.play(one("[value=play]"), form.n, 8) },
};
});
