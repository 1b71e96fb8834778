// How Sphinx's search ranks its hits: as it comes, but a section or a theorem whose name was typed comes before words.
var Scorer = {
  score: ([, title, , , score]) => (title.includes(" > ") ? 7 * score : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
