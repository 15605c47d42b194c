// A drag of the slider reports once it pauses; a mark reports at once. Both say which step.
let timer = 0;
const send = (step) => trigger('release', {step: Number(step)});
element.addEventListener('input', (e) => {
  if (e.target.matches('input[type=range]')) {
    clearTimeout(timer); const value = e.target.value; timer = setTimeout(() => send(value), 60);
  }
});
element.addEventListener('click', (e) => {
  const mark = e.target.closest('[data-step]'); if (mark) send(mark.dataset.step);
});
const sync = () => {
  const holder = element.querySelector('[data-query]'); if (!holder) return;
  const theme = new URLSearchParams(location.search).get('__theme');
  const query = holder.dataset.query + (theme ? '&__theme=' + theme : '');
  if (location.search !== '?' + query) history.replaceState(history.state, '', location.pathname + '?' + query);
};
watch('value', sync);
