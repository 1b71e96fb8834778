// On paper every folded proof and solution is open; afterwards it is as the reader left it.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((d) => { d.open = true; });
});
addEventListener("afterprint", () => { opened.forEach((d) => { d.open = false; }); opened = []; });

// A link to something inside a folded proof opens it.
const reveal = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let d = target && target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
  if (target && target.closest("details")) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("DOMContentLoaded", reveal);

// Inline mathematics that is wider than its line scrolls in its own box, and what scrolls sideways can be
// scrolled with the keyboard.
const boxes = ".bd-article div.math, .bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output, .bd-article mjx-container";
const markWide = () => {
  document.querySelectorAll('.bd-article mjx-container:not([display="true"])').forEach((m) => {
    const line = m.closest("p, li, dd, td, th, figcaption, h1, h2, h3") || m.parentElement;
    m.classList.remove("wide");
    if (m.getBoundingClientRect().width > line.clientWidth) m.classList.add("wide");
  });
  document.querySelectorAll(boxes).forEach((b) => {
    if (b.scrollWidth > b.clientWidth + 1 && getComputedStyle(b).overflowX !== "visible") b.tabIndex = 0;
    else if (b.tabIndex === 0) b.removeAttribute("tabindex");
  });
};
const whenTypeset = (act) => Promise.resolve(window.MathJax?.startup?.promise).then(act);
addEventListener("load", () => whenTypeset(markWide));
addEventListener("resize", () => whenTypeset(markWide));
addEventListener("toggle", () => whenTypeset(markWide), true);

// The button of a folded solution says what it opens.
addEventListener("load", () => document.querySelectorAll(".bd-article .admonition-title > .toggle-button").forEach((b) => {
  b.setAttribute("aria-label", `Show or hide ${b.parentElement.textContent.trim()}`);
}));
