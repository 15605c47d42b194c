() => {
  const theme = new URLSearchParams(location.search).get('__theme');
  const kept = theme ? '?__theme=' + encodeURIComponent(theme) : '';
  history.replaceState(history.state, '', location.pathname + kept);
  document.documentElement.classList.remove('kd-waits');
}
