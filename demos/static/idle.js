// A long run is over, or was stopped or refused.
() => {
  const body = document.body.dataset;
  body.kdBusy = Math.max(0, Number(body.kdBusy || 0) - 1);
}
