// Hovering, or reaching with the keyboard, a reference shows what it refers to. Escape closes it.
(() => {
  const kinds = "div.proof, div.exercise, div.math, figure, div.citation, div.claim, dl.glossary > dt";
  const root = document.documentElement.dataset.content_root || "./";
  const known = {}, waiting = {};
  let tip = null, link = null, timer = 0;

  // Scripts, unlike fetched files, load from a disk too.
  window.bookPreviews = (page, snippets) => { known[page] = snippets; };
  const load = (page) => waiting[page] ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${root}_static/previews/${page.replaceAll("/", "-")}.js`;
    script.onload = () => done(known[page] || {});
    script.onerror = () => done({});
    document.head.append(script);
  });

  const here = () => (typeof DOCUMENTATION_OPTIONS === "undefined" ? null : DOCUMENTATION_OPTIONS.pagename);
  const pageOf = (url) => {
    const base = new URL(root, location.href).pathname;
    return decodeURIComponent(url.pathname).startsWith(decodeURIComponent(base))
      ? decodeURIComponent(url.pathname).slice(decodeURIComponent(base).length).replace(/\.html$/, "") : null;
  };

  const cloned = (id) => {
    const found = document.getElementById(id);
    const target = found && (found.matches(kinds) ? found : found.closest("dl.glossary > dt"));
    if (!target) return null;
    const box = document.createElement("div");
    box.append(target.cloneNode(true));
    if (target.matches("dt") && target.nextElementSibling) box.append(target.nextElementSibling.cloneNode(true));
    box.querySelectorAll("a.headerlink, .copybtn, .toggle-button, .enlarge, details").forEach((e) => e.remove());
    box.querySelectorAll("[id]").forEach((e) => e.removeAttribute("id"));
    box.querySelectorAll("[tabindex], a").forEach((e) => e.setAttribute("tabindex", "-1"));
    return box;
  };

  const content = async (anchor) => {
    const url = new URL(anchor.href), id = decodeURIComponent(url.hash.slice(1)), page = pageOf(url);
    if (url.origin !== location.origin || !id || page === null) return null;
    if (page === here()) return cloned(id);
    const html = (await load(page))[id];
    if (!html) return null;
    const box = document.createElement("div");
    box.innerHTML = html.replaceAll('src="ROOT/', `src="${root}`);
    return box;
  };

  const hide = () => {
    clearTimeout(timer);
    if (link) link.removeAttribute("aria-describedby");
    if (tip) tip.remove();
    tip = link = null;
  };

  const place = () => {
    const at = link.getClientRects()[0] || link.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const below = at.bottom + 6 + size.height <= innerHeight || at.top < innerHeight / 2;
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - 6 - size.height)}px`;
    tip.style.maxHeight = `${below ? innerHeight - at.bottom - 14 : at.top - 14}px`;
  };

  const show = async (anchor) => {
    const box = await content(anchor);
    if (!box || link !== anchor) return;
    tip = document.createElement("div");
    tip.id = "book-preview";
    tip.setAttribute("role", "tooltip");
    tip.append(...box.childNodes);
    tip.addEventListener("mouseenter", () => clearTimeout(timer));
    tip.addEventListener("mouseleave", () => later(hide));
    document.querySelector("article.bd-article").append(tip);
    anchor.setAttribute("aria-describedby", tip.id);
    place();
    if (tip.querySelector(".math") && !tip.querySelector("mjx-container")) {  // the build had no Node
      await window.MathJax?.typesetPromise([tip]);
      if (tip) place();
    }
  };

  const later = (act, delay = 250) => { clearTimeout(timer); timer = setTimeout(act, delay); };
  const begin = (anchor, delay) => {
    if (link === anchor) { clearTimeout(timer); if (!tip) later(() => show(anchor), delay); return; }
    hide();
    link = anchor;
    if (anchor.title) anchor.removeAttribute("title");  // the preview says more
    later(() => show(anchor), delay);
  };

  addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector("article.bd-article");
    if (!article) return;
    const reference = (e) => e.target.closest?.("a.internal[href*='#']:not(.headerlink)");
    article.addEventListener("pointerover", (e) => {
      const anchor = reference(e);
      if (anchor && e.pointerType === "mouse") begin(anchor, 250);
    });
    article.addEventListener("pointerout", (e) => { if (reference(e)) later(hide); });
    article.addEventListener("focusin", (e) => {
      const anchor = reference(e);
      if (anchor?.matches(":focus-visible")) begin(anchor, 0);
    });
    article.addEventListener("focusout", (e) => { if (reference(e)) hide(); });
    addEventListener("keydown", (e) => { if (e.key === "Escape") hide(); });
    addEventListener("scroll", () => { if (tip) place(); }, { passive: true });
  });
})();
