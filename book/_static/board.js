// The scoreboard shows one part of the book, or the claims of one status. Without this script it shows all.
addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".board-filter");
  if (!form) return;
  const parts = [...document.querySelectorAll(".board-part")], { part, status } = form.elements;
  const show = () => {
    let shown = 0, all = 0;
    for (const box of parts) {
      const rows = [...box.querySelectorAll("tbody tr")], here = !part.value || box.id === `part-${part.value}`;
      for (const row of rows) row.hidden = !here || (status.value && !row.classList.contains(`is-${status.value}`));
      const left = rows.filter((row) => !row.hidden).length;
      box.hidden = !left;
      shown += left;
      all += rows.length;
    }
    form.querySelector("output").textContent = shown < all ? `${shown} of ${all} claims` : "";
    dispatchEvent(new Event("resize"));  // formulas are fitted to their lines (book.js)
  };
  // A link to one claim shows it, whatever was chosen before.
  const reveal = () => {
    const row = location.hash.startsWith("#board-") && document.getElementById(location.hash.slice(1));
    if (row && row.hidden) { form.reset(); show(); row.scrollIntoView(); }
  };
  form.addEventListener("change", show);
  addEventListener("hashchange", reveal);
  form.hidden = false;
  show();  // a browser may remember what was chosen
  reveal();
});
