for (const chart of document.querySelectorAll(".chart")) {
  const plot = chart.querySelector("svg"), cursor = plot.querySelector(".cursor"), reading = chart.querySelector(".reading");
  const heads = Array.from(chart.querySelectorAll("thead th"), cell => cell.textContent);
  const rows = Array.from(chart.querySelectorAll("tbody tr"));
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    const row = rows.find(row => Number(row.dataset.x) >= x);
    const shown = row !== undefined ? (Number(row.dataset.from || 0) > x ? false : x >= 0) : false;
    cursor.style.visibility = shown ? "visible" : "hidden";
    cursor.setAttribute("transform", "translate(" + x * box.width + ")");
    reading.textContent = shown ? Array.from(row.cells, (cell, at) => heads[at] + " " + cell.textContent).join(" · ") : "";
  });
  plot.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; reading.textContent = ""; });
}
