"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  dark.addEventListener("change", name);
  name();

  for (const plot of document.querySelectorAll(".plot")) {
    const data = JSON.parse(plot.dataset.read);
    const svg = plot.querySelector("svg");
    const cursor = plot.querySelector(".cursor");
    const output = plot.closest("figure").querySelector("output");
    let at = -1;
    const show = (index) => {
      at = Math.max(0, Math.min(data.x.length - 1, index));
      cursor.setAttribute("x1", data.x[at]);
      cursor.setAttribute("x2", data.x[at]);
      cursor.style.visibility = "visible";
      output.textContent = data.said[at];
    };
    const clear = () => { at = -1; cursor.style.visibility = "hidden"; output.textContent = ""; };
    plot.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      let best = 0;
      data.x.forEach((place, i) => { if (Math.abs(place - x) < Math.abs(data.x[best] - x)) best = i; });
      show(best);
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: at + 1, ArrowLeft: at < 0 ? data.x.length - 1 : at - 1, Home: 0,
                     End: data.x.length - 1 }[event.key];
      if (event.key === "Escape") clear();
      if (step === undefined) return;
      event.preventDefault();
      show(step);
    });
  }
})();
