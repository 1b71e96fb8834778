// The tool of "Measure your own head": a file with one head and its tokens is read here, and σ is measured with its bracket.
live.picture("head", ({ one, form, show, bars, set }) => {
const { say, bound, minus } = live, { attention, dot, lanczos } = arithmetic, EXAMPLES = JSON.parse(form.dataset.examples), MOST = 2 ** 16;
const need = (ok, name, expected, got) => { if (!ok) throw new Error(`${name}: expected ${expected}, got ${got}`); };
const size = (M) => (Array.isArray(M) ? [M.length, ...(Array.isArray(M[0]) ? [M[0].length] : [])].join(" × ") + " entries" : M === undefined ? "nothing" : typeof M);

// What the file holds, as the arithmetic takes it; or an error of one line.
function understand(text) {
	let file;
	try { file = JSON.parse(text); } catch { throw new Error("The file: expected JSON, such as lipcore.export_head writes, got something else"); }
	need(file && typeof file === "object" && !Array.isArray(file), "The file", "an object with X and W_Q, W_K, W_V, or with X, A, V", size(file));
	const entries = (M, ok, rows, columns) => Array.isArray(M) && M.length > 0 && (rows ?? M.length) === M.length
		&& M.every((row) => Array.isArray(row) && row.length > 0 && row.length === (columns ?? M[0].length) && row.every(ok));
	const matrix = (name, columns, rows) => { need(entries(file[name], Number.isFinite, rows, columns), name, `rows of ${columns ?? "equally many"} numbers${rows ? ", " + rows + " of them" : ""}`, size(file[name])); return file[name]; };
	const X = matrix("X"), [n, d] = [X.length, X[0].length], plain = "A" in file;
	need(n * d <= MOST, "X", `at most ${MOST.toLocaleString("en")} numbers (lipcore takes more)`, size(X));
	const Q = plain ? matrix("A", d, d) : matrix("W_Q", d), K = plain ? Q.map((_, i) => Q.map((_, j) => +(i === j))) : matrix("W_K", d, Q.length), V = matrix(plain ? "V" : "W_V", d);
	const { b_Q: offset, scale = plain ? 1 : 1 / Math.sqrt(Q.length), causal = false, mask, bias, words } = file;
	need(Number.isFinite(scale), "scale", "a number", size(scale));
	need(typeof causal === "boolean", "causal", "true or false", size(causal));
	need(!offset || (Array.isArray(offset) && offset.length === Q.length && offset.every(Number.isFinite)), "b_Q", `${Q.length} numbers`, size(offset));
	need(!mask || entries(mask, (v) => [true, false, 0, 1].includes(v), n, n), "mask", `${n} rows of ${n} entries, true where a query sees a key`, size(mask));
	need(!bias || entries(bias, (v) => v === null || Number.isFinite(v), n, n), "bias", `${n} rows of ${n} numbers, or null for a hidden key`, size(bias));
	need(!words || (Array.isArray(words) && words.length === n), "words", `${n} words`, size(words));
	const table = (mask || bias) && X.map((_, i) => X.map((_, j) => (mask && !mask[i][j] ? null : bias ? bias[i][j] : 0)));
	const blind = table ? table.findIndex((row, i) => row.every((v, j) => v === null || (causal && j > i))) : -1;
	need(blind < 0, "mask, bias", "a visible key in every row", `none in row ${blind + 1}`);
	return { head: { X, Q, K, V, offset, scale, causal, bias: table }, n, words: words || X.map((_, i) => String(i + 1)), known: file.lipcore };
}

// A measurement runs in slices, so that the page answers meanwhile; a newer one replaces it.
let own = null, job = {};
function start(example, text) {
	job = { example };
	try {
		Object.assign(job, understand(text));
		job.J = attention(job.head);
		job.run = lanczos(job.J, { tol: 1e-8 });
		advance(job);
	} catch (error) { job.fault = error.message; }
}
function advance(mine) {
	for (const end = performance.now() + 40; !mine.found && performance.now() < end;) {
		const { done, value } = mine.run.next();
		if (done) mine.found = value; else mine.steps = value;
	}
	if (!mine.found) setTimeout(() => { if (mine === job) { try { advance(mine); } catch (error) { mine.fault = error.message; } set({}); } });
}

function measure({ example }) {
	if (job.example !== example) start(example, example === "own" ? own : JSON.stringify(EXAMPLES[example]));
	const { fault, steps, found, J, n, words, known } = job;
	if (!found) return { fault, steps };
	const { value, lower, upper, vector, image, products } = found, each = (v) => Array.from({ length: n }, (_, i) => { const part = v.subarray(i * v.length / n, (i + 1) * v.length / n); return dot(part, part) / dot(v, v); });
	const [mixing, ownQuery, keys] = J.pieces(vector).map((piece) => dot(piece, image) / value || 0);
	return { norm: value, lower, upper, products, n, words, known, pushed: each(vector), answered: each(image), terms: { mixing, ownQuery, keys } };
}

function draw({ example }, { fault, steps, norm, lower, upper, products, n, words, known, pushed, answered, terms }) {
	one(".live-found").hidden = norm === undefined;
	show({ fault: fault || (norm === undefined ? `measuring, ${steps} products so far …` : ""), name: form.querySelector(`[value=${example}]`)?.textContent ?? "Your file" });
	if (norm === undefined) return;
	show({ norm: say(norm), low: bound(Math.log(lower), false, 6), high: bound(Math.log(upper), true, 6), products, n });
	one(".live-text").replaceChildren(...words.map((word, i) => {
		const token = document.createElement("span");
		token.className = "live-read";
		token.innerHTML = "<span class='live-shares'><i></i><i></i></span><span></span>";
		token.lastChild.textContent = word;
		token.title = `push ${Math.round(100 * pushed[i])} %, answer ${Math.round(100 * answered[i])} %`;
		[...token.firstChild.children].forEach((bar, k) => { bar.style.height = 3 * [pushed, answered][k][i] + "rem"; });
		return token;
	}));
	const best = (list) => list.indexOf(Math.max(...list)), [from, to] = [best(pushed), best(answered)];
	show({ from: words[from], part: Math.round(100 * pushed[from]), to: words[to], share: Math.round(100 * answered[to]) });
	const top = Math.max(...Object.values(terms).map(Math.abs)) || 1;
	for (const name in terms) {
		show({ [name]: minus((terms[name] < 0 ? "-" : "") + say(Math.abs(terms[name]))) });
		one(`[data-bar=${name}]`).style.width = 100 * Math.abs(terms[name]) / top + "%";
	}
	one(".live-known").hidden = !known;
	for (const name of ["sigma", "upper", "local_upper", "best_upper"]) show({ [name]: Number.isFinite(known?.[name]) ? bound(Math.log(known[name]), name !== "sigma", 6) : "—" });
}

const take = (text) => { own = text; job = {}; return { example: "own" }; };
const open = async (file) => { if (file) set(take(await file.text())); };
form.ondragover = (e) => e.preventDefault();
form.ondrop = (e) => { e.preventDefault(); open(e.dataTransfer.files[0]); };
const pick = (example) => () => ({ example });
return {
	settle: ({ example }) => ({ example: example === "own" && own !== null ? example : example in EXAMPLES ? example : "crowd" }),
	measure, draw,
	inputs: { file: () => { open(form.file.files[0]); return {}; }, text: take },
	buttons: { crowd: pick("crowd"), minilm: pick("minilm") },
};
});
