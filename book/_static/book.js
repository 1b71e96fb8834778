// On paper every folded proof and solution is open; afterwards it is as the reader left it.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((d) => { d.open = true; });
});
addEventListener("afterprint", () => { opened.forEach((d) => { d.open = false; }); opened = []; });

// A link to something inside a folded proof opens it.
const reveal = () => {
  let target = null;
  try {
    target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch { /* a hash that is no name, as #100% */ }
  for (let d = target && target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
  if (target && target.closest("details")) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("DOMContentLoaded", reveal);

// A formula that is wider than its line is set a little smaller, or broken (formulas.js); then smaller again, as far as
// it can still be read. What is wider all the same scrolls in its own box, fades where it goes on, and can be scrolled
// with the keyboard.
const boxes = ".bd-article div.math, .bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output, .bd-article .output.text_html, .bd-article .figure-box, .bd-article mjx-container";
const smallest = { inline: 0.7, display: 0.6, whole: 0.85 };
const narrow = matchMedia("(max-width: 600px)");
const displayed = (m) => m.getAttribute("display") === "true";
const lineOf = (m) => m.closest("p, li, dd, td, th, figcaption, h1, h2, h3") || m.parentElement;
const widthOf = (m) => {
  if (displayed(m)) return [m.scrollWidth, m.clientWidth];
  const line = lineOf(m), style = getComputedStyle(line), own = (m.querySelector("mjx-math") || m).getBoundingClientRect().width, kept = m.closest(".together");
  const beside = kept ? kept.getBoundingClientRect().width - (m.closest("span.math") || m).getBoundingClientRect().width : 0;  // the stop or the bracket
  const room = line.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return [own, room && room - beside];
};
const resize = (m, factor) => { m.style.fontSize = `${factor * parseFloat(m.dataset.size)}%`; };
const fitFormulas = () => {
  const formulas = [...document.querySelectorAll(".bd-article mjx-container")];
  formulas.forEach((m) => {
    m.classList.remove("wide");
    joinFormula(m);
    m.style.fontSize = m.dataset.size ??= m.style.fontSize || "100%";
  });
  const sizes = formulas.map(widthOf), broken = [];
  const fit = (m, is, may, least) => {
    if (!(may > 0) || is <= may) return;
    const factor = Math.max(least, (0.995 * may) / is);
    resize(m, factor);
    if (is * factor > may && !displayed(m)) m.classList.add("wide");
  };
  formulas.forEach((m, i) => {
    const [is, may] = sizes[i];
    if (!(may > 0) || is <= may) return;
    const whole = may / is >= smallest.whole;
    if (!whole && (displayed(m) ? breakFormula(m, may / 0.92) : softenFormula(m, may))) broken.push(m);
    else fit(m, is, may, displayed(m) ? smallest.display : smallest.inline);
  });
  broken.filter(displayed).map((m) => [m, ...widthOf(m), smallest.display]).forEach((all) => fit(...all));
  // A piece of a sentence's formula that is too long by itself.
  broken.filter((m) => !displayed(m)).map((m) => [m, lineOf(m)]).forEach(([m, line]) => {
    const right = Math.max(...[...m.querySelectorAll("mjx-math > *")].map((e) => e.getBoundingClientRect().right)), end = line.getBoundingClientRect().right - parseFloat(getComputedStyle(line).paddingRight);
    if (right <= end + 1) return;
    const left = m.getBoundingClientRect().left;
    if ((end - left) / (right - left) >= smallest.inline) resize(m, (0.99 * (end - left)) / (right - left));
    else { joinFormula(m); fit(m, ...widthOf(m), smallest.inline); }
  });
};
// A number and its unit are not broken; a sentence in a table may be.
addEventListener("DOMContentLoaded", () => document.querySelectorAll(".bd-article .cell_output td, .bd-article .cell_output tbody th").forEach((c) => {
  if (c.textContent.trim().length <= 12) c.style.whiteSpace = "nowrap";
}));
// On a narrow screen a table of words, or of many columns, that does not fit becomes a list: each cell says its column.
const stackTables = () => document.querySelectorAll(".bd-article table:not(.scoreboard, .indextable, .modindextable)").forEach((t) => {
  t.classList.remove("stacked");
  const names = [...t.querySelectorAll("thead tr:last-child > *")].map((h) => h.textContent.trim());
  if (!narrow.matches || names.length < 3 || !t.clientWidth) return;
  const tall = [...t.rows].some((r) => r.clientHeight > 240), wordy = [...t.querySelectorAll("td")].some((c) => c.textContent.length > 24);
  if (!tall && ((!wordy && names.length < 6) || t.scrollWidth <= t.parentElement.clientWidth + 1)) return;
  t.querySelectorAll("tbody tr").forEach((r) => [...r.cells].forEach((c, i) => { c.dataset.column = names[i] || ""; c.classList.toggle("blank", !c.textContent.trim()); }));
  t.classList.add("stacked");
});
const markMore = (b) => b.classList.toggle("more", b.scrollLeft + b.clientWidth < b.scrollWidth - 3);
const markWide = () => {
  stackTables();
  fitFormulas();
  document.querySelectorAll(boxes).forEach((b) => {
    const scrolls = b.scrollWidth > b.clientWidth && getComputedStyle(b).overflowX !== "visible";
    if (scrolls) b.tabIndex = 0;
    else if (b.tabIndex === 0) b.removeAttribute("tabindex");
    b.classList.remove("more");
    if (scrolls) markMore(b);
  });
};
addEventListener("scroll", (e) => { if (e.target.matches?.(boxes)) markMore(e.target); }, { capture: true, passive: true });
const whenTypeset = (act) => Promise.resolve(window.MathJax?.startup?.promise).then(act);
addEventListener("load", () => whenTypeset(() => { keepTogether(); markWide(); }));
addEventListener("resize", () => whenTypeset(markWide));
// Many parts may open at the same time, as before printing: once for all of them.
let marking = null;
const markSoon = () => { marking ??= requestAnimationFrame(() => { marking = null; markWide(); }); };
addEventListener("toggle", () => whenTypeset(markSoon), true);
addEventListener("click", (e) => { if (e.target.closest?.(".toggle-button, .admonition-title")) setTimeout(markSoon, 400); });

// A formula keeps the stop or the comma that follows it, and the bracket before it.
const keepTogether = () => document.querySelectorAll('.bd-article mjx-container:not([display="true"])').forEach((m) => {
  const here = m.parentElement.matches("span.math") ? m.parentElement : m, { previousSibling: before, nextSibling: after } = here;
  const close = after?.nodeType === 3 && after.data.match(/^[.,;:!?)\]’”–-]+/)?.[0];
  const open = before?.nodeType === 3 && before.data.match(/[(\[‘“]+$/)?.[0];
  if (!close && !open) return;
  const together = document.createElement("span");
  together.className = "together";
  here.replaceWith(together);
  together.append(open || "", here, close || "");
  if (close) after.data = after.data.slice(close.length);
  if (open) before.data = before.data.slice(0, -open.length);
});

// The button of a folded solution says what it opens.
addEventListener("load", () => document.querySelectorAll(".bd-article .admonition-title > .toggle-button").forEach((b) => {
  b.setAttribute("aria-label", `Show or hide ${b.parentElement.textContent.trim()}`);
}));
