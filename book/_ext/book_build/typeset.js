// Typesets formulas as a browser would: {macros, scale, formulas: [[tex, displayed], …]} in, {html: […], css} out.
"use strict";
const path = process.argv[2], { macros, scale, formulas } = JSON.parse(require("fs").readFileSync(0, "utf8"));
global.MathJax = {
  loader: { paths: { mathjax: path }, require, load: ["input/tex-full", "output/chtml", "adaptors/liteDOM"] },
  tex: { macros },
  chtml: { scale, matchFontHeight: false, fontURL: "mathjax/output/chtml/fonts/woff-v2" },
  startup: { typeset: false },
};
require(`${path}/startup.js`);
MathJax.startup.promise.then(() => {
  const { adaptor } = MathJax.startup;
  const html = formulas.map(([tex, display]) => adaptor.outerHTML(MathJax.tex2chtml(tex, { display })));
  process.stdout.write(JSON.stringify({ html, css: adaptor.textContent(MathJax.chtmlStylesheet()) }));
});
