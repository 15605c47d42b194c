// A long run begins: the button that stops it is shown (page.css).
(...args) => {
  const body = document.body.dataset;
  body.kdBusy = Number(body.kdBusy || 0) + 1;
  return args;
}
