// On a phone, a table of sentences that does not fit becomes a list per row: "column: value". Tables of numbers scroll.
function arrange() {
  for (const table of document.querySelectorAll("article table")) {
    const names = [...table.querySelectorAll("thead tr:last-child th")].map((cell) => cell.textContent.trim());
    const cells = [...table.querySelectorAll("tbody td")];
    table.classList.remove("stacked");
    for (const cell of cells) {
      const text = cell.textContent.trim();
      if (text) cell.dataset.column = names[cell.cellIndex];
      cell.classList.toggle("prose", cell.cellIndex > 0 && text.length > 40);
      cell.classList.toggle("number", /^[-\d].{0,25}$/.test(text));
    }
    const fits = table.offsetWidth <= table.parentElement.clientWidth;
    if (!fits && cells.some((cell) => cell.matches(".prose"))) table.classList.add("stacked");
  }
}
window.addEventListener("load", arrange);
window.addEventListener("resize", arrange);
