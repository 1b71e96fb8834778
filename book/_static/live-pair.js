// Mass p at −R and 1 − p at R, A = −γI, V = I: the numbers of lipcore.measures.TwoDirac.
const pair = (() => {
const { norm } = live;
// Numbers, by the logarithm of p/(1 − p), so that nothing is lost where p is small.
const odds = (p) => Math.log(p) - Math.log1p(-p);
const sigmoid = (t) => (t > 0 ? 1 / (1 + Math.exp(-t)) : Math.exp(t) / (1 + Math.exp(t)));

// Row i: own weight, weight r on the other, and the derivative of the output of point i, in the coordinates √mass · move.
function derivative(t, a) {
	const rows = [t, -t].map((own) => {
		const r = sigmoid(2 * a - own), rest = sigmoid(own - 2 * a);
		return { r, rest, self: rest * (1 - 6 * a * r), other: r * (1 + 2 * a * rest) * Math.exp(own / 2), mixed: r * Math.exp(own / 2) };
	});
	const [x, y] = rows, matrix = [x.self, x.other, y.other, y.self];
	return { weights: [x.r, y.r], matrix, constant: norm(matrix), transverse: norm([x.rest, x.mixed, y.mixed, y.rest]),
		ownQuery: rows.map(({ r, rest }) => 4 * a * r * rest) };
}
return { odds, sigmoid, derivative };
})();
