// Figures are scripts beside the page; plotly itself is loaded once, when a page has one.
(() => {
  const theme = () =>
    document.body.getAttribute("data-md-color-scheme") === "slate" ? "dark" : "light";
  const load = (src) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = src;
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
    });
  const draw = async (place) => {
    const source = `${place.dataset.figure}.${theme()}`;
    const name = source.split("/").pop();
    if (!window.klFigures?.[name]) await load(`${source}.js`);
    const figure = window.klFigures[name];
    if (figure.svg) {
      place.innerHTML = figure.svg;
      return;
    }
    if (!window.Plotly) await load(place.dataset.plotly);
    await Plotly.react(place, figure.data, figure.layout, { displaylogo: false });
    fit(place);
  };
  // A figure is laid out for one width. It shrinks with its column, and below 60 % it scrolls.
  const fit = (place) => {
    const { width, height } = place._fullLayout;
    const scale = Math.max(0.6, Math.min(1, place.parentElement.clientWidth / width));
    place.style.zoom = scale;
    place.style.width = `${width}px`;
    place.style.height = `${height}px`;
  };
  window.addEventListener("resize", () =>
    document.querySelectorAll(".kl-plot").forEach((place) => place._fullLayout && fit(place)));
  const all = async () => {
    for (const place of document.querySelectorAll(".kl-plot")) await draw(place);
  };
  document.addEventListener("DOMContentLoaded", () => {
    all();
    new MutationObserver(all).observe(document.body, {
      attributes: true,
      attributeFilter: ["data-md-color-scheme"],
    });
  });
})();
