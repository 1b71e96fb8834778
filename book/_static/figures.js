// Figures on a narrow screen: one of several panels keeps a legible size and scrolls sideways in its own box, and each
// that is shown smaller than it was drawn can be enlarged, by a touch or by its button.
(() => {
  const legible = 0.48, panels = 0.72;  // of the size as drawn: shown whole; shown in part
  const figures = () => [...document.querySelectorAll(".bd-article figure img, .bd-article .cell_output img")]
    .filter((i) => i.naturalWidth && i.offsetParent && !i.closest("a, .sd-card, #book-preview, .live"));

  const enlarge = (image, at = 0) => {
    const sheet = document.createElement("dialog"), box = document.createElement("div"), close = document.createElement("button");
    const big = image.cloneNode();
    sheet.className = "figure-sheet";
    sheet.setAttribute("aria-label", "The figure, enlarged");
    big.removeAttribute("style");
    big.style.width = `${Math.max(image.naturalWidth, innerWidth - 16)}px`;
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

  const fit = () => figures().forEach((image) => {
    const figure = image.closest("figure") || image.parentElement;
    const room = (image.closest(".figure-box") || image).parentElement.clientWidth;
    const small = room > 0 && room < 0.75 * image.naturalWidth;
    let box = image.closest(".figure-box");
    if (small && !box) {
      box = document.createElement("div");
      box.className = "figure-box";
      image.replaceWith(box);
      box.append(image);
      const button = document.createElement("button");
      button.type = "button";
      button.className = "enlarge";
      button.textContent = "Enlarge";
      const number = figure.querySelector(".caption-number")?.textContent.trim();
      if (number) button.setAttribute("aria-label", `Enlarge ${number}`);
      button.addEventListener("click", () => enlarge(image));
      image.addEventListener("click", (e) => {
        if (box.nextElementSibling?.matches(".enlarge:not([hidden])")) enlarge(image, e.offsetX / image.clientWidth);
      });
      box.after(button);
    }
    if (!box) return;
    box.nextElementSibling.hidden = !small;
    const whole = room >= legible * image.naturalWidth;
    box.style.setProperty("--figure-width", small && !whole ? `${Math.round(panels * image.naturalWidth)}px` : "100%");
  });
  addEventListener("load", fit);
  addEventListener("resize", fit);
})();
