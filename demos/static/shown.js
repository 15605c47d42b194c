() => requestAnimationFrame(() => requestAnimationFrame(() =>
  document.documentElement.classList.remove('kd-waits')))
