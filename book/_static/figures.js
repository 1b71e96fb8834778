// Each figure can be enlarged, by its button or by pressing the picture; Escape closes. On a narrow screen one of several
// panels keeps a legible size and scrolls sideways in its own box.
(() => {
  const legible = 0.48, panels = 0.72;  // of the size as drawn: shown whole; shown in part
  const drawn = (i, side = "width") => +i.getAttribute(side) || i[side === "width" ? "naturalWidth" : "naturalHeight"];  // it may come late
  const figures = () => [...document.querySelectorAll(".bd-article figure img, .bd-article .cell_output img")]
    .filter((i) => drawn(i) && i.offsetParent && !i.closest("a, .sd-card, #book-preview, .live"));

  const enlarge = (image, at = 0) => {
    const sheet = document.createElement("dialog"), box = document.createElement("div"), close = document.createElement("button");
    const big = image.cloneNode();
    sheet.className = "figure-sheet";
    sheet.setAttribute("aria-label", "The figure, enlarged");
    big.removeAttribute("style");
    big.classList.remove("can-enlarge");
    const whole = Math.min(innerWidth - 24, ((innerHeight - 70) * drawn(image)) / drawn(image, "height"));
    big.style.width = `${Math.max(drawn(image), whole)}px`;
    box.className = "figure-sheet-box";
    box.tabIndex = 0;
    box.append(big);
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => sheet.close());
    sheet.append(close, box);
    sheet.addEventListener("click", (e) => { if (e.target === sheet) sheet.close(); });
    sheet.addEventListener("close", () => sheet.remove());
    document.body.append(sheet);
    sheet.showModal();
    box.scrollLeft = at * box.scrollWidth - box.clientWidth / 2;
  };

  // Where the button goes: before the files that the figure offers, or below the picture.
  const place = (image) => {
    const figure = image.closest("figure"), files = figure?.querySelector(".figure-files");
    if (files) return files;
    const row = document.createElement("p");
    row.className = "figure-files";
    if (figure) figure.append(row);
    else (image.closest(".figure-modes") || image).after(row);
    return row;
  };
  const offer = (image) => {
    image.classList.add("can-enlarge");
    image.addEventListener("click", (e) => enlarge(image, e.offsetX / image.clientWidth));
    const row = place(image);
    if (row.querySelector(".enlarge")) return;  // the other version has made it
    const button = document.createElement("button"), number = image.closest("figure")?.querySelector(".caption-number")?.textContent.trim();
    button.type = "button";
    button.className = "enlarge";
    button.textContent = "Enlarge";
    if (number) button.setAttribute("aria-label", `Enlarge ${number}`);
    const here = row.closest("figure") || row.parentElement;
    button.addEventListener("click", () => enlarge(figures().find((i) => here.contains(i)) || image));
    row.prepend(button);
  };

  const fit = () => figures().forEach((image) => {
    if (!image.matches(".can-enlarge")) offer(image);
    const room = (image.closest(".figure-box") || image).parentElement.clientWidth;
    const small = room > 0 && room < 0.75 * drawn(image);
    let box = image.closest(".figure-box");
    if (small && !box) {
      box = document.createElement("div");
      box.className = "figure-box";
      image.replaceWith(box);
      box.append(image);
    }
    if (!box) return;
    const whole = room >= legible * drawn(image);
    box.style.setProperty("--figure-width", small && !whole ? `${Math.round(panels * drawn(image))}px` : "100%");
  });
  addEventListener("load", () => {
    fit();  // and when the page turns light or dark
    new MutationObserver(fit).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  });
  addEventListener("resize", fit);
})();
