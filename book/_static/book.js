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

// What scrolls sideways can be scrolled with the keyboard.
addEventListener("load", () => {
  const boxes = document.querySelectorAll(".bd-article div.math, .bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output");
  boxes.forEach((b) => { if (b.scrollWidth > b.clientWidth + 1 && !b.hasAttribute("tabindex")) b.tabIndex = 0; });
});

// Inline mathematics that is wider than its line scrolls in its own box.
const markWide = () => document.querySelectorAll('.bd-article mjx-container:not([display="true"])').forEach((m) => {
  const line = m.closest("p, li, dd, td, th, figcaption, h1, h2, h3") || m.parentElement;
  m.classList.remove("wide");
  if (m.getBoundingClientRect().width > line.clientWidth) m.classList.add("wide");
});
addEventListener("load", () => window.MathJax?.startup?.promise?.then(markWide));
addEventListener("resize", () => window.MathJax?.startup?.promise?.then(markWide));
