// What printed.py asks of the document in the browser. A fault is a sentence.
"use strict";
window.bookPrint = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const column = () => document.querySelector("main");

  // Typeset; without the hidden MathML beside each formula, which no PDF shows and which is wider than its line.
  const ready = async () => {
    await window.MathJax?.startup?.promise; // where formulas are typeset in the browser
    await document.fonts.ready;
    all("mjx-assistive-mml").forEach((e) => e.remove());
  };

  // Wide formulas, tables and figures are made to fit the column; what is shorter than 0.4 pages is not torn.
  const shrink = (formula, need, room) => { // MathJax has set a size already
    const own = parseFloat(formula.style.fontSize) || 100;
    if (need > room + 1) formula.style.fontSize = `${Math.floor((0.99 * own * room) / need)}%`;
  };
  const fit = (page) => {
    for (const box of all("div.math:has(mjx-container)")) {
      const formula = box.querySelector("mjx-container"), number = box.querySelector(".eqno");
      const need = formula.querySelector("mjx-math").getBoundingClientRect().width;
      shrink(formula, need, box.clientWidth - (number ? number.offsetWidth + 12 : 0));
    }
    for (const formula of all("mjx-container:not([display])")) {
      const line = formula.closest("p, li, dd, td, th, figcaption, h1, h2, h3, h4") || formula.parentElement;
      shrink(formula, formula.getBoundingClientRect().width, line.clientWidth);
    }
    for (const image of all("main img")) { // tall figures may take more of a page
      const ratio = image.naturalHeight / image.naturalWidth;
      if (ratio > 0.8) image.style.maxHeight = ratio > 1.6 ? "235mm" : "150mm";
    }
    for (const cell of all("main :is(td, th)")) { // numbers stay whole, digests do not
      if (/^[-−–\d.,:\s[\]]+$/.test(cell.textContent)) cell.style.whiteSpace = "nowrap";
      if (/^\w{40,}$/.test(cell.textContent.trim())) cell.style.wordBreak = "break-all";
    }
    for (const code of all("main td code")) // a name breaks before a word
      code.innerHTML = code.innerHTML.replace(/[._(](?![^<]*>)/g, "$&<wbr>");
    for (const table of all("main table")) {
      const room = table.parentElement.clientWidth || column().clientWidth;
      for (let size = 100; size > 55 && table.scrollWidth > room + 1; size -= 5) table.style.fontSize = `${size}%`;
    }
    for (const block of all("main :is(.highlight, table)"))
      if (block.offsetHeight < 0.4 * page) block.style.breakInside = "avoid";
  };

  // TeX that was not typeset, roles and references that were not resolved, and signs that the fonts lack, outside code
  // and mathematics.
  const left = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) {
      const text = walker.currentNode;
      if (text.parentElement.closest("script, style, code, pre, mjx-container, dt.sig")) continue;
      if (/\\[a-zA-Z]{2,}|\\\(|\$\$|\?\?|\{[a-z:]+\}`|\p{Emoji_Presentation}/u.test(text.data)) found.push(`left as it was: ${text.data.trim()}`);
    }
    return found;
  };
  // What is wider or, if it cannot be torn, taller than its page.
  const clipped = (page) => {
    const right = column().getBoundingClientRect().right + 2;
    const tall = (e) => e.matches("img, svg") && e.getBoundingClientRect().height > page;
    return all("main :is(img, svg, table, mjx-math, pre)")
      .filter((e) => e.getBoundingClientRect().right > right || tall(e))
      .map((e) => `${e.tagName.toLowerCase()} ${e.textContent.trim().slice(0, 60)}`);
  };
  const faults = (page) => [
    ...all("mjx-merror, [data-mjx-error]").map((e) => e.title || e.textContent),
    ...left(),
    ...clipped(page),
  ];

  // For each heading, the id of the section that it opens.
  const sections = () => all("h1, h2, h3, h4, h5, h6").map((h) => {
    if (h.tagName === "H1") return "";
    return h.tagName === "H2" ? h.closest(".chapter").id : h.closest("section")?.id ?? "";
  });
  // Fill in the page numbers of the table of contents, and hide all else; return what has no number.
  const number = (numbers) => {
    column().style.display = "none";
    return all(".toc-page").filter((e) => {
      e.textContent = numbers[e.dataset.target] ?? "?";
      return e.textContent === "?";
    }).map((e) => e.dataset.target);
  };
  const tallSlides = () => all(".slide").filter((s) => s.scrollHeight > s.clientHeight + 1).map((s) => s.id);

  return { ready, fit, faults, sections, number, tallSlides };
})();
