// What the tests ask of an open page. A check returns sentences, one for each fault; none means that the page is good.
"use strict";
window.bookChecks = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const begins = (e) => `${e.tagName.toLowerCase()} “${e.textContent.trim().replace(/\s+/g, " ").slice(0, 50)}”`;
  const sources = (e) => e.getAttribute("src").slice(-24);
  const formula = (m) => m.getAttribute("aria-label");
  const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());

  // Commands and delimiters of TeX outside code and typeset formulas.
  const rawTeX = /\\[a-zA-Z]{2,}|\\\(|\\\[|\$[^$\s][^$\n]*\$|\$\$/g;
  const noProse = "script, style, noscript, code, pre, kbd, textarea, mjx-container, .tooltip, .highlight, .onlyprint";

  const prose = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
    while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(noProse)) texts.push(walker.currentNode.data);
    return texts.join(" ");
  };

  const mathematics = (expected) => {
    const found = all("mjx-container").length;
    const undefinedCommands = all("mjx-mtext").filter((e) => getComputedStyle(e).color === "rgb(255, 0, 0)");
    return [
      ...all("mjx-merror").map((e) => `TeX error: ${e.title || e.textContent}`),
      ...(found < expected ? [`${found} formulas are typeset, ${expected} are in the page`] : []),
      ...(prose().match(rawTeX) || []).map((tex) => `TeX in the text: ${tex}`),
      ...undefinedCommands.map((e) => `undefined command: ${e.textContent}`),
    ];
  };

  const scrollsItself = (e) => {
    for (; e && e !== document.body && e !== document.documentElement; e = e.parentElement)
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };

  // Nothing makes the page scroll sideways, or reaches outside the window.
  const width = () => {
    const { scrollWidth, clientWidth } = document.documentElement;
    const outside = all("body *").filter((e) => {
      const box = e.getBoundingClientRect();
      return box.width > 0 && box.right > clientWidth + 1 && getComputedStyle(e).position !== "fixed" && !scrollsItself(e);
    });
    const names = outside.slice(0, 3).map(begins);
    if (scrollWidth > clientWidth) return [`scrolls sideways: ${scrollWidth} px in ${clientWidth}: ${names.join(", ")}`];
    return names.map((name) => `reaches outside the window: ${name}`);
  };

  // Colours are [red, green, blue, alpha], the first three from 0 to 255.
  const colour = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number), scale = text.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map((v) => v * scale), numbers[3] ?? 1];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };

  // Every text, and every formula, stands out from what is behind it, by the ratio that WCAG AA asks of small text.
  const contrast = () => {
    stopMotion();
    const seen = new Map([[null, { ground: [255, 255, 255, 1], opacity: 1 }]]), faults = new Map();
    const behind = (e) => {
      if (!seen.has(e)) {
        const parent = behind(e.parentElement), style = getComputedStyle(e);
        seen.set(e, { ground: over(colour(style.backgroundColor), parent.ground), opacity: parent.opacity * style.opacity });
      }
      return seen.get(e);
    };
    for (const e of document.body.querySelectorAll("*")) {
      if (!(hasText(e) || e.matches("mjx-math, mjx-math [style*=color]")) || e.closest("svg")) continue;
      if (!e.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      const { ground, opacity } = behind(e), [r, g, b, alpha] = colour(getComputedStyle(e).color);
      const reached = ratio(over([r, g, b, alpha * opacity], ground), ground);
      if (reached < 4.5) faults.set([r, g, b, ...ground].join(), `low contrast, ${reached.toFixed(2)}: ${begins(e)}`);
    }
    return [...faults.values()];
  };

  // A link in a sentence is told from its words by a line, a ground or other letters, or by the ratio that WCAG A asks of a colour.
  const links = () => {
    stopMotion();
    const letters = (s) => [s.fontWeight, s.fontStyle, s.fontFamily, s.fontSize].join();
    const alike = (e) => {
      const style = getComputedStyle(e), around = getComputedStyle(e.parentElement);
      return style.display === "inline" && style.textDecorationLine === "none" && !parseFloat(style.borderBottomWidth)
        && style.backgroundColor === "rgba(0, 0, 0, 0)" && letters(style) === letters(around)
        && ratio(colour(style.color), colour(around.color)) < 3;
    };
    return all("p a[href], li a[href], dd a[href], td a[href]").filter((e) => hasText(e.parentElement) && e.checkVisibility() && alike(e))
      .map((e) => `link like the words around it: ${begins(e)}`);
  };

  // Fails, and says what was waited for, where a promise takes longer than a minute.
  const within = (promise, what, seconds = window.bookPatience ?? 60) => Promise.race([
    promise, new Promise((_, fail) => setTimeout(() => fail(new Error(`waited ${seconds} s for ${what}`)), 1000 * seconds)),
  ]);
  const frame = () => within(new Promise(requestAnimationFrame), "the next frame");

  const loaded = async (images) => {
    images.forEach((e) => { e.loading = "eager"; });
    await within(Promise.all(images.map((e) => e.decode().catch(() => {}))), "the pictures");
    return images;
  };
  const figures = async () => (await loaded(all("article .cell_output img, article figure img").filter((e) => e.offsetParent))).flatMap((e) => {
    const style = getComputedStyle(e), faults = [];
    const forBoth = e.matches(".only-light, .only-dark"), white = style.backgroundColor === "rgb(255, 255, 255)";
    if (!forBoth && !white) faults.push("has no white ground");
    if (forBoth && style.backgroundColor !== "rgba(0, 0, 0, 0)") faults.push("has a ground of its own");
    if (style.filter !== "none") faults.push("is dimmed");
    if (!e.naturalWidth) faults.push("is empty");
    return faults.map((fault) => `figure ${sources(e)} ${fault}`);
  });

  const repeatedIds = () => {
    const times = new Map();
    all("article [id]").filter((e) => !e.closest("mjx-container, svg")).forEach((e) => times.set(e.id, (times.get(e.id) || 0) + 1));
    return [...times].filter(([, n]) => n > 1).map(([id, n]) => `id ${id} stands ${n} times`);
  };

  // Title, one main heading, pictures with descriptions, unique ids, no empty output.
  const content = () => {
    const headings = all("article h1").length;
    const undescribed = all("article img").filter((e) => /^$|\.(svg|png|jpe?g)$/.test(e.alt.trim()));
    const empty = all(".cell_output").filter((e) => !e.textContent.trim() && !e.querySelector("img, svg, table, video, canvas"));
    return [
      ...(document.title.trim().length < 3 ? ["the page has no title"] : []),
      ...(headings === 1 ? [] : [`${headings} main headings`]),
      ...undescribed.map((e) => `picture without a description: ${sources(e)}`),
      ...repeatedIds(),
      ...empty.map(() => "an output is empty"),
    ];
  };

  // A formula of a sentence that reaches beyond its line, though it does not say that it scrolls.
  const cutOff = (m) => {
    const line = m.closest("p, li, dd, td, th, figcaption") || m.parentElement;
    const right = Math.max(...all("mjx-math > *", m).map((e) => e.getBoundingClientRect().right));
    return line.clientWidth && right > line.getBoundingClientRect().right + 1;
  };
  // A stop that begins a line, after a formula that ended the line before.
  const strays = (together) => {
    const stop = together.lastChild, end = all("mjx-math > *", together).at(-1), range = document.createRange();
    if (stop.nodeType !== Node.TEXT_NODE || !stop.data || !end || !together.getClientRects().length) return false;
    range.selectNodeContents(stop);
    return range.getBoundingClientRect().left < end.getBoundingClientRect().right - 2;
  };
  const formulas = () => [
    ...all('.bd-article mjx-container:not([display="true"], .wide)').filter(cutOff).map((m) => `formula cut off: ${formula(m)}`),
    ...all(".bd-article .together").filter(strays).map((t) => `a stop begins a line: ${t.textContent}`),
  ];
  // Matrices may be wider than a phone; other formulas are broken into lines.
  const scrollingFormulas = () => all('.bd-article mjx-container[display="true"]')
    .filter((m) => m.scrollWidth > m.clientWidth + 1 && !m.querySelector("mjx-mtable")).map((m) => `formula scrolls: ${formula(m)}`);

  // Code that does not fit its box, and plumbing that a reader sees. What draws a figure is folded below the figure.
  const plumbing = /\b(glue|claim|checked|use_style)\s*\(|\bplt\./;
  const code = () => {
    const listings = all("article div.highlight pre").filter((e) => !e.closest(".cell_output") && e.checkVisibility());
    const read = listings.filter((e) => e.closest(".cell_input") && !e.closest("details.hide, details.check"));
    return [
      ...listings.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => `code overflows: ${begins(e)}`),
      ...read.filter((e) => plumbing.test(e.textContent)).map((e) => `plumbing: ${e.textContent.match(plumbing)[0]} in ${begins(e)}`),
    ];
  };

  const folded = (part) => {
    const inside = all("p, pre, div.math", part).find((e) => e.textContent.trim() && !e.closest("summary") && !e.matches(".admonition-title"));
    return inside && !inside.checkVisibility({ visibilityProperty: true });
  };
  const scrollsOnPaper = (e) => {
    const right = e.getBoundingClientRect().right;
    for (let box = e.parentElement; box && box.tagName !== "ARTICLE"; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible" && right > box.getBoundingClientRect().right + 2) return true;
    return false;
  };
  // What is folded on the screen is open on paper, and nothing is cut off there.
  const paper = () => {
    const parts = all("article details, article .toggle-hidden").filter((d) => d.getBoundingClientRect().height);
    const edge = document.querySelector("article").getBoundingClientRect().right + 24;
    return [
      ...parts.filter(folded).map((d) => `folded on paper: ${begins(d)}`),
      ...all("article mjx-math, article pre, article img, article table").flatMap((e) => {
        const box = e.getBoundingClientRect(), faults = [];
        if (box.width && box.right > edge) faults.push(`cut off by ${Math.round(box.right - edge)} px on paper`);
        if (e.tagName === "PRE" && e.scrollWidth > e.clientWidth + 2) faults.push("cut off on paper");
        if (scrollsOnPaper(e)) faults.push("scrolls on paper");
        return faults.map((fault) => `${fault}: ${begins(e)}`);
      }),
    ];
  };

  // Formulas hold most elements of a page. Boxes as large take their place, which keep what has a colour of its own.
  const boxFormulas = (formulas) => {
    for (const [m, box] of formulas.map((m) => [m, m.getBoundingClientRect()])) {
      const coloured = all("[style*=color]", m);
      m.style.cssText += `display: inline-block; overflow: hidden; width: ${box.width}px; height: ${box.height}px`;
      coloured.forEach((e) => e.replaceChildren());
      m.replaceChildren(...coloured);
    }
  };
  // Once they fit on paper: the text is no narrower on a desktop, except in tables and cards.
  const boxSeenFormulas = () => boxFormulas(all("article mjx-math").filter((m) => m.getClientRects().length && !m.closest("table, .sd-row")));
  // Nothing in formulas and listings has a role: axe needs not walk through them.
  const lighten = () => {
    boxFormulas(all("mjx-math"));
    for (const words of all(".highlight pre:not(:has(a, button))")) words.textContent = words.textContent;
  };

  // Resolves when the mathematics is typeset and nothing moves any more.
  const settled = async () => {
    await within(window.MathJax?.startup?.promise, "the mathematics");
    await within(document.fonts.ready, "the fonts");
    await frame();
  };
  const drawn = async () => {
    await new Promise((done) => setTimeout(done, 0)); // after the events that were sent
    await frame();
  };
  // Nothing moves any more. The style leaves out what stands before and after elements: it would be worked out for each of them.
  const still = document.createElement("style");
  still.textContent = "* { animation: none !important; transition: none !important; }";
  const stopMotion = () => {
    if (!still.isConnected) document.head.append(still);
    document.getAnimations().forEach((a) => { try { a.finish(); } catch { a.cancel(); } }); // some have no end
  };
  // Everything that folds is open, and nothing is half faded in.
  const openAll = async () => {
    stopMotion();
    all("details").forEach((d) => { d.open = true; });
    await drawn();
  };
  // The page opens itself what folds, and formulas that appear are fitted.
  const beforePrint = async () => {
    stopMotion();
    dispatchEvent(new Event("beforeprint"));
    await drawn();
    dispatchEvent(new Event("resize"));
    await drawn();
  };

  return {
    mathematics, width, contrast, links, figures, content, formulas, scrollingFormulas, code, paper,
    boxSeenFormulas, lighten, within, settled, drawn, stopMotion, openAll, beforePrint,
  };
})();
