// An address with settings shows no other run first: what a run shows waits, hidden, until the page
// has followed its address (shown.js), or until it is plain that it will not.
(() => {
  const frame = /^(_|utm_)|^(lang|view|deep_link)$/;
  const asks = [...new URLSearchParams(location.search).keys()].some((name) => !frame.test(name));
  if (!asks) return;
  const root = document.documentElement;
  const lang = new URLSearchParams(location.search).get('lang') || navigator.language;
  const words = {zh: '正在载入', ko: '불러오는 중'}[lang.slice(0, 2)] || 'Loading';
  root.style.setProperty('--kd-loading', JSON.stringify(words + ' …'));
  root.classList.add('kd-waits');
  setTimeout(() => root.classList.remove('kd-waits'), 8000);
})();
