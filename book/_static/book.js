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

// A formula that is wider than its line is set smaller, as far as it can still be read; what is wider all the same
// scrolls in its own box, fades where it goes on, and can be scrolled with the keyboard.
const boxes = ".bd-article div.math, .bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output, .bd-article .output.text_html, .bd-article .figure-box, .bd-article mjx-container";
const smallest = { inline: 0.7, display: 0.6 };
const narrow = matchMedia("(max-width: 600px)");
const fitFormulas = () => {
  const formulas = [...document.querySelectorAll(".bd-article mjx-container")];
  formulas.forEach((m) => { m.classList.remove("wide"); m.style.fontSize = m.dataset.size ??= m.style.fontSize || "100%"; });
  const sizes = formulas.map((m) => {
    if (m.getAttribute("display") === "true") return [m.scrollWidth, m.clientWidth, smallest.display];
    const line = m.closest("p, li, dd, td, th, figcaption, h1, h2, h3") || m.parentElement, style = getComputedStyle(line);
    const own = m.getBoundingClientRect().width, kept = m.closest(".together");
    const beside = kept ? kept.getBoundingClientRect().width - own : 0;  // the stop or the bracket
    const room = line.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return [own, room && room - beside, smallest.inline];
  });
  formulas.forEach((m, i) => {
    const [is, may, least] = sizes[i];
    if (!(may > 0) || is <= may + 1) return;
    const factor = Math.max(least, (0.995 * may) / is);
    m.style.fontSize = `${factor * parseFloat(m.dataset.size)}%`;
    if (is * factor > may && m.getAttribute("display") !== "true") m.classList.add("wide");
  });
};
// A number and its unit are not broken; a sentence in a table may be.
addEventListener("DOMContentLoaded", () => document.querySelectorAll(".bd-article .cell_output td, .bd-article .cell_output tbody th").forEach((c) => {
  if (c.textContent.trim().length <= 12) c.style.whiteSpace = "nowrap";
}));
// On a narrow screen a table of words that does not fit becomes a list: each cell says its column.
const stackTables = () => document.querySelectorAll(".bd-article table:not(.scoreboard, .dataframe, .indextable, .modindextable)").forEach((t) => {
  t.classList.remove("stacked");
  const names = [...t.querySelectorAll("thead tr:last-child > *")].map((h) => h.textContent.trim());
  if (!narrow.matches || names.length < 3 || !t.clientWidth) return;
  const tall = [...t.rows].some((r) => r.clientHeight > 240), wordy = [...t.querySelectorAll("td")].some((c) => c.textContent.length > 24);
  if (!tall && (!wordy || t.scrollWidth <= t.parentElement.clientWidth + 1)) return;
  t.querySelectorAll("tbody tr").forEach((r) => [...r.cells].forEach((c, i) => { c.dataset.column = names[i] || ""; }));
  t.classList.add("stacked");
});
const markMore = (b) => b.classList.toggle("more", b.scrollLeft + b.clientWidth < b.scrollWidth - 3);
const markWide = () => {
  stackTables();
  fitFormulas();
  document.querySelectorAll(boxes).forEach((b) => {
    const scrolls = b.scrollWidth > b.clientWidth + 1 && getComputedStyle(b).overflowX !== "visible";
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
addEventListener("toggle", () => whenTypeset(markWide), true);
addEventListener("click", (e) => { if (e.target.closest?.(".toggle-button, .admonition-title")) setTimeout(markWide, 400); });

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
