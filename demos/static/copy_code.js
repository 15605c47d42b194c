// The button beside a block of code copies it.
element.addEventListener('click', async (e) => {
  const button = e.target.closest('[data-copy]'); if (!button) return;
  const code = button.parentElement.querySelector('pre');
  if (!code) return;
  try { await navigator.clipboard.writeText(code.textContent); }
  catch (error) {
    const all = document.createRange(); all.selectNodeContents(code);
    getSelection().removeAllRanges(); getSelection().addRange(all);
    return;
  }
  const old = button.textContent; button.textContent = button.dataset.copy;
  setTimeout(() => { button.textContent = old; }, 1500);
});
