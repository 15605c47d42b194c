async () => {
  const url = location.href;
  try { await navigator.clipboard.writeText(url); }
  catch (e) { window.prompt('Copy this link:', url); }
  const button = document.getElementById('kd-copy');
  if (button) { const old = button.textContent; button.textContent = 'Copied';
    setTimeout(() => { button.textContent = old; }, 1500); }
}
