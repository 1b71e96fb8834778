// The search, on Sphinx's index and the book's own passages (passages.js: sections, theorems and terms with their
// sentences). Nothing is fetched, so that it works from a disk.
const linesOf = (page) => bookPassages[page] || [];
const titleOf = (page) => (linesOf(page)[0] || [])[1];

// Theorems and terms in whose name every word stands.
const namedHits = (query) => {
  const words = query.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean), hits = [];
  if (!words.length) return hits;
  for (const page of Object.keys(bookPassages)) for (const [id, name, named] of linesOf(page)) {
    const here = ` ${name.toLowerCase()}`.replace(/[^\p{L}\p{N}]+/gu, " ");
    if (named && words.every((word) => here.includes(` ${word}`))) hits.push([page, name, `#${id}`, null, Math.round(30 + 60 * query.length / name.length)]);
  }
  return hits;
};

// What a hit of Sphinx is called here: a place, an object of the package (it has a description), or else the whole page.
const asShown = ([page, title, anchor, descr]) => {
  const place = linesOf(page).slice(1).find(([id]) => `#${id}` === anchor);
  return { page, anchor, descr, name: place ? place[1] : descr ? title : titleOf(page), whole: !place && !descr };
};

// A place once; a page as a whole only where no place on it is listed.
const withoutRepetition = (hits) => {
  const seen = new Set();
  return hits.filter(({ page, anchor, name, whole }) => {
    const keys = [`${page}${anchor}`, `${page} ${name}`];
    if ((whole && seen.has(page)) || keys.some((key) => seen.has(key))) return false;
    [page, ...keys].forEach((key) => seen.add(key));
    return true;
  });
};

// The sentence of a place, or else of its page, that holds most of the words and fewest formulas that cannot be shown.
const excerpt = (page, anchor, words) => {
  const places = linesOf(page), here = places.find(([id]) => `#${id}` === anchor);
  const worth = (sentence) => {
    const low = sentence.toLowerCase();
    return 4 * words.filter((word) => low.includes(word)).length - (sentence.match(/…/g) || []).length - (sentence.length < 30 ? 2 : 0);
  };
  const best = (sentences) => sentences.reduce((a, b) => (worth(b) > worth(a) ? b : a), sentences[0] || "");
  const found = (here && best(here[3])) || best(places.flatMap((place) => place[3]));
  return found.length > 260 ? `${found.slice(0, found.lastIndexOf(" ", 250))} …` : found;
};

const hitItem = ({ page, anchor, descr, name, whole }, words) => {
  const item = document.createElement("li"), link = document.createElement("a"), line = document.createElement("p");
  link.href = `${document.documentElement.dataset.content_root}${page}${DOCUMENTATION_OPTIONS.LINK_SUFFIX}${anchor}`;
  link.textContent = name;
  item.append(link);
  if (!whole) item.append(Object.assign(document.createElement("span"), { className: "search-page", textContent: titleOf(page) }));
  line.className = "search-excerpt";
  line.textContent = descr || excerpt(page, anchor, words);
  item.append(line);
  return item;
};

Search.query = (query) => {
  const parsed = Search._parseQuery(query), words = [...parsed[1]];
  const hits = [...namedHits(query), ...Search._performSearch(...parsed).reverse()].sort((a, b) => b[4] - a[4]);
  const shown = withoutRepetition(hits.map(asShown));
  Search.output.append(...shown.map((hit) => hitItem(hit, words)));
  parsed[3].forEach((word) => _highlightText(Search.output, word, "highlighted"));
  Search.stopPulse();
  Search.title.textContent = "Search results";
  Search.status.textContent = shown.length ? `${shown.length} ${shown.length === 1 ? "place" : "places"} found.` : "Nothing found. Another word, or the name of a symbol such as “kappa”, may help.";
};
