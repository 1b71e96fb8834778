// The scoreboard shows one part of the book, or the claims of one status. Without this script it shows all.
addEventListener("DOMContentLoaded", () => {
  const parts = [...document.querySelectorAll(".board-part")], summary = document.querySelector(".board-summary");
  if (!summary) return;
  const statusOf = (row) => row.className.match(/is-(\w+)/)[1];
  const statuses = [...document.querySelectorAll(".board-part tbody tr")].map(statusOf);
  const form = document.createElement("form");
  form.className = "board-filter";
  const choice = (name, first, options) => {
    const label = document.createElement("label"), select = document.createElement("select");
    select.name = name;
    select.append(new Option(first, ""), ...options.map(([value, words]) => new Option(words, value)));
    label.append(`${name[0].toUpperCase()}${name.slice(1)} `, select);
    form.append(label);
    return select;
  };
  const part = choice("part", "All parts", parts.map((box) => [box.id, box.querySelector(".rubric").textContent]));
  const order = ["enclosed", "proved", "checked", "fails", "open"].filter((s) => statuses.includes(s));
  const status = choice("status", "Every status", order.map((s) => [s, `${s} (${statuses.filter((one) => one === s).length})`]));
  const output = document.createElement("output");
  output.setAttribute("aria-live", "polite");
  form.append(output);
  summary.after(form);
  const show = () => {
    let shown = 0;
    for (const box of parts) {
      const rows = [...box.querySelectorAll("tbody tr")], here = !part.value || box.id === part.value;
      for (const row of rows) row.hidden = !here || (status.value && statusOf(row) !== status.value);
      const left = rows.filter((row) => !row.hidden).length;
      box.hidden = !left;
      shown += left;
    }
    output.textContent = shown < statuses.length ? `${shown} of ${statuses.length} claims` : "";
    dispatchEvent(new Event("resize"));  // formulas are fitted to their lines (book.js)
  };
  // A link to one claim shows it, whatever was chosen before.
  const reveal = () => {
    const row = location.hash.startsWith("#board-") && document.getElementById(location.hash.slice(1));
    if (row && row.hidden) { form.reset(); show(); row.scrollIntoView(); }
  };
  form.addEventListener("change", show);
  addEventListener("hashchange", reveal);
});
