// A chart clips its lines by url(#id). Where the document has a <base>, plotly writes the page's
// whole address in front of the #, and the lines vanish as soon as a step changes the address.
// Gradio's base says what the address says anyway, so it can go.
(() => {
  const base = document.querySelector('base[href]');
  const from = (href) => new URL(href, location.href).href;
  if (base && from(base.getAttribute('href')) === from('./')) base.removeAttribute('href');
})();
