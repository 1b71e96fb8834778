// A formula wider than its line is broken where a mathematician would break it: at its wide gaps; before a relation;
// before a plus or a minus; inside brackets last. joinFormula undoes what breakFormula did.
(() => {
  const code = (e) => { const c = e?.querySelector("mjx-c"); return c?.classList[0]?.slice(5) || ""; };
  const open = new Set(["28", "5B", "7B", "27E8", "230A", "2308"]), shut = new Set(["29", "5D", "7D", "27E9", "230B", "2309"]);
  const bars = new Set(["7C", "2223", "2225", "2016"]), signs = new Set(["2B", "2212", "B1"]);
  const isMo = (e) => e?.tagName === "MJX-MO";
  const relations = new Set(["3A", "3C", "3D", "3E", "2192", "2190", "2194", "21A6", "21D2", "21D4", "2208", "221D", "223C", "2243", "2245", "2248", "2260",
    "2261", "2264", "2265", "226A", "226B", "2272", "2273", "227A", "227B", "227C", "227D", "2282", "2286", "27F6", "27F9", "27FA", "2AAF", "2AB0"]);
  const isRelation = (e) => isMo(e) && relations.has(code(e));
  const isSign = (e) => isMo(e) && e.getAttribute("space") === "3";
  const gap = (e) => { const s = e.matches("mjx-mspace") ? e : e.matches("mjx-mstyle") && e.childElementCount === 1 && e.firstElementChild.matches("mjx-mspace") ? e.firstElementChild : null; return s ? parseFloat(s.style.width) || 0 : 0; };
  // The bracket that an element is, or carries an exponent on.
  const bracket = (e) => {
    while (e && e.matches("mjx-msup, mjx-msub, mjx-msubsup, mjx-texatom")) e = e.firstElementChild;
    return isMo(e) ? code(e) : "";
  };

  // The row of the formula, and for each of its pieces how good a place it is to begin a line: 0 best, 9 never.
  const places = (math) => {
    let row = math;
    while (row.childElementCount === 1 && row.firstElementChild.matches("mjx-mrow, mjx-mstyle, mjx-texatom")) row = row.firstElementChild;
    const stack = [], pieces = [...row.children];
    return pieces.map((e, i) => {
      const before = pieces.slice(0, i).findLast((p) => !gap(p)), c = bracket(e);
      const deep = stack.length > 0;
      if (shut.has(c)) { while (stack.length && bars.has(stack.at(-1))) stack.pop(); stack.pop(); }
      else if (open.has(c)) stack.push(c);
      else if (bars.has(c)) { if (stack.at(-1) === c) stack.pop(); else stack.push(c); }
      if (!before) return [e, 9];
      if (gap(e) >= 1) return [e, deep ? 4 : 0];
      if (isRelation(e) && !isRelation(before)) return [e, deep ? 4 : 1];
      if (isSign(e) && signs.has(code(e)) && !isMo(before)) return [e, deep ? 5 : 2];
      return [e, 9];
    });
  };

  const widest = (lines) => Math.max(...lines.map((line) => line.at(-1).right - line[0].left));
  const split = (pieces, room, deepest, level = 0) => {
    if (widest([pieces]) <= room || level > deepest) return [pieces];
    const groups = [];
    pieces.forEach((p, i) => { if (i === 0 || p.level === level) groups.push([p]); else groups.at(-1).push(p); });
    const lines = [];
    for (const g of groups) {
      const line = lines.at(-1);
      if (line && g.at(-1).right - line[0].left <= room) line.push(...g); else lines.push([...g]);
    }
    return lines.flatMap((line) => split(line, room, deepest, level + 1));
  };

  const measured = (row) => places(row).map(([e, level]) => { const { left, right } = e.getBoundingClientRect(); return { e, level, left, right }; });

  // Places to break at, no more kinds of them than it takes for each piece to fit.
  const soften = (row, room) => {
    const pieces = measured(row);
    const longest = (level) => {
      let from = 0;
      return Math.max(...pieces.map((p, i) => { if (p.level <= level) from = i; return p.right - pieces[from].left; }));
    };
    let level = 0;
    while (level < 5 && longest(level) > (level < 3 ? room : room / 0.8)) level += 1;
    const may = pieces.filter((p) => p.level <= level);
    may.forEach(({ e }) => {
      const end = document.createElement("span");
      end.className = "formula-may-break";
      end.textContent = "\u200b\u200b";
      e.before(end);
    });
    return may.length > 0;
  };

  // An aligned formula: its rows become lines of text.
  const breakRows = (container, math, room) => {
    const inner = [...math.querySelectorAll("mjx-mtable")].filter((t) => !t.querySelector("mjx-mtable"));
    const alone = inner.length === 1 && [...inner[0].parentElement.children].every((e) => e === inner[0] || e.matches("mjx-tstrut"));
    if (!alone || !inner[0].parentElement.matches("mjx-math, mjx-mtd")) return false;
    inner[0].querySelectorAll("mjx-mtd").forEach((cell) => soften(cell, room));
    container.classList.add("broken", "broken-rows");
    return true;
  };

  // A formula on lines of its own: real breaks; the lines after the first begin a little to the right.
  window.breakFormula = (container, room) => {
    const math = container.querySelector("mjx-math");
    if (!math) return false;
    if (math.querySelector("mjx-mtable")) return breakRows(container, math, room);
    const pieces = measured(math);
    if (!pieces.length) return false;
    let lines = split(pieces, room, 3);
    if (widest(lines) > room / 0.75) lines = split(pieces, room / 0.85, 5);  // sooner small than broken in a bracket
    if (lines.length < 2) return false;
    lines.slice(1).forEach(([first]) => {
      const end = document.createElement("span");
      end.className = "formula-break";
      if (first.level > 0) end.dataset.in = "";
      first.e.before(end);
      if (first.level === 0) first.e.classList.add("formula-gap");
    });
    container.classList.add("broken");
    return true;
  };

  // A formula of a sentence: it may break there, as the sentence does.
  window.softenFormula = (container, room) => {
    const math = container.querySelector("mjx-math");
    if (!math || math.querySelector("mjx-mtable")) return false;
    const softened = soften(math, room);
    if (softened) container.classList.add("broken");
    return softened;
  };

  window.joinFormula = (container) => {
    if (!container.classList.contains("broken")) return;
    container.classList.remove("broken", "broken-rows");
    container.querySelectorAll(".formula-break, .formula-may-break").forEach((e) => e.remove());
    container.querySelectorAll(".formula-gap").forEach((e) => e.classList.remove("formula-gap"));
  };
})();
